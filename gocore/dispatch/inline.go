package dispatch

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// A transport that copies on the caller's thread is done before a task could be queued, cut and completed. For such
// tasks the core only decides whether that is fair now, and records the result:
//
//	Reserve --> transport.Inline, without the lock --true--> Record: the tasks have COMPLETED
//	   |                                           --false-> Unreserve, then Submit as ever
//	   +-- no: Submit as ever; errors come from there, too
//
// Between the two the batch is pending and the link is busy, but there is no task yet: nobody can cancel it, and it
// ends by itself within microseconds.

// Reservation is room for tasks that are being carried out.
type Reservation struct {
	Transport uint8
	Rail      transport.Rail
	Id        uint64 // of the first slice; one a task
	link      *link
	batch     *batch
	class     uint8
	tasks     int
	requests  int
	begun     clock.Time
}

// Reserve reports whether tasks may be carried out at once over the first route of their plans, and if so keeps room
// for them. They must be of one class and one link, each no more than one slice; the link must be healthy, and nothing
// of their class or a higher one may wait there or be on its way. Record or Unreserve must follow.
func (c *Core) Reserve(id BatchID, specs []TaskSpec, now clock.Time) (Reservation, bool) {
	if invariants {
		defer c.checkInvariants()
	}
	b, err := c.findBatch(id)
	n := len(specs)
	if err != nil || n == 0 || len(b.tasks)+b.reserved+n > b.capacity {
		return Reservation{}, false
	}
	first := &specs[0]
	if check(first) != nil {
		return Reservation{}, false
	}
	l := c.link(first.Plan.Routes[0].Hops[0].Link)
	if l == nil || !l.quiet(first.Class) {
		return Reservation{}, false
	}
	r := l.best(&first.Plan.Routes[0].Hops[0])
	if r == nil {
		return Reservation{}, false
	}
	requests := 0
	for i := range specs {
		s := &specs[i]
		if (i > 0 && check(s) != nil) || s.Class != first.Class || s.Due() <= now || !l.takes(s, r) {
			return Reservation{}, false
		}
		requests += s.requests()
	}
	if c.pending+requests > c.options.Pending {
		return Reservation{}, false
	}
	if class := int(first.Class); class > High {
		if r.device.outranked(l, class) {
			return Reservation{}, false
		}
		if ok, _ := c.admits(l, r, class, true, now); !ok {
			return Reservation{}, false
		}
	}
	b.reserved += n
	c.pending += requests
	c.outstanding += n
	l.outstanding += n
	c.ids += uint64(n)
	return Reservation{Transport: l.spec.Transport, Rail: r.id, Id: c.ids - uint64(n) + 1, link: l, batch: b,
		class: first.Class, tasks: n, requests: requests, begun: now}, true
}

// quiet reports whether the link has nothing that work of a class would pass. Slices of its own class that are under
// way do not count: two threads that wait for each other's slices would never again find the link quiet, each because
// of the other. Where a transport has such slices waiting in a queue of its own, it refuses to carry out anything
// before them itself.
func (l *link) quiet(class uint8) bool {
	if l.peer.held() || l.peer.gone != nil || l.spec.Info == nil {
		return false
	}
	for k := range int(class) + 1 {
		if (k < int(class) && l.flying[k] > 0) || !l.queues[k].empty() {
			return false
		}
	}
	return true
}

// takes reports whether a task is one slice of its first route, and that one of this link and this rail.
func (l *link) takes(s *TaskSpec, r *railState) bool {
	route := &s.Plan.Routes[0]
	return len(route.Hops) == 1 && route.Hops[0].Link == l.id && s.Length <= l.spec.Info.SliceMax &&
		(route.SliceMax == 0 || s.Length <= route.SliceMax) &&
		(s.Class != Low || route.SliceLow == 0 || s.Length <= route.SliceLow || r.calm()) &&
		(s.Parts == nil || l.spec.Info.Vectors) &&
		(s.Parts == nil || route.PiecesMax == 0 || uint64(s.requests()) <= route.PiecesMax) &&
		fits(s, 0) && !l.named(s.Plan.Devices) && r.planned(&route.Hops[0])
}

// best is a healthy rail with room on which the keys of a hop work, nil if there is none.
func (l *link) best(hop *plan.Hop) *railState {
	for _, r := range l.rails {
		if r != nil && !r.full && r.healthy() && r.planned(hop) {
			return r
		}
	}
	return nil
}

// Unreserve gives the room back.
func (c *Core) Unreserve(r *Reservation) {
	if invariants {
		defer c.checkInvariants()
	}
	r.batch.reserved -= r.tasks
	c.pending -= r.requests
	c.outstanding -= r.tasks
	r.link.outstanding -= r.tasks
	if len(r.link.successors) > 0 {
		c.returnKeys(r)
	}
}

// Record enters the tasks of a reservation, which have been carried out, as COMPLETED and returns the index of the
// first.
func (c *Core) Record(r *Reservation, specs []TaskSpec, now clock.Time) int {
	if invariants {
		defer c.checkInvariants()
	}
	c.Unreserve(r)
	b := r.batch
	first, took := len(b.tasks), micros(now.Sub(r.begun))
	k := &c.counters[r.Transport][r.class]
	for i := range specs {
		t := c.tasks.Get()
		t.spec, t.batch, t.index = specs[i], b, uint32(first+i)
		t.state, t.attempts = Completed, 1
		t.cursor, t.acked = t.spec.Length, t.spec.Length
		t.submitted = r.begun
		b.tasks = append(b.tasks, t)
		b.total += t.spec.Length
		b.bytes += t.spec.Length
		k.inlined(&t.spec, took)
	}
	b.ends[Completed] += len(specs)
	b.attempts += uint32(len(specs))
	b.transports |= 1 << (r.Transport & 31)
	if b.freed && b.pending == 0 && b.reserved == 0 {
		c.recycle(b)
	}
	return first
}

// inlined counts a task that did not wait.
func (k *Counters) inlined(s *TaskSpec, us uint64) {
	op := s.Op & transport.Write
	n := uint64(s.requests())
	size := s.Length
	if n > 1 {
		size /= n
	}
	k.Requests[op] += n
	k.Bytes[op] += s.Length
	k.Attempts[op]++
	k.QueueWait.addValue(0)
	k.ByOp[op].Sizes.addValues(size, n)
	k.ByOp[op].Latency.addValues(us, n)
	k.ByOp[op].Attempt.addValue(us)
}
