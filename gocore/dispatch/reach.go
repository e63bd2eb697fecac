package dispatch

import (
	"container/heap"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch/internal/intrusive"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
)

// Keys and rails: a NIC may not have taken a region, so a pair of keys works on some rails of a link only. The plan
// names them (plan.Hop.Rails), and a rail that refuses the keys of a task all the same is barred from the task. For
// such a task the link is as good as the rails that are left to it. When these are out, it takes another route or waits
// for them, though other rails work.
//
// Rails from index 63 on share a bit, so the keys work on all of them or on none.

// planned reports whether the plan has the rail for a hop.
func (r *railState) planned(hop *plan.Hop) bool { return hop.Rails == 0 || hop.Rails&r.bit() != 0 }

// reaches reports whether the keys of a hop work on the rail, as far as is known.
func (r *railState) reaches(t *task, hop *plan.Hop) bool {
	return r.planned(hop) && (t.barred&r.bit() == 0 || t.barredOn != hop.Link)
}

// isKeyed reports whether the task may not use every rail of a hop's link.
func (t *task) isKeyed(hop *plan.Hop) bool {
	return hop.Rails != 0 || t.barred != 0 && t.barredOn == hop.Link
}

// reached returns the best rank among the rails of the link that reach a hop, and the NICs and nodes of that rank.
func (l *link) reached(t *task, hop *plan.Hop) (rank int, nics, nodes uint64) {
	rank = rankNever
	for _, r := range l.rails {
		if r == nil || r.rank > rank || r.rank == rankNever || !r.reaches(t, hop) {
			continue
		}
		if r.rank < rank {
			rank, nics, nodes = r.rank, 0, 0
		}
		nics |= r.nics
		if node := r.numaNode(); node > 0 {
			nodes |= 1 << (node - 1)
		}
	}
	return rank, nics, nodes
}

// hopFitness is that of a hop's link, for a task that may not use every rail of it.
func (c *Core) hopFitness(t *task, hop *plan.Hop) fitness {
	fit := c.linkFitness(hop.Link)
	if fit >= fitDialing || !t.isKeyed(hop) {
		return fit
	}
	l := c.link(hop.Link)
	fit = fitUnusable
	if l.dialing {
		fit = fitDialing
	}
	for _, r := range l.rails {
		switch {
		case r == nil || !r.usable() || !r.reaches(t, hop):
		case r.healthy():
			return fitHealthy
		default:
			fit = fitUsable
		}
	}
	return fit
}

// fitnessOn is the fitness of the task's route as far as it goes over a link.
func (c *Core) fitnessOn(t *task, l *link) fitness {
	fit := c.linkFitness(l.id)
	hops := t.path().Hops
	for i := range hops {
		if hops[i].Link == l.id {
			fit = max(fit, c.hopFitness(t, &hops[i]))
		}
	}
	return fit
}

// noteKeys notes that work waits on the link which may not use every rail of it. If none of these can take it now, the
// next step looks for another route.
func (c *Core) noteKeys(l *link, t *task, hop *plan.Hop, now clock.Time) {
	if l.keyed && l.idle() {
		l.keyed = false
	}
	if !t.isKeyed(hop) {
		return
	}
	l.keyed = true
	if c.hopFitness(t, hop) > fitHealthy {
		c.timers.SetSooner(&l.timer, now)
	}
}

// tendKeyed looks after the tasks of a healthy link that may not use its healthy rails.
func (c *Core) tendKeyed(l *link, now clock.Time) {
	patience := c.options.LinkWait
	if l.fell > 0 {
		patience = min(c.options.Outage, c.options.Stall)
	}
	next, awake := clock.Never, c.awake(now)
	c.gather(l)
	for _, t := range c.scratch {
		if !t.live() {
			continue
		}
		fit := c.fitnessOn(t, l)
		if fit != fitUsable && fit != fitUnusable {
			continue
		}
		cause := errs.New(errs.PeerUnreachable, "transfer", "none of the rails on which this memory can be used is up").
			WithScope(errs.ScopeLink, errs.SideUnknown).
			WithHint("explain names them").WithPeer(l.peer.name, c.transportName(l.spec.Transport), "")
		due := max(t.queued, l.fell).Add(patience)
		switch {
		case c.leaveForBetter(t, l, cause, now) || fit == fitUsable: // a rail that is suspected speaks or is given up
		case due <= awake:
			c.endTask(t, Failed, cause, now)
		default:
			next = min(next, due)
		}
	}
	if next != clock.Never {
		c.timers.SetSooner(&l.timer, max(c.wall(next), now.Add(patience/16)))
	}
}

// aside is the work of a class that no rail of the link may take: those on which its keys work are out. It waits there
// until one of them is back (rerank), or its keys are replaced.
type aside struct {
	pieces intrusive.List[piece]
	tasks  intrusive.List[task]
}

// served reports whether some rail takes the slices of the task over a hop.
func (l *link) served(t *task, hop *plan.Hop) bool {
	rank, _, _ := l.reached(t, hop)
	return rank != rankNever
}

func (q *classQueue) setPieceAside(p *piece) {
	p.queue.Unlink()
	q.aside.pieces.PushBack(&p.queue, p)
}

func (q *classQueue) setTaskAside(t *task) {
	if t.queue.slot > 0 {
		heap.Remove(&q.urgent, t.queue.slot-1)
	}
	t.queue.Node.Unlink()
	q.aside.tasks.PushBack(&t.queue.Node, t)
}

// takeBack puts the work that was set aside before the rest of its class again, in its order.
func (c *Core) takeBack(l *link) {
	c.activate(l)
	for class := range l.queues {
		q := &l.queues[class]
		for p := q.aside.pieces.Last(); p != nil; p = q.aside.pieces.Last() {
			p.queue.Unlink()
			q.pieces.PushFront(&p.queue, p)
		}
		for t := q.aside.tasks.Last(); t != nil; t = q.aside.tasks.Last() {
			t.queue.Node.Unlink()
			c.queueFresh(l, q, t, true)
		}
	}
}

// mayReach reports whether a rail that the link has or had may still serve a hop of the task.
func (l *link) mayReach(t *task, hop *plan.Hop) bool {
	for _, r := range l.rails {
		if r != nil && r.reaches(t, hop) {
			return true
		}
	}
	return false
}

// barRail keeps a task away from a rail that refused its keys. The piece waits for another rail, or the task takes its
// next route. It is not the rail's failure, and since a rail is barred once, nothing comes round again.
func (c *Core) barRail(p *piece, r *railState, err *errs.Error, now clock.Time) {
	t, id := p.task, r.link.id
	if t.barredOn != id {
		before := c.link(t.barredOn)
		t.barred, t.barredOn = 0, id
		if before != nil { // its rails may take the task's work again that was set aside there
			c.takeBack(before)
		}
	}
	t.barred |= r.bit()
	if r.link.mayReach(t, p.way()) {
		c.countersOf(t).Reroutes++
		c.queuePiece(p, true, now)
		return
	}
	c.failover(t, c.blame(err, t, r), now)
}
