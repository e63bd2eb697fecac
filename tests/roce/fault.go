package roce

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

// Direction in which packets meet a fault of the path.
type Direction uint8

// Directions: from A to B, from B to A, or either.
const (
	Forth Direction = 1 << iota
	Back
	Both = Forth | Back
)

// queue is the number of packets that a port of the switch holds back.
const queue = 10000

// Drop loses all packets of a direction. No end is told.
func (r Rail) Drop(d Direction) error { return r.impair(d, netlink.NetemQdiscAttrs{Loss: 100}) }

// Lose loses that share of the packets in both directions, at random.
func (r Rail) Lose(share float64) error {
	return r.impair(Both, netlink.NetemQdiscAttrs{Loss: float32(100 * share)})
}

// Delay holds all packets back, in both directions.
func (r Rail) Delay(by time.Duration) error {
	return r.impair(Both, netlink.NetemQdiscAttrs{Latency: uint32(by.Microseconds())})
}

// Reorder lets that share of the packets overtake the others, which wait, in both directions.
func (r Rail) Reorder(share float64, wait time.Duration) error {
	return r.impair(Both, netlink.NetemQdiscAttrs{Latency: uint32(wait.Microseconds()),
		ReorderProb: float32(100 * share)})
}

// Duplicate sends that share of the packets twice, in both directions.
func (r Rail) Duplicate(share float64) error {
	return r.impair(Both, netlink.NetemQdiscAttrs{Duplicate: float32(100 * share)})
}

// Limit bounds the rate of both directions, in bytes/s.
func (r Rail) Limit(rate uint64) error { return r.impair(Both, netlink.NetemQdiscAttrs{Rate64: rate}) }

// Heal ends the faults of the path: the six above. A rate must be replaced by one: netem keeps the last one otherwise.
func (r Rail) Heal() error { return r.impair(Both, netlink.NetemQdiscAttrs{Rate64: unlimited}) }

// unlimited is far beyond the guest, in bytes/s.
const unlimited = 1 << 40

func (r Rail) impair(d Direction, attrs netlink.NetemQdiscAttrs) error {
	healthy := netlink.NetemQdiscAttrs{}
	toB, toA := healthy, healthy
	if d&Forth != 0 {
		toB = attrs
	}
	if d&Back != 0 {
		toA = attrs
	}
	return errors.Join(r.path(A, toA), r.path(B, toB))
}

// path sets the treatment of the packets that the switch sends to an end.
func (r Rail) path(e End, attrs netlink.NetemQdiscAttrs) error {
	port, err := netlink.LinkByName(r.port(e))
	if err != nil {
		return err
	}
	attrs.Limit = queue
	place := netlink.QdiscAttrs{LinkIndex: port.Attrs().Index, Handle: netlink.MakeHandle(1, 0),
		Parent: netlink.HANDLE_ROOT}
	if err := netlink.QdiscReplace(netlink.NewNetem(place, attrs)); err != nil {
		return fmt.Errorf("netem at %s: %w", r.port(e), err)
	}
	return nil
}

// Unplug takes an end's carrier away at the switch. The other end sees nothing.
func (r Rail) Unplug(e End) error { return down(r.port(e)) }

// Plug ends Unplug.
func (r Rail) Plug(e End) error { return up(r.port(e)) }

// Down sets an end's own interface down.
func (r Rail) Down(e End) error { return down(r.Interface(e)) }

// Up ends Down.
func (r Rail) Up(e End) error { return errors.Join(up(r.Interface(e)), r.route(e)) }

// Unassign takes an end's address away, and with it its GID.
func (r Rail) Unassign(e End) error { return r.address(e, r.Address(e), netlink.AddrDel) }

// Assign ends Unassign. The GID may get another index.
func (r Rail) Assign(e End) error {
	return errors.Join(r.address(e, r.Address(e), netlink.AddrAdd), r.route(e))
}

// Renumber gives an end another address, and with it another GID; back gives it its own again. The other end has its
// own address.
func (r Rail) Renumber(e End, back bool) error {
	from, to := r.Address(e), r.Spare(e)
	if back {
		from, to = to, from
	}
	peer := r.Address(e.other())
	return errors.Join(r.address(e, from, netlink.AddrDel), r.address(e, to, netlink.AddrAdd), r.routeTo(e, to, peer),
		r.routeTo(e.other(), peer, to))
}

// Fault is a way in which a rail breaks, and its cure.
type Fault struct {
	Name       string // as railctl takes it
	Make, Mend func(Rail) error
}

// Sizes of the faults of the path that have one.
const (
	HeldBack  = 20 * time.Millisecond
	Overtaken = 2 * time.Millisecond
	Share     = 0.2 // of packets that are reordered or sent twice
	SlowRate  = 20 << 20
)

// Faults lists every way by name. "Own" means the end A.
func Faults() []Fault {
	at := func(f func(Rail, End) error, e End) func(Rail) error { return func(r Rail) error { return f(r, e) } }
	path := func(name string, f func(Rail) error) Fault { return Fault{name, f, Rail.Heal} }
	return []Fault{
		path("silent", func(r Rail) error { return r.Drop(Both) }),
		path("silent-forth", func(r Rail) error { return r.Drop(Forth) }),
		path("silent-back", func(r Rail) error { return r.Drop(Back) }),
		path("loss-1", func(r Rail) error { return r.Lose(0.01) }),
		path("loss-5", func(r Rail) error { return r.Lose(0.05) }),
		path("delay", func(r Rail) error { return r.Delay(HeldBack) }),
		path("reorder", func(r Rail) error { return r.Reorder(Share, Overtaken) }),
		path("duplicates", func(r Rail) error { return r.Duplicate(Share) }),
		path("slow", func(r Rail) error { return r.Limit(SlowRate) }),
		{"own-cable-pulled", at(Rail.Unplug, A), at(Rail.Plug, A)},
		{"own-device-down", at(Rail.Down, A), at(Rail.Up, A)},
		{"own-address-removed", at(Rail.Unassign, A), at(Rail.Assign, A)},
		{"own-device-deleted", at(Rail.Delete, A), at(Rail.Add, A)},
		{"peer-cable-pulled", at(Rail.Unplug, B), at(Rail.Plug, B)},
		{"peer-device-down", at(Rail.Down, B), at(Rail.Up, B)},
		{"peer-address-removed", at(Rail.Unassign, B), at(Rail.Assign, B)},
		{"peer-device-deleted", at(Rail.Delete, B), at(Rail.Add, B)},
	}
}
