package dispatch

import (
	"cmp"
	"math"
	"slices"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/rail"
)

// An error leads to one of these consequences, by its scope; the text is never read.
//
//	collateral, withdrawn   again at once, counts against nothing
//	replaced key            again with the new one, see rekey.go; a try where it is not known yet
//	permanent               the task fails
//	slice                   again after a pause that doubles, at most Options.Retries times on a route, and on the last
//	                        one until no rail of the link is suspected
//	not here, slice or rail the keys do not work on this rail: another one at once, else as for link
//	rail                    a rail that has not failed it in this round at once; when all have, as for slice. The
//	                        breaker and the health of the rail hear of it
//	link, transport         the next route, at most Options.Failovers times a task
//
// Routes are tried in a circle, because a link that failed may be back when the others have failed; the budget ends it.

// spareMost bounds how often a piece may fail by others' fault before its failures count as its own: even so, nothing
// spins.
const spareMost = 32

// retryPiece decides about a piece after its attempt failed. The piece is idle, its task is live.
func (c *Core) retryPiece(p *piece, r *railState, err *errs.Error, now clock.Time) {
	t := p.task
	if p.index != t.route { // its task went another way meanwhile
		c.rewindPiece(p)
		c.queuePiece(p, false, now)
		return
	}
	if (err.Collateral || err.Code == errs.Withdrawn || err.Code == errs.StaleGeneration) && p.spared < spareMost {
		p.spared++
		c.queuePiece(p, true, now)
		return
	}
	if err.Code == errs.NotHere && err.Scope <= errs.ScopeRail {
		c.barRail(p, r, err, now)
		return
	}
	if final(err) {
		c.endTask(t, Failed, nameRegion(c.blame(err, t, r), t), now)
		return
	}
	if err.Scope >= errs.ScopeLink {
		c.failover(t, c.blame(err, t, r), now)
		return
	}
	counters := c.countersOf(t)
	if err.Scope == errs.ScopeRail {
		again := p.wasOn(r) // others were busy for long
		p.tried |= r.bit()
		p.lastRound = int(p.tries) >= c.options.Retries
		if !again && r.link.untried(p) {
			counters.Reroutes++
			c.queuePiece(p, true, now)
			return
		}
		if r.link.good == 0 && c.leaveForBetter(t, r.link, c.blame(err, t, r), now) {
			return
		}
	}
	p.tried = 0 // the round is over: every rail had its chance
	if int(p.tries) >= c.options.Retries && !c.awaitsVerdict(t, r.link) {
		c.failover(t, c.blame(err, t, r), now)
		return
	}
	p.tries = min(p.tries, math.MaxUint8-1) + 1
	counters.Retries++
	c.parkPiece(p, now)
}

// awaitsVerdict reports whether a task has no other way than its link, and a rail there is suspected. That one speaks
// soon or is condemned, so this ends: a healthy path may be left until then.
func (c *Core) awaitsVerdict(t *task, l *link) bool {
	suspected := func(r *railState) bool { return r != nil && r.life.State() == rail.Suspected }
	if !slices.ContainsFunc(l.rails, suspected) {
		return false
	}
	next, _ := c.nextRoute(t, false)
	return next < 0
}

// final reports an error of an attempt that no other attempt can mend. TIMEOUT is one for a task, not for an attempt.
func final(err *errs.Error) bool { return err.Permanent() && err.Code != errs.Timeout }

// parkPiece lets a piece wait before its next try, the longer the more often it has failed.
func (c *Core) parkPiece(p *piece, now clock.Time) {
	c.parkPieceFor(p, min(int(p.tries)-1, retryRungs-1), now)
}

func (c *Core) parkPieceFor(p *piece, rung int, now clock.Time) {
	p.due = now.Add(c.options.RetryAfter << rung)
	p.become(pieceParked)
	c.parked[rung].PushBack(&p.queue, p)
}

// wakeParked queues the pieces that have paused for long enough.
func (c *Core) wakeParked(now clock.Time) {
	for i := range c.parked {
		for p := c.parked[i].First(); p != nil && p.due <= now; p = c.parked[i].First() {
			c.queuePiece(p, false, now)
		}
	}
}

// failover moves a task to its next route, or ends it. A piece of it has just failed and is nowhere.
func (c *Core) failover(t *task, err *errs.Error, now clock.Time) {
	next, refused := c.nextRoute(t, err.Scope == errs.ScopeTransport)
	if next >= 0 {
		c.switchRoute(t, next, err, now)
		return
	}
	c.emit(event.Event{Kind: refused, Time: now, From: c.transportName(t.path().Transport), Peer: err.Peer,
		Transport: err.Transport, Rail: err.Rail, N: int(t.failovers), M: c.options.Failovers, Err: err,
		Trace: t.batch.trace})
	c.endTask(t, Failed, err, now)
}

// leaveForBetter moves a task away from a link that does not serve it, if there is a better route and budget.
func (c *Core) leaveForBetter(t *task, l *link, err *errs.Error, now clock.Time) bool {
	next, _ := c.nextRoute(t, false)
	if next < 0 || c.fitness(t, &t.spec.Plan.Routes[next]) >= c.fitnessOn(t, l) {
		return false
	}
	c.switchRoute(t, next, err, now)
	return true
}

// nextRoute returns the fittest route behind the current one, in a circle, or -1 and the event that says why there is
// none. Either no route has a chance, or the task's failovers are used up. This is the only test of that budget.
// elsewhere excludes routes of the same transport.
func (c *Core) nextRoute(t *task, elsewhere bool) (next int, refused event.Kind) {
	routes := t.spec.Plan.Routes
	best, rank := -1, fitUnusable
	for k := 1; k < len(routes); k++ {
		i := (int(t.route) + k) % len(routes)
		if !fits(&t.spec, i) || (elsewhere && routes[i].Transport == t.path().Transport) {
			continue
		}
		if fit := c.fitness(t, &routes[i]); fit < rank {
			best, rank = i, fit
		}
	}
	switch {
	case best < 0:
		return -1, event.FailoverNoRoute
	case int(t.failovers) >= c.options.Failovers:
		return -1, event.FailoverExhausted
	}
	return best, 0
}

// switchRoute carries out a failover: the waiting pieces of the task go to the new route. Those that are out stay out,
// and are not sent again if they arrive.
func (c *Core) switchRoute(t *task, next int, err *errs.Error, now clock.Time) {
	from := t.path().Transport
	c.activateRoute(t)
	t.route, t.replaced = uint8(next), 0
	to := t.path().Transport
	t.failovers++
	t.batch.failovers++
	t.batch.moved = err
	c.failovers[from][to]++
	c.noteChange(t.batch)
	c.emit(event.Event{Kind: event.Failover, Time: now, Peer: err.Peer, Transport: c.transportName(from),
		Rail: err.Rail, From: c.transportName(from), To: c.transportName(to), N: int(t.failovers),
		M: c.options.Failovers, Err: err, Trace: t.batch.trace})
	for p := t.pieces.First(); p != nil && t.live(); p = p.mine.After() {
		if !p.state.out() {
			c.rewindPiece(p)
			c.queuePiece(p, false, now)
		}
	}
	if t.live() && t.cursor < t.spec.Length {
		t.unqueue()
		c.queueTask(t, false, now)
	}
}

// blame is attribute for a task.
func (c *Core) blame(err *errs.Error, t *task, r *railState) *errs.Error {
	return c.attribute(c.blameLink(err, t, r.link), r)
}

// blameLink fills in peer and transport of an error of a link, where they have been left out. A hop that stays in this
// engine has ourselves as its peer: an error of it names the peer that the task is for.
func (c *Core) blameLink(err *errs.Error, t *task, l *link) *errs.Error {
	peer, by := cmp.Or(err.Peer, l.peer.name), cmp.Or(err.Transport, c.transportName(l.spec.Transport))
	if route := t.path(); len(route.Hops) > 1 && route.Across().Link != l.id {
		if across := c.link(route.Across().Link); across != nil {
			peer = across.peer.name
		}
	}
	if peer == err.Peer && by == err.Transport {
		return err
	}
	named := *err
	return named.WithPeer(peer, by, err.Rail)
}

// attribute fills in peer, transport and rail of an error, where the transport has left them out.
func (c *Core) attribute(err *errs.Error, r *railState) *errs.Error {
	if err.Peer != "" && err.Transport != "" && err.Rail != "" {
		return err
	}
	full := *err
	return full.WithPeer(cmp.Or(err.Peer, r.link.peer.name),
		cmp.Or(err.Transport, c.transportName(r.link.spec.Transport)), cmp.Or(err.Rail, r.name()))
}
