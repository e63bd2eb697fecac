package dispatch

import (
	"math/rand/v2"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/qos"
)

// The model has NICs, too: the rails with one index share one over all peers of a transport, and in every second world
// other processes of the host want slots and carry bytes there, some of them without end.

func nicOptions(r *rand.Rand, o *Options) {
	for i := range o.Rails {
		if r.IntN(2) == 0 {
			o.Rails[i].Filter.Interval = 200 * time.Microsecond
		}
		if r.IntN(2) == 0 {
			o.Rails[i].Slots = qos.Slots{Interval: time.Duration(1+r.IntN(3)) * time.Millisecond,
				Borrow: r.IntN(2) == 0}
		}
		o.Rails[i].PerEntry = r.IntN(4) == 0
	}
}

// anyRail adds a rail whose rate, delay, window and faults are random.
func (m *model) anyRail(r *rand.Rand, id plan.LinkID, index int) *wire {
	rail := m.addRail(id, uint16(index), float64(int(1)<<(22+r.IntN(8))),
		m.between(10*time.Microsecond, 2*time.Millisecond), uint64(16+r.IntN(240))<<10, 2+r.IntN(30))
	if r.IntN(3) == 0 {
		rail.failed = r.Float64() * 0.3
	}
	if r.IntN(4) == 0 {
		rail.lost = r.Float64() * 0.05
	}
	return rail
}

// lateRail is a NIC that comes while work is on its way. Plans of before do not know it by their keys. Rails before it
// may come later, or never: their indices are the transport's.
func (m *model) lateRail(r *rand.Rand, id plan.LinkID) {
	l := m.core.link(id)
	if m.calm || l == nil || int(m.check.links[id].peer) >= m.peers {
		return
	}
	rail := m.anyRail(r, id, len(l.rails)+r.IntN(3))
	m.core.Link(id) // to be looked at while rails are missing, as Gauges is
	m.core.Gauges(l.spec.Transport)
	if m.late = append(m.late, rail); m.pausesOnly {
		rail.failed, rail.lost = 0, 0
	}
}

// host is the knowledge that the processes of a host share of a NIC.
type host struct {
	world   *world
	claimed [ClassCount]clock.Time // by all
	theirs  [ClassCount]clock.Time // by the other processes
	others  uint64
	ours    uint64
	told    clock.Time
}

func (h *host) Claim(class int, until, now clock.Time) {
	h.claimed[class] = max(h.claimed[class], until)
	if class == Low || until <= now {
		h.world.check.fail("class %d claims slots for %v", class, until.Sub(now))
	}
}

func (h *host) Claimed(class int, _ clock.Time) clock.Time { return h.claimed[class] }
func (h *host) Others(clock.Time) uint64                   { return h.others }

func (h *host) Carries(bytes uint64, now clock.Time) {
	if bytes == 0 && h.ours == 0 {
		h.world.check.fail("nothing is told twice")
	}
	h.ours, h.told = bytes, now
}

// crowd is the other processes of a NIC: they want HIGH or MEDIUM now and then, some worlds' for ever.
func (w *world) crowd(h *host) {
	if w.calm && w.Uint64()%2 == 0 { // they leave, as one that is killed does: without a word
		return
	}
	class := w.IntN(Low)
	until := w.now.Add(w.between(100*time.Microsecond, 2*time.Millisecond))
	h.claimed[class], h.theirs[class] = max(h.claimed[class], until), until
	h.others = w.Uint64N(1 << 20)
	w.after(w.between(100*time.Microsecond, 3*time.Millisecond), func() { w.crowd(h) })
}

// neighbours are asked for when a NIC comes up first.
func (w *world) neighbours(crowded bool) func(uint8, string) qos.Neighbours {
	if !crowded {
		return nil
	}
	return func(uint8, string) qos.Neighbours {
		h := &host{world: w}
		w.after(w.between(0, 5*time.Millisecond), func() { w.crowd(h) })
		return h
	}
}

// admitted compares the slices of a step with slots of time and the windows of NICs.
func (k *checker) admitted(e *Effects) {
	c := k.w.core
	promoted := uint64(0)
	for transport := range c.counters {
		for class := range ClassCount {
			promoted += c.counters[transport][class].Promotions
		}
	}
	turns := promoted - k.promoted
	k.promoted = promoted
	k.seen["promoted"] += int(turns)
	for i := range e.Submit {
		p := &e.Submit[i]
		r := c.rail(p.Link, p.Rail)
		if r == nil {
			continue // it has gone in the same step
		}
		d, low := r.device, false
		for _, s := range p.Slices {
			if s.Class > High && d.neighbours != nil {
				theirs := &host{claimed: d.neighbours.(*host).theirs} // our own claim may be newer than the slice
				if ok, _ := r.link.options.Slots.May(int(s.Class), theirs, k.w.now); !ok {
					k.fail("a slice of class %d in slot %d", s.Class, r.link.options.Slots.Current(k.w.now))
				}
			}
			low = low || s.Class == Low
		}
		if low && d.shared && turns == 0 && d.stuck == 0 {
			k.nicWindow(d)
		}
	}
}

// nicWindow checks the window of LOW right after something was added to it; it may have reached for twice as much then.
func (k *checker) nicWindow(d *device) {
	window, slices := uint64(0), 0
	for _, r := range d.rails {
		paused := k.w.paused[k.links[r.link.id].peer]
		if paused != 0 && k.w.now < paused.Add(k.w.core.options.CondemnAfter) {
			return // bytes that stand still are not in flight, and whether they do is known a while later
		}
		window = max(window, d.lowWindow(r))
		for a := r.flight.First(); a != nil; a = a.flight.After() {
			if a.Class != Low {
				continue
			}
			if p := k.w.out[&a.Slice]; p != nil && p.stood { // nil: handed out in this step
				return // nor are those that stood still, until they have come back
			}
			slices++
		}
	}
	if slices > 1 && d.low > 2*window {
		k.fail("%d bytes of LOW in flight on NIC %v, whose window is %d", d.low, d.key, window)
	}
	k.seen["NIC windows"]++
}

// nics compares the books of every NIC with the slices that are out.
func (k *checker) nics() {
	low, flying := map[*device]uint64{}, map[*device][ClassCount]int{}
	for _, p := range k.w.out {
		a := attemptOf(p.origin)
		if a.state == attemptBack {
			continue
		}
		d := a.rail.device
		n := flying[d]
		n[a.Class]++
		flying[d] = n
		if a.Class == Low {
			low[d] += a.Length
		}
	}
	for _, d := range k.w.core.devices {
		var waiting [ClassCount]int
		for _, l := range k.w.core.links[1:] {
			if l == nil {
				continue
			}
			for _, has := range l.devices {
				for class := range waiting {
					if has == d && l.waiting[class] != clock.Never {
						waiting[class]++
					}
				}
			}
		}
		switch {
		case d.low != low[d] || d.flying != flying[d]:
			k.fail("NIC %v: %d bytes of LOW and %v slices in its books, %d and %v are out", d.key, d.low, d.flying,
				low[d], flying[d])
		case d.waiting != waiting:
			k.fail("NIC %v: %v classes wait in its books, %v do", d.key, d.waiting, waiting)
		case d.held.Len() > 0 && k.w.core.Deadline() == clock.Never:
			k.fail("NIC %v holds %d rails back, and nothing will look at them again", d.key, d.held.Len())
		}
		for r := d.held.First(); r != nil; r = r.held.After() {
			if r.device != d {
				k.fail("NIC %v holds back a rail of another one", d.key)
			}
		}
	}
}
