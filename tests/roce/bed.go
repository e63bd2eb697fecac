// Package roce lays rails of Soft-RoCE in a test guest, and breaks them by name. tests/netbed does the same for TCP.
//
// Rail 0 is a cable from each of its two ends to a bridge, which stands for the switch of a fabric:
//
//	rxe0a on r0a --- p0a [sw0] p0b --- r0b with rxe0b       10.77.0.1 and 10.77.0.2
//
// Both ends are in one network namespace, since Linux 6.12 has Soft-RoCE in the first one only. Rules of routing send
// packets between two of our own addresses over the cable, and not over lo. Faults of the path are made at the switch,
// where no end sees them: Soft-RoCE takes a packet that its own queue refuses for an error of the queue pair.
//
// The package changes routes and rules of its namespace. The guest's init calls Lay; tests in the guest call Rails.
package roce

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// GuestEnv is set in the guest, to the number of rails.
const GuestEnv = "TENT_GUEST"

// MTU of the cables: Soft-RoCE then moves 4096 bytes a packet.
const mtu = 4200

// End of a rail. A is by custom the initiator's.
type End byte

// The two ends of a rail.
const (
	A End = 'a'
	B End = 'b'
)

func (e End) other() End {
	if e == A {
		return B
	}
	return A
}

// Rail is the way between two devices, and is named by its index.
type Rail int

// Device is the name of the RDMA device at an end.
func (r Rail) Device(e End) string { return fmt.Sprintf("rxe%d%c", r, e) }

// Address of an end.
func (r Rail) Address(e End) net.IP { return net.IPv4(10, 77, byte(r), byte(e-A)+1).To4() }

// Spare is another address of an end, which it has after Renumber.
func (r Rail) Spare(e End) net.IP { return net.IPv4(10, 77, byte(r), byte(e-A)+101).To4() }

// Interface is the name of the network interface at an end.
func (r Rail) Interface(e End) string { return fmt.Sprintf("r%d%c", r, e) }

func (r Rail) port(e End) string { return fmt.Sprintf("p%d%c", r, e) }
func (r Rail) bridge() string    { return fmt.Sprintf("sw%d", r) }

func (r Rail) hardware(e End) net.HardwareAddr {
	return net.HardwareAddr{2, 0, 0, 0, byte(r), 10 + byte(e-A)}
}

// Rails returns those that are there; none outside the guest.
func Rails() (list []Rail) {
	for r := Rail(0); ; r++ {
		if _, err := os.Stat(filepath.Join("/sys/class/net", r.bridge())); err != nil {
			return list
		}
		list = append(list, r)
	}
}

// Lay makes n rails in a namespace that has none.
func Lay(n int) error {
	if err := prepare(); err != nil {
		return err
	}
	for r := range Rail(n) {
		if err := r.lay(); err != nil {
			return fmt.Errorf("rail %d: %w", r, err)
		}
	}
	return nil
}

// prepare lets packets between our own addresses leave by a cable and come in again.
func prepare() error {
	for _, s := range [...][2]string{{"rp_filter", "0"}, {"accept_local", "1"}, {"arp_announce", "2"},
		{"arp_ignore", "1"}} {
		for _, where := range []string{"all", "default"} {
			if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv4/conf", where, s[0]), []byte(s[1]), 0); err != nil {
				return err
			}
		}
	}
	// Link-local addresses would be one more GID of each device.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil {
		return err
	}
	fromCables := rule(10, unix.RT_TABLE_LOCAL) // packets that come in by a cable are for us
	fromCables.IifName, fromCables.Invert = "lo", true
	peersFirst := rule(20, unix.RT_TABLE_MAIN) // those that we send look for the route to a rail's other end ...
	ourselves := rule(30, unix.RT_TABLE_LOCAL) // ... and only then at our own addresses
	for _, r := range []*netlink.Rule{fromCables, peersFirst, ourselves} {
		if err := netlink.RuleAdd(r); err != nil {
			return fmt.Errorf("rule %v: %w", r, err)
		}
	}
	if err := netlink.RuleDel(rule(0, unix.RT_TABLE_LOCAL)); err != nil {
		return fmt.Errorf("the first rule: %w", err)
	}
	return up("lo")
}

func rule(priority, table int) *netlink.Rule {
	r := netlink.NewRule()
	r.Priority, r.Table, r.Family = priority, table, unix.AF_INET
	return r
}

func (r Rail) lay() error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: r.bridge()}, MulticastSnooping: new(bool)}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if err := errors.Join(up(r.bridge()), r.cable(A), r.cable(B)); err != nil {
		return err
	}
	return errors.Join(r.attach(A), r.attach(B))
}

// cable joins an end to the switch, with the end's address and the route to the other end.
func (r Rail) cable(e End) error {
	attrs := netlink.LinkAttrs{Name: r.Interface(e), HardwareAddr: r.hardware(e), MTU: mtu}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: r.port(e), PeerMTU: mtu}); err != nil {
		return fmt.Errorf("veth: %w", err)
	}
	bridge, err := netlink.LinkByName(r.bridge())
	if err != nil {
		return err
	}
	port, err := netlink.LinkByName(r.port(e))
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(port, bridge); err != nil {
		return fmt.Errorf("port: %w", err)
	}
	return errors.Join(up(r.port(e)), up(r.Interface(e)), r.address(e, r.Address(e), netlink.AddrAdd), r.route(e),
		r.path(e, netlink.NetemQdiscAttrs{}))
}

// attach makes the RDMA device of an end.
func (r Rail) attach(e End) error {
	if err := netlink.RdmaLinkAdd(r.Device(e), "rxe", r.Interface(e)); err != nil {
		return fmt.Errorf("%s: %w", r.Device(e), err)
	}
	return nil
}

func (r Rail) address(e End, ip net.IP, change func(netlink.Link, *netlink.Addr) error) error {
	link, err := netlink.LinkByName(r.Interface(e))
	if err != nil {
		return err
	}
	return change(link, &netlink.Addr{IPNet: alone(ip)})
}

// route sends the packets of an end to the other one over the cable. It goes when the interface goes down.
func (r Rail) route(e End) error { return r.routeTo(e, r.Address(e), r.Address(e.other())) }

func (r Rail) routeTo(e End, own, peer net.IP) error {
	link, err := netlink.LinkByName(r.Interface(e))
	if err != nil {
		return err
	}
	index := link.Attrs().Index
	route := &netlink.Route{LinkIndex: index, Dst: alone(peer), Src: own, Scope: netlink.SCOPE_LINK}
	// A neighbour that is known for good: asking for it would take a second after each fault.
	neighbour := &netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, IP: peer,
		HardwareAddr: r.hardware(e.other())}
	return errors.Join(netlink.RouteReplace(route), netlink.NeighSet(neighbour))
}

// alone is the network of one address.
func alone(ip net.IP) *net.IPNet { return &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)} }

func up(name string) error   { return toggle(name, netlink.LinkSetUp) }
func down(name string) error { return toggle(name, netlink.LinkSetDown) }

func toggle(name string, f func(netlink.Link) error) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return f(link)
}
