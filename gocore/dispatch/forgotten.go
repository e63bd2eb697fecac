package dispatch

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/rail"
)

// A slice is forgotten when its transport or the peer has lost it, or when its connection is stuck among others of its
// rail. The rail goes on, so no silence of it shows that. Two signs do:
//
//	passed    slices of its class that were posted behind it have come back, of as many bytes as its own
//	answered  a rail on which nothing else comes back answers a probe: the peer is there, and its slice is not
//
// Behind such a sign a slice has three times as long as its rail takes for the bytes in flight (forgottenAfter). Then
// it is withdrawn, and its bytes are sent again. Each copy waits twice as long, up to CondemnAfter. A forgotten slice
// does not claim the progress of its rail, so a task ends by the stall limit where each copy is lost, and takes its
// next route before (AttemptLimit).
//
// Slices of a peer that stands still are passed by none, and its probes are not answered. More urgent ones count for
// nothing: they may be served first, also at the peer.

// forgottenDoublings bounds how often the time of a slice doubles with its copies.
const forgottenDoublings = 6

// isPassed reports whether slices that were posted behind this one on its rail have come back, of as many bytes as its
// own. Those of its class alone count: others may be served first, also at the peer.
func (a *attempt) isPassed() bool {
	return a.rail.brought[a.Class]-a.brought >= a.ahead+a.Length
}

// forgottenAfter is how long a slice has behind a sign that it is forgotten. A rail that has lost slices is believed to
// be slower than it is, so CondemnAfter bounds it.
func (c *Core) forgottenAfter(a *attempt) time.Duration {
	r, most := a.rail, min(c.options.CondemnAfter, c.options.Stall/4)
	if r.link.inside() {
		return most
	}
	expected := max(time.Duration(r.meter.Finish(a.ahead, false, c.last)), r.meter.Silence(a.Length))
	least := min(max(recheckFactor*r.link.options.SuspectAfter, 3*expected), most)
	return min(least<<min(max(a.tries()-1, 0), forgottenDoublings), most)
}

// resendPassed sends the bytes of slices again that others have passed for too long. A busy rail is looked at every
// recheckFactor times SuspectAfter.
func (c *Core) resendPassed(r *railState, now clock.Time) {
	if r.link.peer.presence == rail.Silent {
		return
	}
	awake := c.awake(now)
	for a := r.flight.First(); a != nil; a = a.flight.After() {
		switch {
		case awake.Sub(a.begun) < r.link.options.SuspectAfter: // as all behind it
			return
		case a.state != attemptOut || !a.isPassed():
		case a.passed == 0:
			a.passed = awake
		case awake.Sub(a.passed) >= c.forgottenAfter(a):
			c.resendForgotten(a, now)
		}
	}
}

// askItself probes a rail that was asked for signs of life, where nobody else can speak for it. No other rail of its
// peer is healthy, and there are no news; or all are silent, and the news may be those of its system. That has all
// bytes of the rail, as far as is known.
func (c *Core) askItself(r *railState, news bool, now clock.Time) {
	if r.slices > 0 && r.link.spec.Probes && (r.link.peer.asked || !news && !r.replaceable()) {
		c.probeRail(r, now)
	}
}

// probeAnswered sends the bytes of slices again that a rail still has, although it answers. Behind the first answer
// they may just be on their way: the peer may have stood still.
func (c *Core) probeAnswered(r *railState, now clock.Time) {
	awake := c.awake(now)
	if r.slices > 0 && r.answered == 0 {
		r.answered = awake
	}
	for a := r.flight.First(); a != nil; a = a.flight.After() {
		if a.state == attemptOut && awake.Sub(max(a.begun, r.answered)) >= c.forgottenAfter(a) {
			c.resendForgotten(a, now)
		}
	}
}

// resendForgotten withdraws a slice and sends its bytes once more, by their next route if they wait for so long.
func (c *Core) resendForgotten(a *attempt, now clock.Time) {
	a.forgotten = true
	a.rail.meter.Resume(now) // the silence is the slice's: no limit grows by it
	for p := a.pieces; p != nil; p = p.sibling {
		c.leaveForgotten(p.task, a.rail, now)
	}
	c.withdrawSlice(a)
	c.replaceSlice(a, now)
}

// leaveForgotten moves a task of which a rail loses all copies to its next route.
func (c *Core) leaveForgotten(t *task, r *railState, now clock.Time) {
	waits := c.awake(now).Sub(t.progress)
	if waits < c.options.AttemptLimit || !t.live() || t.path().Across().Link != r.link.id {
		return
	}
	if next, _ := c.nextRoute(t, false); next >= 0 {
		err := errs.New(errs.Timeout, "rail", "probes are answered, and slices are not, for %v", waits)
		c.switchRoute(t, next, c.attribute(err.WithScope(errs.ScopeLink, errs.SideUnknown), r), now)
	}
}
