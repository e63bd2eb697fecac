package netbed

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
)

// Rail is the way between one address of A and one of B. Its faults are there when the call returns.
type Rail struct {
	bed   *Bed
	index int
}

// Direction in which packets are lost.
type Direction uint8

// Directions: from A to B, from B to A, or either.
const (
	Forth Direction = 1 << iota
	Back
	Both = Forth | Back
)

// port is the switch's end of a host's cable.
func (r *Rail) port(h *Host) string { return fmt.Sprintf("p%d%s", r.index, h.side) }

func (r *Rail) device() string { return fmt.Sprintf("e%d", r.index) }

// ports are those where packets of a direction come in.
func (r *Rail) ports(d Direction) (list []string) {
	if d&Forth != 0 {
		list = append(list, r.port(r.bed.A))
	}
	if d&Back != 0 {
		list = append(list, r.port(r.bed.B))
	}
	return list
}

// Drop loses all packets of a direction. Nobody is told.
func (r *Rail) Drop(d Direction) error { return r.filter(d, dropAll) }

// Lose loses that share of the packets in both directions, at random.
func (r *Rail) Lose(share float64) error { return r.filter(Both, dropShare(share)) }

// Shorten loses packets of more than this number of bytes in both directions, without a word: a path MTU black hole
// (RFC 2923, 2.1). Connections come up, and all payload is lost.
func (r *Rail) Shorten(bytes uint32) error { return r.filter(Both, dropLonger(bytes)) }

// Reset answers every TCP packet by a reset, until Heal.
func (r *Rail) Reset() error { return r.filter(Both, resetTCP) }

// Heal ends Drop, Lose and Reset.
func (r *Rail) Heal() error { return r.bed.net.unfilter(r.ports(Both)) }

func (r *Rail) filter(d Direction, rule rule) error {
	return errors.Join(r.Heal(), r.bed.net.filter(r.ports(d), rule))
}

// depth is how long packets wait in the switch's queue at most when a rail is limited.
const depth = 5 * time.Millisecond

// Limit bounds the rate of both directions, in bytes/s; 0 takes the bound away.
func (r *Rail) Limit(rate uint64) error {
	return r.LimitBurst(rate, 128<<10) // two of the kernel's large packets
}

// LimitBurst is Limit with the number of bytes that a rail which was idle lets pass at once. Packets that are longer
// are cut to the size of the cable's, which costs time.
func (r *Rail) LimitBurst(rate uint64, burst uint32) error {
	for _, port := range r.ports(Both) {
		link, err := r.bed.net.LinkByName(port)
		if err != nil {
			return err
		}
		attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0),
			Parent: netlink.HANDLE_ROOT}
		if rate == 0 {
			err = r.bed.net.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: attrs, QdiscType: "tbf"})
		} else {
			limit := max(uint32(float64(rate)*depth.Seconds()), burst) + burst
			err = r.bed.net.QdiscReplace(&netlink.Tbf{QdiscAttrs: attrs, Rate: rate, Limit: limit,
				Buffer: netlink.Xmittime(rate, burst)})
		}
		if err != nil {
			return fmt.Errorf("limit of %s: %w", port, err)
		}
	}
	return nil
}

// Unplug pulls a host's cable: its interface loses the carrier, the other host sees nothing.
func (r *Rail) Unplug(h *Host) error { return r.bed.net.down(r.port(h)) }

// Plug ends Unplug.
func (r *Rail) Plug(h *Host) error { return r.bed.net.up(r.port(h)) }

// Down sets a host's own interface down.
func (r *Rail) Down(h *Host) error { return h.net.down(r.device()) }

// Up ends Down.
func (r *Rail) Up(h *Host) error { return h.net.up(r.device()) }

// Unassign takes a host's address of the rail away.
func (r *Rail) Unassign(h *Host) error { return h.net.address(r.device(), h.Addresses[r.index], false) }

// AssignMore gives a host one address more on its end of the rail, of either family.
func (r *Rail) AssignMore(h *Host, address string) error {
	return h.net.address(r.device(), address, true)
}

// Assign ends Unassign.
func (r *Rail) Assign(h *Host) error { return h.net.address(r.device(), h.Addresses[r.index], true) }

// Abort ends all established TCP connections of the rail at one host, as an administrator can: it gets ECONNABORTED,
// its peer a reset. Those to the remote port that has the most come first. It returns how many there were, and when the
// first of them had ended: the kernel waits for users of the connection, and then this thread reads its clock at once.
func (r *Rail) Abort(h *Host) (n int, first clock.Time, err error) {
	own := net.ParseIP(h.Addresses[r.index])
	err = h.net.within(func() error {
		urgent := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
		_ = unix.SchedSetAttr(0, &urgent, 0) // where that is not allowed, the time is less exact
		sockets, err := netlink.SocketDiagTCP(unix.AF_INET)
		if err != nil {
			return err
		}
		const established = 1
		sockets = slices.DeleteFunc(sockets, func(s *netlink.Socket) bool {
			return s.State != established ||
				!s.ID.Source.Equal(own)
		})
		many := map[uint16]int{}
		for _, s := range sockets {
			many[s.ID.DestinationPort]++
		}
		slices.SortFunc(sockets,
			func(a, b *netlink.Socket) int { return many[b.ID.DestinationPort] - many[a.ID.DestinationPort] })
		for _, s := range sockets {
			local := &net.TCPAddr{IP: s.ID.Source, Port: int(s.ID.SourcePort)}
			remote := &net.TCPAddr{IP: s.ID.Destination, Port: int(s.ID.DestinationPort)}
			if err := netlink.SocketDestroy(local, remote); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
			if n++; n == 1 {
				first = clock.Now()
			}
		}
		return nil
	})
	return n, first, err
}

// Sent counts the bytes that a host has sent on the rail, as its interface counts them.
func (r *Rail) Sent(h *Host) (bytes uint64, err error) {
	link, err := h.net.LinkByName(r.device())
	if err != nil {
		return 0, err
	}
	if s := link.Attrs().Statistics; s != nil {
		bytes = s.TxBytes
	}
	return bytes, nil
}
