// Package netbed joins two hosts by several rails, all of it on one machine, and breaks the rails one by one. A host is
// a network namespace; a rail is a cable from each host into a switch, which is a third namespace with a bridge for
// every rail. Faults are made in the switch, so that they look to the hosts like faults of real cables.
//
//	A:e0 --- S:p0a [bridge sw0] S:p0b --- B:e0       10.88.0.1   10.88.0.2
//	A:e1 --- S:p1a [bridge sw1] S:p1b --- B:e1       10.88.1.1   10.88.1.2
//
// It talks to the kernel by netlink, so it needs root and a kernel with network namespaces, veth, bridge, nf_tables and
// tbf, and no program. Namespaces have no name: they vanish with the descriptors and processes that hold them, however
// the test ends. Programs that take part run as children of the test in one of the hosts (child.go, actor.go).
package netbed

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrUnavailable says that this machine or user cannot have a bed; the error that wraps it says why.
var ErrUnavailable = errors.New("no network test bed here")

// Bed is two hosts and the rails between them. Its methods and those of its parts are for one goroutine at a time.
type Bed struct {
	A, B  *Host
	Rails []*Rail

	net    *namespace // of the switch
	spaces []*namespace
	folder string // of the cluster's key
}

// Host is one end of all rails.
type Host struct {
	Addresses []string // one a rail
	net       *namespace
	side      string // "a" or "b", in names of ports
	key       string // path of the cluster's key
}

// New makes a bed. Close takes it down.
func New(rails int) (_ *Bed, err error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: it needs root", ErrUnavailable)
	}
	b := &Bed{}
	defer func() {
		if err != nil {
			b.Close()
			err = unavailable(err)
		}
	}()
	spaces := [3]*namespace{}
	for i := range spaces {
		if spaces[i], err = newNamespace(); err != nil {
			return nil, err
		}
		b.spaces = append(b.spaces, spaces[i])
	}
	if b.folder, err = os.MkdirTemp("", "tent-bed"); err != nil {
		return nil, err
	}
	key, err := ClusterKey(b.folder)
	if err != nil {
		return nil, err
	}
	b.net = spaces[0]
	b.A, b.B = &Host{net: spaces[1], side: "a", key: key}, &Host{net: spaces[2], side: "b", key: key}
	for _, h := range []*Host{b.A, b.B} {
		if err := h.prepare(); err != nil {
			return nil, err
		}
	}
	for i := range rails {
		r, err := b.lay(i)
		if err != nil {
			return nil, fmt.Errorf("rail %d: %w", i, err)
		}
		b.Rails = append(b.Rails, r)
	}
	return b, b.try()
}

// try makes one fault of each kind, so that a kernel which lacks something is known before a test depends on it.
func (b *Bed) try() error {
	if len(b.Rails) == 0 {
		return nil
	}
	r := b.Rails[0]
	return errors.Join(r.Lose(0.5), r.Reset(), r.Drop(Both), r.Heal(), r.Limit(1e9), r.Limit(0))
}

// unavailable marks errors about features that the kernel or a container lacks or forbids.
func unavailable(err error) error {
	for _, lack := range []error{unix.EOPNOTSUPP, unix.EPERM, unix.EACCES, unix.EROFS, unix.ENOENT, unix.ENOSYS,
		unix.EAFNOSUPPORT,
		unix.EPROTONOSUPPORT, unix.ENODEV, unix.ENOSPC} {
		if errors.Is(err, lack) {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	return err
}

// Close lets go of the namespaces. Children must have ended.
func (b *Bed) Close() {
	for _, n := range b.spaces {
		n.close()
	}
	b.spaces = nil
	if b.folder != "" {
		_ = os.RemoveAll(b.folder) // an error leaves a file of the system's temporary folder
	}
}

// prepare makes a host answer for an address only on the rail that owns it, as hosts of a fabric are configured.
func (h *Host) prepare() error {
	return h.net.within(func() error {
		for _, s := range [...][2]string{{"arp_ignore", "1"}, {"arp_announce", "2"}, {"rp_filter", "1"}} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/all/"+s[0], []byte(s[1]), 0); err != nil {
				return err
			}
		}
		return h.net.up("lo")
	})
}

// lay makes the cables and the bridge of one rail.
func (b *Bed) lay(i int) (*Rail, error) {
	r := &Rail{bed: b, index: i}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("sw%d", i)}, MulticastSnooping: new(bool)}
	if err := b.net.LinkAdd(bridge); err != nil {
		return nil, fmt.Errorf("bridge: %w", err)
	}
	for n, h := range []*Host{b.A, b.B} {
		name := fmt.Sprintf("e%d", i)
		cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: r.port(h), MasterIndex: bridge.Index}, PeerName: name,
			PeerNamespace: netlink.NsFd(h.net.fd)}
		if err := b.net.LinkAdd(cable); err != nil {
			return nil, fmt.Errorf("veth: %w", err)
		}
		address := fmt.Sprintf("10.88.%d.%d", i, n+1)
		h.Addresses = append(h.Addresses, address)
		if err := errors.Join(b.net.up(r.port(h)), h.net.address(name, address, true), h.net.up(name)); err != nil {
			return nil, err
		}
	}
	return r, b.net.up(bridge.Name)
}

// namespace is a network namespace with a netlink socket in it.
type namespace struct {
	*netlink.Handle
	fd netns.NsHandle
}

func newNamespace() (*namespace, error) {
	n := &namespace{fd: -1}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("network namespace: %w", err)
		}
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		n.fd = netns.NsHandle(fd)
		return err
	})
	if err != nil {
		return nil, err
	}
	if n.Handle, err = netlink.NewHandleAt(n.fd, unix.NETLINK_ROUTE); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *namespace) close() {
	if n.Handle != nil {
		n.Handle.Close()
	}
	_ = unix.Close(int(n.fd))
}

// within runs f on a thread of the namespace. Sockets and children that f makes stay in it.
func (n *namespace) within(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(n.fd), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// onThread runs f on a thread of its own, which ends with it: no other goroutine may meet the changed thread.
func onThread(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		result <- f()
	}()
	return <-result
}

func (n *namespace) up(name string) error   { return n.toggle(name, n.LinkSetUp) }
func (n *namespace) down(name string) error { return n.toggle(name, n.LinkSetDown) }

func (n *namespace) toggle(name string, f func(netlink.Link) error) error {
	link, err := n.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return f(link)
}

// address gives an address to an interface, or takes it away.
func (n *namespace) address(name, address string, add bool) error {
	bits := "/24"
	if strings.Contains(address, ":") {
		bits = "/64"
	}
	a, err := netlink.ParseAddr(address + bits)
	if err != nil {
		return err
	}
	if a.IP.To4() == nil {
		a.Flags = unix.IFA_F_NODAD // at once, without asking whether somebody else has it
	}
	return n.toggle(name, func(l netlink.Link) error {
		if add {
			return n.AddrAdd(l, a)
		}
		return n.AddrDel(l, a)
	})
}
