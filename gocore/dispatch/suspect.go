package dispatch

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
)

// Soft failure: a rail that is silent while bytes are outstanding on it.
//
//	fine --silent for 3 times the expected finish, others of its peer are not--> suspected: nothing new, what is stuck is
//	  ^                                                                           withdrawn and goes over another rail too
//	  +--any sign of life----------------------------------------------------------+
//	                                                 silent for CondemnAfter more: fenced, until a new generation
//
// When every rail of a peer is silent it is the peer that is slow or gone, and nothing is rerouted. When this process was
// not running itself, silence proves nothing.

// watchRail is the rail's timer.
func (c *Core) watchRail(r *railState, now clock.Time) {
	if !r.usable() || (r.slices == 0 && !r.suspected) {
		return
	}
	limit := c.options.CondemnAfter // a rail that has never delivered may be slow
	if expected := r.meter.Expect(r.bytes); expected > 0 {
		limit = max(c.options.SuspectAfter, 3*expected)
	}
	switch {
	case c.slept: // whatever has come meanwhile is told to the core in this moment
		c.timers.set(&r.timer, now.Add(limit/2))
		return
	case r.suspected:
		if now.Sub(r.suspectedAt) >= c.options.CondemnAfter {
			c.fenceRail(r, now)
			return
		}
	case now.Sub(r.progress) >= limit && r.link.peer.progress >= r.progress.Add(limit/2) && c.elsewhere(r, now):
		r.suspected, r.suspectedAt = true, now
		c.railEvent(event.RailSuspected, r, errs.New(errs.Timeout, "rail", "silent for %v with %d bytes outstanding",
			now.Sub(r.progress), r.bytes).WithScope(errs.ScopeRail, errs.SidePath), now)
		c.abandon(r, now)
		for a := r.flight.first(); a != nil; a = a.flight.after() {
			c.withdraw(a)
		}
		c.tend(r.link, now)
	}
	next := r.progress.Add(limit)
	if r.suspected {
		next = r.suspectedAt.Add(c.options.CondemnAfter)
	}
	if next <= now {
		next = now.Add(limit)
	}
	c.timers.set(&r.timer, next)
}

// elsewhere reports whether the peer has another healthy rail.
func (c *Core) elsewhere(r *railState, now clock.Time) bool {
	for _, l := range r.link.peer.links {
		for _, other := range l.rails {
			if other != nil && other != r && other.healthy(now) {
				return true
			}
		}
	}
	return false
}

// abandon has what is outstanding on a rail sent again by another way. The slices stay out and hold up the end of their
// tasks until they complete, since until then they may still land; both copies carry the same bytes. Pieces of several
// hops are not abandoned: their stage buffers cannot be written by two slices that mean different things.
func (c *Core) abandon(r *railState, now clock.Time) {
	for a := r.flight.first(); a != nil; a = a.flight.after() {
		if a.abandoned {
			continue
		}
		a.abandoned = true
		for p := a.pieces; p != nil; p = p.sibling {
			t := p.task
			if t == nil || p.void || !t.live() || len(p.route.Hops) > 1 {
				continue
			}
			p.void = true
			again := c.newPiece(t, p.offset, p.length)
			again.sent, again.twin, p.twin = p.sent, p, again
			c.countersOf(t).Reroutes++
			c.queuePiece(again, false, now)
		}
	}
}
