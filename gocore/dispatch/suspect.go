package dispatch

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/rail"
)

// Soft failure: a rail that is silent while bytes are outstanding on it.
//
//	up --silent for 3 times the expected------> up, asked: the transport is asked for unreported signs of life,
//	 ^                                           |  and another rail of the peer is probed if none has said anything
//	 |                                           v  nothing was found, the peer itself is there
//	 +--any sign of life---------------------- suspected: nothing new, stuck slices are withdrawn and hedged
//	                                             |  silent for CondemnAfter more
//	                                             v
//	                                           condemned, until a new generation
//
// When every rail of a peer is silent it is the peer that is slow or gone (presence.go), and nothing is rerouted: only
// after AttemptLimit its tasks try their next route, if they have one. So do those of a rail inside this host, which
// no other rail can prove dead: it is paused then. Silence is measured by a clock that stands still
// while this process was not let run (Core.lost). Suspecting is cheap, a wrong one costs some duplicates; condemning is
// late, and waits while the peer is silent.
//
// The expected silence is the longer of two times (rail.Meter.Silence): the longest recent silence of the busy rail,
// and its next slice at its rate. So where answers of a rail come late, doubt learns. Silence while this process was
// not let run teaches nothing, nor does one of all rails at once (standstill.go): three times one such pause would
// be the time for which the next rail that breaks is trusted.

// misjudgedWithin bounds the time after a suspicion in which a sign of life means that such silence is usual. A rail
// that speaks again so soon was late, not broken.
const misjudgedWithin = 50 * time.Millisecond

// recheckFactor times SuspectAfter is the longest pause before another look at a busy rail: its limit may have fallen
// meanwhile.
const recheckFactor = 4

// awake is the detector's clock: it stands still while this process is stopped, or not let run. All limits count by it
// that are nobody's deadline: a stop of ours is no peer's fault, and the limits wait for a verdict of the detector, so
// they must not be faster. Deadlines are their users' and count by the wall clock.
func (c *Core) awake(now clock.Time) clock.Time {
	c.wakeUp(now)
	return now - c.lost
}

// wall is when the detector's clock will show a time, if this process is let run until then.
func (c *Core) wall(awake clock.Time) clock.Time { return awake + c.lost }

// wakeUp notes the time for which a step was due and did not come. It comes before all news, which would be taken for
// late.
func (c *Core) wakeUp(now clock.Time) {
	c.last = max(c.last, now)
	late := now - c.promised
	if c.promised == 0 || late <= clock.Time(clockStallMin) {
		return
	}
	c.promised = 0
	c.lost += late
	if late >= resumeLeast {
		c.resumeMeters(now)
	}
}

// resumeLeast is the length of a stop from which the samples of rates begin anew.
const resumeLeast = clock.Time(100 * time.Millisecond)

// resumeMeters begins the samples of all rails and NICs anew after one long stop.
func (c *Core) resumeMeters(now clock.Time) {
	for _, d := range c.devices {
		d.meter.Resume(now)
	}
	for _, l := range c.links {
		if l == nil {
			continue
		}
		for _, r := range l.rails {
			if r != nil {
				r.meter.Resume(now)
			}
		}
	}
}

// watchRail is the rail's timer.
func (c *Core) watchRail(r *railState, now clock.Time) {
	switch state := r.life.State(); {
	case state == rail.Condemned:
		c.noteUnended(r, now)
		return
	case !state.Usable():
		return
	case !state.Healthy():
		c.tendRail(r, now)
		if r.life.State() != rail.Paused {
			return
		}
	}
	if r.slices == 0 {
		c.tendFull(r, now)
		c.probeIdle(r, now)
		return
	}
	c.resendPassed(r, now)
	limit := c.silenceOf(r)
	silent := c.awake(now).Sub(r.heard)
	switch {
	case silent < limit:
		r.asked = false
		// the limit may fall
		c.timers.SetSooner(&r.timer, now.Add(min(limit-silent, recheckFactor*r.link.options.SuspectAfter)))
	case !r.asked:
		c.askLiveness(r, now)
		c.timers.SetSooner(&r.timer, now.Add(max(limit/4, time.Millisecond)))
	default:
		c.judgeSilence(r, silent, now)
	}
}

// silenceOf is how long a rail may be silent before it is doubted.
func (c *Core) silenceOf(r *railState) time.Duration {
	head := r.flight.First()
	if head == nil || r.link.inside() {
		return c.options.CondemnAfter
	}
	expected := r.meter.Silence(head.Length)
	if r.heard == r.mute {
		return c.options.SilentAfter / 2
	}
	limit := c.options.CondemnAfter // a rail that has never delivered may be slow
	if expected != 0 {
		limit = min(max(r.link.options.SuspectAfter, 3*expected), max(limit, r.link.options.SuspectAfter))
	}
	if r.answered != 0 { // its peer is there, and has all bytes: forgottenAfter counts
		limit = min(limit, recheckFactor*r.link.options.SuspectAfter)
	}
	return limit
}

// inside reports whether this process and its kernel carry the bytes by themselves. Nothing lies between that could be
// cut: such a rail is silent when nobody let us run, or when a disk is slow. An order takes as long as the peer's own
// transfer, whose rails the peer watches.
func (l *link) inside() bool {
	return l.spec.Info != nil && (l.spec.Info.SameHost || l.spec.Info.Delegates)
}

// askLiveness looks for signs of life: of the rail, and of its peer if that has been silent, too.
func (c *Core) askLiveness(r *railState, now clock.Time) {
	r.asked = true
	c.out.AskLiveness = append(c.out.AskLiveness, r.question())
	if r.link.spokeBeside(r, c.silenceOf(r)) {
		return
	}
	for other := range r.link.peer.rails() {
		if other != r && other.link.spec.Probes && other.healthy() {
			c.probeRail(other, now)
			return
		}
	}
}

// judgeSilence decides about a rail that is silent and has shown no sign of life when it was asked.
func (c *Core) judgeSilence(r *railState, silent time.Duration, now clock.Time) {
	p, limit := r.link.peer, c.silenceOf(r)
	again := limit
	switch out, total := p.softOut(); {
	case p.presence == rail.Silent:
		r.asked, again = false, max(limit, silenceLook)
	case r.link.inside() || !r.link.spokeBeside(r, limit) || !r.replaceable():
		r.asked = false // it may be the peer: look again, and ask again
		if r.judged == 0 {
			again = max(limit/4, time.Millisecond) // another rail was probed: its answer comes at once
		}
	case rail.MayLeave(out, total, r.link.options.SoftOut), silent >= c.options.CondemnAfter:
		c.suspectRail(r, silent, now)
		return
	}
	switch limit := c.options.AttemptLimit; {
	case silent < limit:
		again = min(again, limit-silent)
	case r.judged < limit: // once in a silence
		c.leaveSilentRail(r, silent, now)
	}
	r.judged = max(r.judged, silent)
	c.timers.SetSooner(&r.timer, now.Add(again))
}

// beginSilence notes the last time, of the detector's clock, at which a rail owed no sign of life. Each silence is
// judged by itself.
func (r *railState) beginSilence(heard clock.Time) { r.heard, r.asked, r.judged = heard, false, 0 }

// spokeBeside reports whether the peer was heard on other rails while this one was silent for too long. The first half
// of its limit proves nothing: when a peer stops, its rails have their last words one after the other. Where nothing
// can be probed, any word counts.
func (l *link) spokeBeside(r *railState, limit time.Duration) bool {
	if !l.spec.Probes {
		return l.peer.heard > r.heard
	}
	return l.peer.heard > r.heard.Add(limit/2)
}

// softOut counts the rails of a peer that are up, and those of them that are out on soft signals.
func (p *peer) softOut() (out, total int) {
	for _, l := range p.links {
		out, total = out+l.up-l.good, total+l.up
	}
	return out, total
}

func (c *Core) suspectRail(r *railState, silent time.Duration, now clock.Time) {
	r.asked = false
	err := errs.New(errs.Lost, "rail", "silent for %v with %d bytes outstanding", silent, r.bytes).
		WithScope(errs.ScopeRail, errs.SideUnknown)
	c.totalsOf(r).errors++
	r.errors++
	c.lowerHealth(r, err, now)
	c.railEvent(event.Event{Kind: event.RailSuspected, Took: silent, Bytes: r.bytes, Err: err}, r, now)
	r.doubted = c.awake(now)
	c.observe(r, rail.Silenced, now)
	c.recallFlight(r, now)
	c.tendLink(r.link, now)
	c.tendRail(r, now)
}

// leaveSilentRail moves the tasks of a silent rail to their next route, if they have one. A rail that this process and
// its kernel serve alone is paused, or each task behind would wait as long: its silence is not its peer's.
func (c *Core) leaveSilentRail(r *railState, silent time.Duration, now clock.Time) {
	err := errs.New(errs.Timeout, "rail", "no sign of life for %v", silent)
	if !c.leaveRail(r, err, now) {
		return
	}
	c.recallFlight(r, now)
	if r.link.inside() && !r.link.spec.Info.Delegates {
		c.railFailed(r, rail.Deserted, c.attribute(err, r), now)
	}
}

// recallFlight sends the bytes in flight on a rail again by another way, and asks for the completions of their slices.
func (c *Core) recallFlight(r *railState, now clock.Time) {
	c.resendFlight(r, now)
	for a := r.flight.First(); a != nil; a = a.flight.After() {
		c.withdrawSlice(a)
	}
}

// replaceable reports whether the peer has another healthy rail.
func (r *railState) replaceable() bool {
	for other := range r.link.peer.rails() {
		if other != r && other.healthy() {
			return true
		}
	}
	return false
}

// resendFlight sends the bytes in flight on a rail again by another way. The slices stay out and hold up the end of
// their tasks until they complete, since until then they may still land; both copies carry the same bytes.
func (c *Core) resendFlight(r *railState, now clock.Time) {
	for a := r.flight.First(); a != nil; a = a.flight.After() {
		c.replaceSlice(a, now)
	}
}

// replaceSlice does so for one slice, once. Pieces of several hops are not replaced: their stage buffers cannot be
// written by two slices that mean different things.
func (c *Core) replaceSlice(a *attempt, now clock.Time) {
	if a.replaced {
		return
	}
	a.replaced = true
	for p := a.pieces; p != nil; p = p.sibling {
		t := p.task
		if p.state != pieceFlying || !t.live() || len(p.route.Hops) > 1 {
			continue
		}
		p.become(pieceReplaced)
		p.unpair() // the one that it replaced and that is still out is on its own now
		again := c.newPiece(t, p.offset, p.length)
		again.sent, again.original, p.replacement = p.sent, p, again
		again.tried = a.rail.bit()
		c.countersOf(t).Reroutes++
		c.queuePiece(again, false, now)
	}
}
