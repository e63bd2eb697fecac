package dispatch

import (
	"math/rand/v2"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// descriptors play owners that replace the descriptor of their region on a link. They also play the engine, which
// imports the new one because it has heard of it, or because the core has asked. Half of the plans stay as they were
// made, so that tasks come late with a key of before.
type descriptors struct {
	random  *rand.Rand
	m       *model
	keys    transport.RemoteKey // given out so far
	offered map[plan.LinkID]transport.RemoteKey
	told    map[plan.LinkID]transport.RemoteKey // as the core knows it
	due     map[RegionKey][]uint64              // told and not retired: the slices that carry it
	inline  map[RegionKey]map[uint64]bool       // and the reservations of that time
	held    map[uint64]plan.LinkID              // reservations that callers have
	retired map[RegionKey]bool
	asked   map[uint32]bool
	numbers map[transport.Link]plan.LinkID
}

// firstKey is that of every region when a world begins.
const firstKey transport.RemoteKey = 1

func newDescriptors(seed uint64, m *model) *descriptors {
	return &descriptors{random: rand.New(rand.NewPCG(seed, 4)), m: m, keys: firstKey,
		offered: map[plan.LinkID]transport.RemoteKey{}, told: map[plan.LinkID]transport.RemoteKey{},
		due: map[RegionKey][]uint64{}, inline: map[RegionKey]map[uint64]bool{}, held: map[uint64]plan.LinkID{},
		retired: map[RegionKey]bool{}, asked: map[uint32]bool{}, numbers: map[transport.Link]plan.LinkID{}}
}

// keyIn returns a link's key among those of a map.
func keyIn(known map[plan.LinkID]transport.RemoteKey, id plan.LinkID) transport.RemoteKey {
	if key, is := known[id]; is {
		return key
	}
	return firstKey
}

func (d *descriptors) between(low, high time.Duration) time.Duration {
	return low + time.Duration(d.random.Int64N(int64(high-low)+1))
}

// replace gives regions other descriptors again and again while the world is not calm.
func (d *descriptors) replace() {
	if d.m.calm || d.m.pausesOnly {
		return
	}
	peer := d.random.IntN(d.m.peers)
	id := d.m.links[peer][d.random.IntN(len(d.m.links[peer]))]
	d.keys++
	d.offered[id] = d.keys
	d.m.check.seen["descriptor replaced"]++
	if d.random.IntN(2) == 0 { // the news comes by itself
		d.m.after(d.between(0, 20*time.Millisecond), func() { d.tell(id) })
	}
	d.m.after(d.between(0, 60*time.Millisecond), d.replace)
}

// tell imports the descriptor that a peer offers on a link.
func (d *descriptors) tell(id plan.LinkID) {
	old, key := keyIn(d.told, id), keyIn(d.offered, id)
	if old == key || d.m.core.link(id) == nil {
		return
	}
	at := RegionKey{id, old}
	d.due[at], d.inline[at] = []uint64{}, map[uint64]bool{}
	for _, q := range d.m.out {
		if q.wire.key.link == id && q.slice.RemoteKey == old {
			d.due[at] = append(d.due[at], q.slice.Id)
		}
	}
	for reservation, link := range d.held {
		if link == id {
			d.inline[at][reservation] = true
		}
	}
	d.told[id] = key
	matches := d.m.keys.matches(id, key)
	d.m.core.Rekey(id, old, key, matches, d.m.now)
	if d.random.IntN(2) == 0 {
		return
	}
	for peer := range d.m.plans {
		for op := range d.m.plans[peer] {
			for i, p := range d.m.plans[peer][op] {
				d.m.plans[peer][op][i] = p.Rekeyed(id, old, key, matches)
			}
		}
	}
}

// effects carries out the core's orders about keys.
func (d *descriptors) effects(e *Effects) {
	for _, peer := range e.Stale {
		if d.asked[peer] {
			d.m.check.fail("peer %d is asked for its description a second time", peer)
		}
		d.asked[peer] = true
		d.m.check.seen["description asked for"]++
		d.m.after(d.between(0, 10*time.Millisecond), func() { d.answer(peer) })
	}
	for _, r := range e.Retired {
		at := RegionKey{d.numbers[r.Link], r.Key}
		if d.retired[at] || d.due[at] == nil {
			d.m.check.fail("key %d of link %d is retired, in use or for a second time", r.Key, r.Link)
		}
		for _, q := range d.m.out {
			for _, id := range d.due[at] {
				if q.slice.Id == id {
					d.m.check.fail("key %d of link %d is retired, and slice %d carries it", r.Key, r.Link, id)
				}
			}
		}
		for reservation := range d.inline[at] {
			if _, is := d.held[reservation]; is {
				d.m.check.fail("key %d of link %d is retired, and a caller may use it", r.Key, r.Link)
			}
		}
		d.retired[at] = true
		delete(d.due, at)
		delete(d.inline, at)
		d.m.check.seen["key retired"]++
	}
}

// answer brings a peer's description, or the news that it did not come.
func (d *descriptors) answer(peer uint32) {
	d.asked[peer] = false
	if d.m.calm || d.random.IntN(4) > 0 {
		for _, id := range d.m.links[peer] {
			d.tell(id)
		}
	}
	d.m.core.Refreshed(peer, d.m.now)
}

// refuses reports whether a slice comes with a key that the owner has replaced, and completes it then.
func (d *descriptors) refuses(q *posted, after time.Duration) bool {
	id, key := q.wire.key.link, q.slice.RemoteKey
	if key == 0 || key == keyIn(d.offered, id) { // a stage has no key here
		return false
	}
	d.m.check.seen["replaced key refused"]++
	err := transport.Replaced("sim")
	if d.retired[RegionKey{id, key}] { // the transport has forgotten it
		err = errs.New(errs.AddressNotRegistered, "sim", "no such key").WithScope(errs.ScopeSlice, errs.SideRemote)
		d.m.check.seen["forgotten key refused"]++
	}
	d.m.complete(q, err, after)
	return true
}

// verify demands that every key which was replaced has been handed back.
func (d *descriptors) verify() {
	for at := range d.due {
		if d.m.core.link(at.Link) != nil {
			d.m.check.fail("key %d of link %d is never retired", at.Key, at.Link)
		}
	}
}

// hold notes that a caller carries out tasks by itself, with the keys of their plans.
func (d *descriptors) hold(r *Reservation, specs []TaskSpec) {
	d.held[r.Id] = specs[0].Plan.Routes[0].Hops[0].Link
}

func (d *descriptors) release(r *Reservation) { delete(d.held, r.Id) }
