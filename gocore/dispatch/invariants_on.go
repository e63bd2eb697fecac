//go:build invariants

package dispatch

import (
	"fmt"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/rail"
)

// The build tag invariants makes every public call of a Core end with a check of all of its books against each other. A
// call that breaks one panics at once, and not a thousand calls later where it hurts. Tests and the simulation use it;
// the cost is that of looking at every record, so nothing else does.

const invariants = true

// violated panics with the books that do not agree.
func violated(format string, args ...any) {
	panic("dispatch: invariant broken: " + fmt.Sprintf(format, args...))
}

// checkInvariants looks at everything that the core keeps.
func (c *Core) checkInvariants() {
	flying := 0
	for slot, l := range c.links {
		if l == nil {
			continue
		}
		if int(l.id.Slot()) != slot || c.link(l.id) != l || c.peers[l.spec.Peer] != l.peer {
			violated("link %#x stands in slot %d", l.id, slot)
		}
		c.checkLink(l)
		flying += c.checkFlights(l)
	}
	if c.outstanding < flying {
		violated("%d slices are outstanding, %d are in flight", c.outstanding, flying)
	}
	for _, p := range c.peers {
		open := 0
		for _, l := range p.links {
			for r := range l.records() {
				for a := r.flight.First(); a != nil; a = a.flight.After() {
					if a.state == attemptOpen {
						open++
					}
				}
			}
		}
		if p.gone == nil && p.open != open {
			violated("peer %s has %d open withdrawals, %d slices outlived their tasks", p.name, p.open, open)
		}
		all := 0
		for _, other := range p.engine.peers {
			all += other.open
		}
		if p.engine.open != all {
			violated("the engine of peer %s has %d open withdrawals, its peers have %d", p.name, p.engine.open, all)
		}
	}
	for _, d := range c.devices {
		c.checkNIC(d)
	}
	c.checkShared()
	c.checkBatches()
	c.checkGates()
	c.checkTimers()
}

// checkShared compares the slots of shared stages that peers hold with those that are taken.
func (c *Core) checkShared() {
	taken, held := 0, 0
	for _, s := range c.stages[1:] {
		if s.spec.Shared {
			taken += s.spec.Slots - len(s.free)
		}
	}
	for _, p := range c.peers {
		held += p.slots
		if p.slots < 0 {
			violated("peer %s holds %d slots", p.name, p.slots)
		}
	}
	if held > taken {
		violated("peers hold %d slots of shared stages, and %d are taken", held, taken)
	}
}

// checkLink compares a link's counts with its rails and queues.
func (c *Core) checkLink(l *link) {
	up, healthy := 0, 0
	for _, r := range l.rails {
		if r == nil {
			continue
		}
		c.checkRail(l, r)
		if r.usable() {
			up++
		}
		if r.healthy() {
			healthy++
		}
	}
	if l.up != up || l.good != healthy {
		violated("link %#x counts %d rails up and %d good of %d usable and %d healthy", l.id, l.up, l.good, up, healthy)
	}
	for class := range l.queues {
		q := &l.queues[class]
		bytes, depth := uint64(0), len(q.urgent)
		for t := q.tasks.First(); t != nil; t = t.queue.After() {
			bytes += c.checkFresh(l, q, t, class)
			depth++
		}
		for t := q.aside.tasks.First(); t != nil; t = t.queue.After() {
			bytes += c.checkFresh(l, q, t, class)
			depth++
			if l.served(t, t.begin()) {
				violated("link %#x: a task is aside that a rail may take", l.id)
			}
		}
		for i := range q.urgent {
			bytes += c.checkFresh(l, q, q.urgent[i].task, class)
			if q.urgent[i].task.queue.slot != i+1 || (i > 0 && q.urgent.Less(i, (i-1)/2)) {
				violated("link %#x: the heap of class %d is out of order at %d", l.id, class, i)
			}
		}
		for p := q.aside.pieces.First(); p != nil; p = p.queue.After() {
			if l.served(p.task, p.way()) {
				violated("link %#x: a piece is aside that a rail may take", l.id)
			}
		}
		for p := q.pieces.First(); p != nil; p = p.queue.After() {
			if p.state != pieceQueued || p.way().Link != l.id || int(p.task.spec.Class) != class {
				violated("link %#x: a piece of %d bytes does not belong into the queue of class %d", l.id, p.length,
					class)
			}
		}
		if q.bytes != bytes || q.depth != depth {
			violated("link %#x counts %d bytes of %d tasks of class %d, there are %d of %d", l.id, q.bytes, q.depth,
				class, bytes, depth)
		}
		if l.waiting[class] == clock.Never && !q.empty() {
			violated("link %#x: class %d has work and does not wait", l.id, class)
		}
	}
}

// checkFresh returns the fresh bytes of a queued task.
func (c *Core) checkFresh(l *link, q *classQueue, t *task, class int) uint64 {
	if t.queue.in != q || !t.live() || int(t.spec.Class) != class || t.begin().Link != l.id ||
		t.cursor >= t.spec.Length {
		violated("link %#x: a task of %d bytes with %d cut does not belong into the queue of class %d", l.id,
			t.spec.Length, t.cursor, class)
	}
	if !t.watch.Linked() && !l.timer.Armed() {
		violated("link %#x: a task of class %d was never served, and nothing ends its wait", l.id, class)
	}
	return t.spec.Length - t.cursor
}

// checkRail compares the state of a rail with the facts that follow from it.
func (c *Core) checkRail(l *link, r *railState) {
	state, listed := r.life.State(), false
	for _, other := range r.device.rails {
		listed = listed || other == r
	}
	switch {
	case r.link != l || l.rails[r.id.Index] != r:
		violated("rail %s is listed under another link or index", r.name())
	case state.Healthy() && r.life.Breaker.Open(), state == rail.Paused && !r.life.Breaker.Open():
		violated("rail %s is %v with its breaker open: %v", r.name(), state, r.life.Breaker.Open())
	case state.Ended() == listed:
		violated("rail %s is %v, and its NIC %s lists it: %v", r.name(), state, r.device.key.name, listed)
	case !state.Usable() && state != rail.Condemned && r.timer.Armed():
		violated("rail %s is %v and has a timer", r.name(), state)
	case !state.Healthy() && state != rail.Paused && r.rank != rankNever, r.rank < l.rank:
		violated("rail %s is %v with rank %d, the best of its link is %d", r.name(), state, r.rank, l.rank)
	case r.bytesMax > r.bytesWhole:
		violated("rail %s has a window of %d of %d bytes", r.name(), r.bytesMax, r.bytesWhole)
	}
}

// checkFlights compares the books of a link and its rails with the slices in flight, and returns how many there are.
func (c *Core) checkFlights(l *link) (n int) {
	var flying [ClassCount]int
	for r := range l.records() {
		var bytes, low uint64
		for a := r.flight.First(); a != nil; a = a.flight.After() {
			c.checkAttempt(r, a)
			bytes += a.Length
			flying[a.Class]++
			if a.Class == Low {
				low += a.Length
			}
		}
		n += r.flight.Len()
		if r.bytes != bytes || r.slices != r.flight.Len() || r.low != low || c.devices[r.device.key] != r.device {
			violated("rail %s counts %d bytes of %d slices, %d of LOW; there are %d of %d, %d of LOW",
				r.name(), r.bytes, r.slices, r.low, bytes, r.flight.Len(), low)
		}
	}
	if l.flying != flying || l.outstanding < n {
		violated("link %#x counts %v slices and %d outstanding, %v are in flight", l.id, l.flying, l.outstanding,
			flying)
	}
	return n
}

func (c *Core) checkAttempt(r *railState, a *attempt) {
	length := uint64(0)
	for p := a.pieces; p != nil; p = p.sibling {
		length += p.length
		if p.attempt != a {
			violated("slice %d has a piece of another one", a.Id)
		}
		orphaned := p.state == pieceOrphaned
		if !p.state.out() || orphaned != (p.task == nil) || (orphaned && a.state != attemptOpen) {
			violated("slice %d has a piece that is %v, in state %d of its own", a.Id, p.state, a.state)
		}
	}
	if a.state == attemptBack || a.rail != r || a.Rail != r.id || length != a.Length {
		violated("slice %d of %d bytes on rail %s has pieces of %d bytes", a.Id, a.Length, r.name(), length)
	}
}

// checkNIC compares the books of a NIC with the rails that belong to it.
func (c *Core) checkNIC(d *device) {
	var waiting, flying [ClassCount]int
	records, low := 0, uint64(0)
	for _, l := range c.links {
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
		for r := range l.records() {
			if r.device != d {
				continue
			}
			records++
			low += r.low
			for a := r.flight.First(); a != nil; a = a.flight.After() {
				flying[a.Class]++
			}
		}
	}
	if d.low != low || d.flying != flying || d.waiting != waiting || d.records != records {
		violated("NIC %s counts %d bytes of LOW, %v slices, %v waiting and %d rails; there are %d, %v, %v and %d",
			d.key.name, d.low, d.flying, d.waiting, d.records, low, flying, waiting, records)
	}
	for r := d.held.First(); r != nil; r = r.held.After() {
		if r.device != d {
			violated("NIC %s holds back rail %s of another one", d.key.name, r.name())
		}
	}
}

// checkBatches compares the counts of batches with their tasks, and accounts for every byte.
func (c *Core) checkBatches() {
	requests := 0
	for _, b := range c.batches {
		pending := 0
		for _, t := range b.tasks {
			c.checkTask(t)
			if t.state == Pending {
				pending++
				requests += t.spec.requests()
			}
		}
		if b.pending != pending {
			violated("batch %#x counts %d pending tasks, there are %d", b.id(), b.pending, pending)
		}
	}
	if c.pending < requests {
		violated("%d requests are pending, the core counts %d", requests, c.pending)
	}
}

func (c *Core) checkTask(t *task) {
	out, bytes := 0, t.acked+t.spec.Length-t.cursor
	for p := t.pieces.First(); p != nil; p = p.mine.After() {
		if p.task != t {
			violated("task %d lists a piece of another one", t.index)
		}
		if p.state.out() != (p.attempt != nil) || p.state == pieceOrphaned {
			violated("task %d has a piece that is %v with slice %v", t.index, p.state, p.attempt)
		}
		if p.state == pieceIdle || (!p.state.out() && !p.queue.Linked()) {
			violated("task %d has a piece that is %v and waits nowhere", t.index, p.state)
		}
		if p.state.out() {
			out++
		}
		if p.state != pieceReplaced {
			bytes += p.length
		}
	}
	waits := t.queue.in != nil || t.queue.Linked()
	switch {
	case t.state.Terminal() && (t.pieces.Len() > 0 || waits || t.watch.Linked() || t.run != nil):
		violated("task %d is %v and still has pieces, a place in a queue or a timer", t.index, t.state)
	case int(t.outstanding) != out:
		violated("task %d counts %d pieces out, there are %d", t.index, t.outstanding, out)
	case t.astray && (!t.live() || t.cursor+t.acked > 0 || t.pieces.Len() > 0 || waits || t.watch.Linked()):
		violated("task %d waits for another region, and has %d of %d bytes cut", t.index, t.cursor, t.spec.Length)
	case t.state == Pending && !t.watch.Linked() && (!t.live() || t.pieces.Len() > 0 || !t.astray && !waits):
		violated("task %d with verdict %v waits, and nothing ends that", t.index, t.verdict)
	case t.live() && bytes != t.spec.Length:
		violated("task %d accounts for %d of its %d bytes", t.index, bytes, t.spec.Length)
	case t.state == Pending && !t.live() && (out == 0 || t.pieces.Len() != out || waits):
		violated("task %d has its verdict %v and waits for more than its %d slices", t.index, t.verdict, out)
	}
}

// checkGates looks at the tasks that wait for a stream.
func (c *Core) checkGates() {
	for _, g := range c.gates {
		for t := g.tasks.First(); t != nil; t = t.queue.After() {
			if !g.alive || t.spec.Gate != g.id() || !t.live() || t.cursor+t.acked > 0 || t.watch.Linked() {
				violated("task %d of %d bytes with %d cut waits at gate %#x", t.index, t.spec.Length, t.cursor, g.id())
			}
		}
	}
}

// checkTimers looks at the order of the heap.
func (c *Core) checkTimers() {
	if !c.timers.Ordered() {
		violated("the timers are out of order")
	}
}
