package dispatch

import (
	"container/heap"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch/internal/intrusive"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/plan"
)

// A deadline is kept by a timer, wherever its task waits: for a rail, room, a stage, the end of a pause. Beyond that a
// transport may serve a class (RailOptions.ByDeadline) by slack instead of by arrival:
//
//	slack = deadline - now - bytes that were never sent / rate
//
// This is earliest deadline first (EDF, Liu and Layland 1973) by least slack. Now is the same for all, so the order
// compares the latest moment at which a task could begin, fixed when it is queued. A slack that followed the task while
// it is served would make two tasks of equal slack take turns, and both would be late. Least slack first also brings
// hopeless tasks to the head, so a look at the head finds all of them. Tasks without a deadline follow in their order,
// for as long as there are any with one; classes stay apart.

// place is the queue of a task's fresh bytes: a list, of a class or of a stage, or the heap of a class.
type place struct {
	intrusive.Node[task]
	in   *classQueue // nil: in none
	slot int         // in its heap plus one; 0: not there
}

// unqueue takes the fresh bytes of a task out of wherever they wait.
func (t *task) unqueue() {
	p := &t.queue
	if p.in != nil {
		p.in.depth--
		p.in.bytes -= t.spec.Length - t.cursor
		if p.slot > 0 {
			heap.Remove(&p.in.urgent, p.slot-1)
		}
		p.in = nil
	}
	p.Node.Unlink()
}

// hurried is a task in a heap.
type hurried struct {
	start clock.Time // latest begin
	order int64      // among equals
	task  *task
}

// bySlack is a heap of tasks, least slack on top.
type bySlack []hurried

func (h bySlack) Len() int { return len(h) }

func (h bySlack) Less(i, j int) bool {
	return h[i].start < h[j].start || (h[i].start == h[j].start && h[i].order < h[j].order)
}

func (h bySlack) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].task.queue.slot, h[j].task.queue.slot = i+1, j+1
}

// Push takes the entry that hurry has put behind the end: an interface around one would be an allocation.
func (h *bySlack) Push(any) {
	*h = (*h)[:len(*h)+1]
	(*h)[len(*h)-1].task.queue.slot = len(*h)
}

func (h *bySlack) Pop() any {
	last := len(*h) - 1
	(*h)[last].task.queue.slot = 0
	(*h)[last] = hurried{}
	*h = (*h)[:last]
	return nil
}

// queueByDeadline puts a task where its slack belongs, behind (front: before) others of the same.
func (c *Core) queueByDeadline(l *link, q *classQueue, t *task, front bool) {
	c.arrivals++
	e := hurried{start: t.spec.Deadline - clock.Time(t.needs(l.bestRate())), order: c.arrivals, task: t}
	if front {
		e.order = -e.order
	}
	q.urgent = append(q.urgent, e)[:len(q.urgent)]
	heap.Push(&q.urgent, nil)
}

// needs is the time for which the unsent bytes of a task keep rails busy; 0 if their rate is not known.
func (t *task) needs(rate float64) time.Duration {
	if rate == 0 {
		return 0
	}
	return time.Duration(float64(t.spec.Length-t.cursor) / rate * 1e9)
}

// bestRate is the sum of the highest rates of a link's usable rails, in bytes/s; 0 if one of them is not known. An
// alternate that has carried nothing counts for nothing: it shares its ends with others.
func (l *link) bestRate() (rate float64) {
	for _, r := range l.rails {
		if r == nil || !r.usable() {
			continue
		}
		best := r.meter.MaxBandwidth()
		if best == 0 && !r.info.Alternates {
			return 0
		}
		rate += best
	}
	return rate
}

// rateHeadroom is the factor by which rails may turn out faster than ever before. A request that would be too late even
// then is not sent; a smaller factor would refuse requests that could have made it.
const rateHeadroom = 2

// dropHopeless ends the tasks at the heads of a link's classes that cannot meet their deadline any more, before they
// use the link for nothing. It reports false when the step has done enough.
func (c *Core) dropHopeless(l *link, now clock.Time) bool {
	for class := range l.queues {
		for q := &l.queues[class]; len(q.urgent) > 0; {
			t := q.urgent[0].task
			err := c.hopeless(t, now)
			if err == nil {
				break
			}
			if c.cuts++; c.cuts > cutsMost {
				return false
			}
			c.countersOf(t).Infeasible += uint64(t.spec.requests())
			c.endTask(t, TimedOut, err, now)
		}
	}
	return true
}

// hopeless is the error of a task that would miss its deadline on each of its routes that is there. It is nil if the
// task may make it or nobody knows.
func (c *Core) hopeless(t *task, now clock.Time) *errs.Error {
	left := t.spec.Due().Sub(now)
	needed := time.Duration(0)
	for i := range t.spec.Plan.Routes {
		route := &t.spec.Plan.Routes[i]
		if !fits(&t.spec, i) || c.fitness(t, route) >= fitUnusable {
			continue
		}
		least := t.needs(c.routeRate(route)) / rateHeadroom
		if least <= left {
			return nil
		}
		if needed == 0 || least < needed {
			needed = least
		}
	}
	if needed == 0 {
		return nil
	}
	name, peer := c.transportName(t.path().Transport), ""
	if l := c.link(t.path().Across().Link); l != nil {
		peer = l.peer.name
	}
	return errs.New(errs.Timeout, "transfer", "the deadline cannot be met: %d bytes take at least %v, and %v are left",
		t.spec.Length-t.cursor, needed.Round(time.Microsecond), max(left, 0).Round(time.Microsecond)).
		WithHint("deadline_bw_arbitration of the transport is on; off, such a request is sent until its deadline").
		WithPeer(peer, name, "")
}

// routeRate is the best rate of the slowest hop of a route; 0 if one is not known.
func (c *Core) routeRate(route *plan.Route) (rate float64) {
	for i := range route.Hops {
		l := c.link(route.Hops[i].Link)
		if l == nil {
			return 0
		}
		if best := l.bestRate(); i == 0 || best < rate {
			rate = best
		}
	}
	return rate
}

// endIfLate ends the next task of a rail if its deadline has passed. That happens in a step in which more tasks have
// reached theirs than a step ends: none of them is sent.
func (c *Core) endIfLate(p *piece, t *task, now clock.Time) bool {
	if p != nil {
		t = p.task
	}
	if t.spec.Due() > now {
		return false
	}
	c.endTask(t, TimedOut, c.lateFor(t), now)
	return true
}

// Stages at which a deadline is missed.
const (
	MissedQueued = iota // nothing of the request was ever sent
	MissedSent
	MissedStages
)

// missesEvery is the least time between two events about one peer. There may be a million misses a second.
const missesEvery = 100 * time.Millisecond

// countMisses counts requests of a task that a deadline has ended. One event is about the first of them, and another
// one about those that follow closely.
func (c *Core) countMisses(t *task, n uint64, now clock.Time) {
	stage := MissedSent
	if t.attempts == 0 {
		stage = MissedQueued
	}
	c.countersOf(t).Misses[stage] += n
	l := c.link(t.path().Across().Link)
	if l == nil {
		return
	}
	p := l.peer
	p.misses[stage] += int(n)
	p.missed = event.Event{Kind: event.DeadlineMissed, Time: now, Peer: p.name,
		Transport: c.transportName(t.path().Transport), Err: t.failure, Trace: t.batch.trace}
	if !p.telling {
		p.telling = true
		c.tellers = append(c.tellers, p)
	}
}

// emitMisses emits an event for each peer that has one due, with its misses since the last one.
func (c *Core) emitMisses(now clock.Time) {
	later := c.tellers[:0]
	for _, p := range c.tellers {
		if p.tellAt() > now {
			later = append(later, p)
			continue
		}
		e := p.missed
		e.N, e.M = p.misses[MissedQueued]+p.misses[MissedSent], p.misses[MissedQueued]
		c.emit(e)
		p.told, p.telling, p.misses, p.missed = now, false, [MissedStages]int{}, event.Event{}
	}
	clear(c.tellers[len(later):])
	c.tellers = later
}

// tellAt is when the next event about misses of the peer may be emitted.
func (p *peer) tellAt() clock.Time {
	if p.told == 0 {
		return 0
	}
	return p.told.Add(missesEvery)
}
