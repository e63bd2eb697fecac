package dispatch

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/rail"
)

// A transport that stands still is named by the event TransportStuck, once each time. It owes one of three things:
//
//	its return from Withdraw   the tasks behind it may not end before: it may be at their memory (decision 0201)
//	the end of a fenced rail   its tasks take another rail or route; a link that has none keeps the cause for its error
//	Ready of a full rail       the rail is tried again after CondemnAfter without; after AttemptLimit its tasks leave
//
// A rail is full when it took less than it was given. While slices are out on it, their ends make room, and their
// silence is watched (suspect.go).

// Notes of TransportStuck.
const (
	stuckWithdrawal = "a withdrawal has not come back"
	stuckFence      = "a fenced rail has not ended"
	stuckFull       = "a rail with nothing on its way takes nothing"
)

func (c *Core) railStuck(r *railState, note string, took time.Duration, now clock.Time) {
	c.railEvent(event.Event{Kind: event.TransportStuck, Note: note, Took: took, Bytes: r.bytes}, r, now)
}

// noteStuck says, once, that a transport does not come back from a withdrawal.
func (c *Core) noteStuck(r *railState, now clock.Time) {
	took := c.awake(now).Sub(r.recalling)
	if took < c.options.CondemnAfter {
		return
	}
	r.recalling = clock.Never
	c.railStuck(r, stuckWithdrawal, took, now)
}

// awaitEnd makes a rail that was fenced be looked at when it should have ended.
func (c *Core) awaitEnd(r *railState, now clock.Time) {
	r.fencedAt = c.awake(now)
	c.timers.Set(&r.timer, now.Add(max(c.fenceBound(boundOf(r.link)), c.options.CondemnAfter)))
}

// noteUnended says that a transport has not ended a rail that was fenced.
func (c *Core) noteUnended(r *railState, now clock.Time) {
	took := c.awake(now).Sub(r.fencedAt)
	c.railStuck(r, stuckFence, took, now)
	if l := r.link; l.up == 0 && l.cause == nil {
		l.cause = errs.New(errs.Timeout, "rail", "the transport has not ended its last rail, which was fenced %v ago",
			took.Round(time.Millisecond)).WithScope(errs.ScopeLink, errs.SideLocal)
	}
}

// fill notes that a rail has refused a slice.
func (c *Core) fill(r *railState, now clock.Time) {
	before := r.filled
	r.full, r.filled = true, c.awake(now)
	if r.refusing == 0 || r.filled.Sub(before) > 2*c.options.CondemnAfter { // nothing was given to it meanwhile
		r.refusing = r.filled
	}
	if r.slices == 0 && r.life.State() != rail.Suspected && r.usable() {
		c.timers.SetSooner(&r.timer, now.Add(c.options.CondemnAfter))
	}
}

// tendFull looks after a full rail on which nothing is out.
func (c *Core) tendFull(r *railState, now clock.Time) {
	awake := c.awake(now)
	told := r.refusing == clock.Never
	if took := r.filled.Sub(r.refusing); r.refusing != 0 && !told && took >= c.options.AttemptLimit {
		r.refusing = clock.Never
		c.railStuck(r, stuckFull, took, now)
		c.leaveRail(r, errs.New(errs.Timeout, "rail", "it takes nothing for %v, with nothing on its way", took), now)
	}
	switch again := r.filled.Add(c.options.CondemnAfter); {
	case !r.full:
	case awake < again:
		c.timers.SetSooner(&r.timer, c.wall(again))
	default:
		r.full = false
		c.activate(r.link)
	}
}

// accepted notes that a rail has taken a slice after all.
func (r *railState) accepted() { r.refusing = 0 }

// leaveRail moves the tasks of a rail to their next route, if they have one, and reports whether there were some. An
// attempt that takes so long has failed, with any cause. Slices that are out stay out, and hold up the end of their
// task as ever.
func (c *Core) leaveRail(r *railState, err *errs.Error, now clock.Time) (moved bool) {
	err = c.attribute(err.WithScope(errs.ScopeLink, errs.SideUnknown), r)
	c.gatherAll(r.link)
	for _, t := range c.scratch {
		if !t.live() || t.path().Across().Link != r.link.id {
			continue
		}
		if next, _ := c.nextRoute(t, false); next >= 0 {
			c.switchRoute(t, next, err, now)
			moved = true
		}
	}
	return moved
}
