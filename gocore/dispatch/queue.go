package dispatch

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch/internal/intrusive"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/rail"
)

// startTask puts a new task into the queue of its first route that can be used. It returns the task where that is the
// first one of the plan and healthy: then others may follow it by queueBehind.
func (c *Core) startTask(t *task, now clock.Time) *task {
	route, fit := c.firstRoute(t)
	t.route = uint8(route)
	c.queueTask(t, false, now)
	if route != 0 || fit != fitHealthy {
		return nil
	}
	return t
}

// queueBehind puts a new task into the queue of one that began just before it, and reports whether it may go there.
// Nothing has changed since then, so that neither routes nor the link are asked again.
func (c *Core) queueBehind(t, before *task, now clock.Time) bool {
	q := before.queue.in
	if q == nil || before.queue.slot != 0 || t.spec.Plan != before.spec.Plan || t.spec.Class != before.spec.Class ||
		t.spec.Deadline != before.spec.Deadline || !fits(&t.spec, 0) {
		return false
	}
	t.queued, t.queue.in = c.awake(now), q
	q.depth++
	q.bytes += t.spec.Length
	q.tasks.PushBack(&t.queue.Node, t)
	return true
}

// firstRoute prefers a route that is healthy, then one that has rails, then one that may still get some. Among equals
// the order of the plan decides. When nothing is left, the task waits for its first route. best is -1 if none fits.
func (c *Core) firstRoute(t *task) (best int, rank fitness) {
	best, rank = -1, fitUnusable
	for i := range t.spec.Plan.Routes {
		if !fits(&t.spec, i) {
			continue
		}
		if k := c.fitness(t, &t.spec.Plan.Routes[i]); best < 0 || k < rank {
			best, rank = i, k
			if k == fitHealthy {
				break
			}
		}
	}
	return best, rank
}

// FirstRoute is the index of the route with which a request would begin now.
func (c *Core) FirstRoute(s *TaskSpec) int {
	route, _ := c.firstRoute(&task{spec: *s})
	return max(0, route)
}

// fitness of a route, the better the smaller.
type fitness int

const (
	fitHealthy  fitness = iota
	fitUsable           // rails are up, but suspected or paused
	fitDialing          // no rail yet
	fitUnusable         // down
)

// fitness of a route is that of its worst hop.
func (c *Core) fitness(t *task, r *plan.Route) fitness {
	worst := fitHealthy
	for i := range r.Hops {
		worst = max(worst, c.hopFitness(t, &r.Hops[i]))
	}
	return worst
}

func (c *Core) linkFitness(id plan.LinkID) fitness {
	l := c.link(id)
	switch {
	case l == nil || l.peer.gone != nil:
		return fitUnusable
	case l.healthy():
		return fitHealthy
	case l.up > 0:
		return fitUsable
	case l.dialing:
		return fitDialing
	}
	return fitUnusable
}

func (l *link) healthy() bool { return l.good > 0 }

// queueTask puts a task with fresh bytes behind the others of its class on the first link of its route; with front,
// before them. Where deadlines decide it goes to the place of its own.
func (c *Core) queueTask(t *task, front bool, now clock.Time) {
	hop := t.begin()
	l := c.linkFor(t, hop.Link, now)
	if l == nil {
		return
	}
	c.noteKeys(l, t, hop, now)
	c.queued(l, t, now)
	q := &l.queues[t.spec.Class]
	t.queue.in = q
	q.depth++
	q.bytes += t.spec.Length - t.cursor
	c.queueFresh(l, q, t, front)
}

// queueFresh finds a task its place in the queue of its class, which has it in its books.
func (c *Core) queueFresh(l *link, q *classQueue, t *task, front bool) {
	switch {
	case l.byDeadline && t.spec.Deadline != 0:
		c.queueByDeadline(l, q, t, front)
	case front:
		q.tasks.PushFront(&t.queue.Node, t)
	default:
		q.tasks.PushBack(&t.queue.Node, t)
	}
}

// queuePiece puts a piece that waits before the fresh bytes of its class; front: before other pieces, too.
func (c *Core) queuePiece(p *piece, front bool, now clock.Time) {
	t := p.task
	l := c.linkFor(t, p.way().Link, now)
	if l == nil {
		return
	}
	p.become(pieceQueued)
	c.noteKeys(l, t, p.way(), now)
	c.queued(l, t, now)
	q := &l.queues[t.spec.Class].pieces
	if front {
		q.PushFront(&p.queue, p)
	} else {
		q.PushBack(&p.queue, p)
	}
}

// linkFor returns the link of a hop, or nil when it has seen to the whole task. Without its link a task takes another
// route or fails, without its peer it fails.
func (c *Core) linkFor(t *task, id plan.LinkID, now clock.Time) *link {
	l := c.link(id)
	switch {
	case l == nil:
		c.failover(t, errClosed, now)
		return nil
	case l.peer.gone != nil:
		c.endTask(t, Failed, l.peer.gone, now)
		return nil
	}
	return l
}

var errClosed = errs.New(errs.NoRoute, "transfer", "the link was closed").WithScope(errs.ScopeLink, errs.SideLocal)

// queued keeps the link's books when work of a task arrives.
func (c *Core) queued(l *link, t *task, now clock.Time) {
	t.queued = c.awake(now)
	l.peer.wanted = now
	c.voidBids()
	if l.peer.resting {
		c.resumeProbes(l.peer, now)
	}
	if class := t.spec.Class; l.queues[class].empty() {
		c.beginWaiting(l, int(class), now)
	}
	c.activate(l)
	if !l.timer.Armed() || l.up == 0 {
		limit, _ := c.patience(l)
		if l.up == 0 {
			limit = min(limit, c.options.LinkWait) // then it takes another way, if it has one
			c.expectAnswer(l.peer, now)
		}
		c.timers.SetSooner(&l.timer, now.Add(limit))
	}
}

// activateRoute marks the links of t's route active: removing t may let another task go.
func (c *Core) activateRoute(t *task) {
	hops := t.path().Hops
	for i := range hops {
		if l := c.link(hops[i].Link); l != nil {
			c.activate(l)
		}
	}
}

// gather lists the tasks that wait for a link in c.scratch.
func (c *Core) gather(l *link) {
	c.scratch = c.scratch[:0]
	c.gathering++
	for class := range l.queues {
		q := &l.queues[class]
		for _, pieces := range [...]*intrusive.List[piece]{&q.aside.pieces, &q.pieces} {
			for p := pieces.First(); p != nil; p = p.queue.After() {
				c.list(p.task)
			}
		}
		for _, tasks := range [...]*intrusive.List[task]{&q.aside.tasks, &q.tasks} {
			for t := tasks.First(); t != nil; t = t.queue.After() {
				c.list(t)
			}
		}
		for i := range q.urgent {
			c.list(q.urgent[i].task)
		}
	}
}

// list adds a task to c.scratch, once however many of its pieces wait: it must not be moved or ended twice.
func (c *Core) list(t *task) {
	if t.gathered != c.gathering {
		t.gathered = c.gathering
		c.scratch = append(c.scratch, t)
	}
}

// gatherAll lists also those that have slices outstanding there.
func (c *Core) gatherAll(l *link) {
	c.gather(l)
	for r := range l.records() {
		for a := r.flight.First(); a != nil; a = a.flight.After() {
			for p := a.pieces; p != nil; p = p.sibling {
				if p.task != nil {
					c.list(p.task)
				}
			}
		}
	}
}

// tendLink looks after a link that may be unable to serve its queues. Tasks that have a better route take it, those
// that have waited as long as they may for this one fail. It is called when rails go and by the link's timer.
//
// It looks at every task that waits, so it runs at most 16 times in the time that a task waits before it leaves.
func (c *Core) tendLink(l *link, now clock.Time) {
	if l.idle() {
		return
	}
	limit, since := c.patience(l)
	awake := c.awake(now)
	if l.up > 0 && l.healthy() && !l.peer.held() {
		if l.keyed {
			c.tendKeyed(l, now)
		}
		if awake.Sub(since) < limit {
			c.timers.SetSooner(&l.timer, c.wall(since.Add(limit)))
			return
		}
	}
	leave := (l.up == 0 && !l.dialing) || (l.up > 0 && !l.healthy())
	patience := limit // before a task takes another way, if it has one
	if l.up == 0 {
		patience = min(limit, c.options.LinkWait)
	}
	cause := c.whyWaiting(l, now)
	next := clock.Never
	c.gather(l)
	for _, t := range c.scratch {
		if !t.live() {
			continue
		}
		if l.up > 0 && !leave && t.watch.Linked() {
			continue // it is being served, which the stall limit watches
		}
		due := max(t.queued, since).Add(limit)
		elsewhere := due
		if l.up == 0 {
			elsewhere = min(due, t.queued.Add(patience))
		}
		switch {
		case (leave || elsewhere <= awake) && c.leaveForBetter(t, l, c.blameLink(cause, t, l), now):
		case due <= awake:
			c.endTask(t, Failed, c.blameLink(cause, t, l), now)
		case elsewhere > awake:
			next = min(next, elsewhere)
		default:
			next = min(next, due)
		}
	}
	if next != clock.Never {
		c.timers.SetSooner(&l.timer, max(c.wall(next), now.Add(patience/16)))
	}
}

// whyWaiting is the error of tasks that have waited too long for a link.
func (c *Core) whyWaiting(l *link, now clock.Time) *errs.Error {
	name := c.transportName(l.spec.Transport)
	switch {
	case l.peer.presence == rail.Silent:
		return c.silentError(l, now)
	case l.up == 0 && l.cause != nil:
		return l.cause
	case l.up == 0:
		limit, _ := c.patience(l)
		return errs.New(errs.PeerUnreachable, "transfer", "no rail came up within %v", limit).
			WithScope(errs.ScopeLink, errs.SideUnknown).WithHint("link_wait_ms and peer_outage_timeout are the limits").
			WithPeer(l.peer.name, name, "")
	case l.peer.held():
		return errs.New(errs.Timeout, "transfer",
			"the peer has not confirmed the withdrawal of %d earlier slices within %v",
			l.peer.engine.open, c.options.Stall).WithScope(errs.ScopeLink, errs.SideRemote).
			WithPeer(l.peer.name, name, "")
	}
	if !l.healthy() {
		return errs.New(errs.Timeout, "transfer", "all rails are suspected or paused").
			WithScope(errs.ScopeLink, errs.SideUnknown).WithPeer(l.peer.name, name, "")
	}
	return errs.New(errs.Timeout, "transfer", "no rail has taken anything within %v", c.options.Stall).
		WithScope(errs.ScopeLink, errs.SideUnknown).WithHint("transfer_stall_timeout is the limit").
		WithPeer(l.peer.name, name, "")
}
