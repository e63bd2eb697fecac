package dispatch

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/transport"
)

// What failures and successes do to rails, and how a rail that is out comes back.
//
//	in use --Threshold failures in Window--> paused --cooldown, success, good probes--> in use, by a ramp
//	       --silence (suspect.go)---------> suspected --sign of life, good probe------> in use
//	                                                  --CondemnAfter------------------> fenced, until a new generation
//
// Rails that are out are probed, where the transport can, as long as traffic wants their peer.

// Notes of RailRecovered; the first two are the failover seed's.
const (
	noteExpired  = "cooldown expired"
	noteSuccess  = "un-paused by successful transfer"
	noteProbes   = "probes answered"
	noteProgress = "sign of life"
)

// wantedFor is how long a peer counts as wanted after something was queued for it, in ns.
const wantedFor = 1e9

// fault notes a failure that is the rail's own, and that of the ends that are to blame.
func (c *Core) fault(r *railState, err *errs.Error, now clock.Time) {
	settings := &r.link.options.Settings
	c.totalsOf(r).errors++
	r.errors++
	c.demerit(r, err, now)
	if r.back.Ramping() {
		r.back.Begin()
		r.resize()
	}
	if !r.monitor.Fail(settings, now) {
		c.rerank(r.link, now)
		return
	}
	c.railEvent(event.Event{Kind: event.RailPaused, N: settings.Threshold, Took: r.monitor.Until().Sub(now), Err: err}, r, now)
	c.totalsOf(r).condemned++
	c.timers.set(&r.timer, now)
	c.rerank(r.link, now)
	c.tend(r.link, now)
}

// demerit lowers the health of a rail, and of those that share an end which is to blame.
func (c *Core) demerit(r *railState, err *errs.Error, now clock.Time) {
	settings := &r.link.options.Settings
	r.health.Lower(settings.Sensitivity)
	local, remote := c.culprits(r, err, now)
	if !local && !remote {
		return
	}
	for _, l := range c.links {
		if l == nil || l.spec.Transport != r.link.spec.Transport {
			continue
		}
		touched := false
		for _, other := range l.rails {
			if other == nil || other == r {
				continue
			}
			if (local && other.pair.Local == r.pair.Local) || (remote && other.pair.Peer == r.pair.Peer && other.pair.Remote == r.pair.Remote) {
				other.health.Lower(settings.Sensitivity)
				touched = true
			}
		}
		if touched {
			c.rerank(l, now)
		}
	}
}

// merit notes that a rail has delivered.
func (c *Core) merit(r *railState, bytes uint64, now clock.Time) {
	settings := &r.link.options.Settings
	if r.health.Raise(settings.Recovery, settings.Sensitivity) {
		c.rerank(r.link, now)
	}
	if r.back.Ramping() {
		r.back.Delivered(bytes)
		r.resize()
	}
	if r.monitor.Succeed(now) {
		c.recover(r, noteSuccess, now)
	}
}

// resize sets what may be in flight on a rail that ramps.
func (r *railState) resize() { r.bytesMax = r.back.Window(r.bytesWhole) }

// recover has a rail carry again.
func (c *Core) recover(r *railState, note string, now clock.Time) {
	c.railEvent(event.Event{Kind: event.RailRecovered, Note: note}, r, now)
	r.proven, r.since = true, now
	c.rerank(r.link, now)
}

// tendRail looks after a rail that is out: the end of its pause, its condemnation, its probes.
func (c *Core) tendRail(r *railState, now clock.Time) {
	end := clock.Never
	if r.suspected {
		if end = r.suspectedAt.Add(c.options.CondemnAfter); now >= end {
			c.fenceRail(r, now)
			return
		}
	} else {
		if r.monitor.Expire(now) {
			r.back.Begin()
			r.resize()
			c.recover(r, noteExpired, now)
			c.watchRail(r, now)
			return
		}
		end = r.monitor.Until()
	}
	if !r.link.spec.Probes {
		c.timers.set(&r.timer, end)
		return
	}
	if !c.wanted(r.link.peer, now) {
		r.link.peer.resting = true
		c.timers.set(&r.timer, end)
		return
	}
	c.timers.set(&r.timer, min(end, c.probe(r, now)))
}

// probe asks a rail whether it works if that is due, and returns when to look again.
func (c *Core) probe(r *railState, now clock.Time) clock.Time {
	due, next := r.back.Ask(r.link.options.ProbeEvery, now)
	if due {
		c.out.Probe = append(c.out.Probe, Question{r.link.spec.Transport, r.link.id, r.id})
	}
	return next
}

// mend has an idle rail of reduced health asked now and then, or it would only be used again when the others are full; and
// an alternate that has not shown yet that it works.
func (c *Core) mend(r *railState, now clock.Time) {
	if !r.wanting() || !r.link.spec.Probes || !r.healthy(now) {
		return
	}
	if !c.wanted(r.link.peer, now) {
		r.link.peer.resting = true
		return
	}
	c.probe(r, now)
	c.timers.set(&r.timer, now.Add(mendEvery))
}

// wanting reports whether the rail has something to show before it is as good as any.
func (r *railState) wanting() bool {
	return r.health.Value() < rail.HealthMax || (r.info.Alternates && !r.proven)
}

// mendEvery is the pause between those.
const mendEvery = 100 * time.Millisecond

// wanted reports whether somebody has something for the peer.
func (c *Core) wanted(p *peer, now clock.Time) bool {
	if now-p.wanted < wantedFor && p.wanted != 0 {
		return true
	}
	for _, l := range p.links {
		if l.outstanding > 0 || !l.idle() {
			return true
		}
	}
	return false
}

// rouse goes on with the probes of a peer that was not wanted for a while.
func (c *Core) rouse(p *peer, now clock.Time) {
	p.resting = false
	for _, l := range p.links {
		for _, r := range l.rails {
			if r != nil && r.usable() && (!r.healthy(now) || r.wanting()) {
				c.timers.sooner(&r.timer, now)
			}
		}
	}
}

// Probed is the answer to Effects.Probe: the round trip, or why there was none.
func (c *Core) Probed(id plan.LinkID, which transport.Rail, took clock.Time, err *errs.Error, now clock.Time) {
	r := c.rail(id, which)
	if r == nil || !r.usable() {
		return
	}
	settings := &r.link.options.Settings
	good := r.back.Answered(err == nil)
	if err != nil {
		if !r.mute { // the first of a row; a rail that stays silent is not worth an event each time
			r.mute = true
			c.railEvent(event.Event{Kind: event.RailProbed, Err: err}, r, now)
		}
		if r.wanting() {
			c.timers.sooner(&r.timer, now.Add(mendEvery))
		}
		return
	}
	r.mute = false
	need := r.monitor.Trust(settings, now)
	if !r.healthy(now) || !r.proven {
		c.railEvent(event.Event{Kind: event.RailProbed, Took: time.Duration(took), N: good, M: need}, r, now)
	}
	if r.health.Raise(settings.Recovery, settings.Sensitivity) {
		c.rerank(r.link, now)
	}
	switch paused := r.monitor.Paused(now); {
	case r.suspected:
		r.meter.Slower()
		c.alive(r, now)
	case paused && good >= need:
		r.monitor.Resume(now)
		r.back.Begin()
		r.resize()
		c.recover(r, noteProbes, now)
	case !paused:
		c.alive(r, now)
		if !r.proven {
			r.proven = true
			c.rerank(r.link, now)
		}
	}
}
