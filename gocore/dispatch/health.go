package dispatch

import (
	"strconv"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/transport"
)

// Failures and successes change a rail's state, and a rail that is out comes back. rail.Life draws the states; here are
// their consequences for links and NICs:
//
//	paused      used only when the link has nothing better; comes back by its cooldown, a success or good probes. Not by
//	            probes where its last generations delivered nothing: each of them could answer
//	suspected   takes nothing (suspect.go); comes back by a sign of life, or is condemned after CondemnAfter
//	condemned   is fenced (ending.go), until a new generation
//
// Rails that are out are probed, where the transport can, as long as traffic wants their peer.

// recoveryNotes are the notes of RailRecovered, by the event that brought the rail back; the first two are the failover
// seed's.
var recoveryNotes = map[rail.Event]string{
	rail.Rested:    "cooldown expired",
	rail.Delivered: "un-paused by successful transfer",
	rail.Proved:    "probes answered",
	rail.Spoke:     "sign of life",
}

// observe is the only way in which a rail's life goes on. It carries out the consequences of each change of state for
// the rail's link, NIC, timer and rank.
func (c *Core) observe(r *railState, e rail.Event, now clock.Time) rail.Change {
	l := r.link
	if e == rail.Ended && r.slices > 0 && l.peer.presence != rail.Silent {
		r.life.Lose()
	}
	change := r.life.Observe(e, &l.options.Settings, now)
	r.resize()
	if change.From == change.To {
		return change
	}
	if change.From.Usable() && !change.To.Usable() {
		l.up--
		l.fell = c.awake(now)
		if l.up == 0 {
			l.down = l.fell
		}
		c.timers.Stop(&r.timer)
	}
	if !change.From.Ended() && change.To.Ended() {
		c.timers.Stop(&r.timer) // of one that was fenced, see awaitEnd
		c.unplug(r, now)
	}
	if change.Recovered() {
		c.railEvent(event.Event{Kind: event.RailRecovered, Note: recoveryNotes[e]}, r, now)
	}
	c.rerank(l)
	return change
}

// wantedFor bounds how long a peer counts as wanted after the last request for it: probes outlast pauses of the
// traffic.
const wantedFor = time.Second

// railFailed notes a failure that is the rail's own, and that of the ends that are to blame. e is rail.Failed or
// rail.Deserted.
func (c *Core) railFailed(r *railState, e rail.Event, err *errs.Error, now clock.Time) {
	c.totalsOf(r).errors++
	r.errors++
	c.lowerHealth(r, err, now)
	opened := c.observe(r, e, now).Opened
	c.rerank(r.link)            // its health has changed
	if !opened || !r.usable() { // one that has ended pauses no more, and its next generation comes up when it can
		return
	}
	n := r.life.Breaker.Failures()
	note := strconv.Itoa(n) + " errors"
	switch {
	case e == rail.Deserted:
		note = "its tasks took another way"
	case n == 1:
		note = "an error"
	}
	c.railPaused(r, n, note, err, now)
	c.timers.Set(&r.timer, now)
	c.tendLink(r.link, now)
}

// railPaused reports a pause, and counts it.
func (c *Core) railPaused(r *railState, n int, note string, err *errs.Error, now clock.Time) {
	c.railEvent(event.Event{Kind: event.RailPaused, N: n, Note: note, Took: r.life.Breaker.Until().Sub(now), Err: err},
		r, now)
	c.totalsOf(r).condemned++
}

// lowerHealth lowers the health of a rail, and of those that share an end which is to blame.
func (c *Core) lowerHealth(r *railState, err *errs.Error, now clock.Time) {
	settings := &r.link.options.Settings
	r.health.Lower(settings.Sensitivity)
	local, remote := c.culprits(r, err, now)
	if !local && !remote {
		return
	}
	for l := range c.linksOf(r.link.spec.Transport) {
		touched := false
		for _, other := range l.rails {
			if other == nil || other == r {
				continue
			}
			if (local && other.pair.Local == r.pair.Local) ||
				(remote && other.pair.Peer == r.pair.Peer && other.pair.Remote == r.pair.Remote) {
				other.health.Lower(settings.Sensitivity)
				touched = true
				if other.usable() { // an idle one shows by probes that it works: others are sent over instead
					c.timers.SetSooner(&other.timer, now)
				}
			}
		}
		if touched {
			c.rerank(l)
		}
	}
}

// railDelivered notes that a rail has delivered.
func (c *Core) railDelivered(r *railState, bytes uint64, now clock.Time) {
	settings := &r.link.options.Settings
	if r.health.Raise(settings.Recovery, settings.Step) {
		c.rerank(r.link)
	}
	if r.life.Start.Ramping() {
		r.life.Start.Delivered(bytes)
	}
	c.observe(r, rail.Delivered, now)
}

// resize sets the window of a rail by its slow start.
func (r *railState) resize() { r.bytesMax = r.life.Start.Window(r.bytesWhole) }

// tendRail looks after a rail that is out: the end of its pause, its condemnation, its probes.
func (c *Core) tendRail(r *railState, now clock.Time) {
	end := clock.Never
	if r.life.State() == rail.Suspected {
		p := r.link.peer
		end = c.wall(max(r.doubted, p.since).Add(c.options.CondemnAfter))
		switch {
		case p.presence == rail.Silent:
			end = now.Add(c.options.CondemnAfter)
		case now >= end:
			c.fenceRail(r, now)
			return
		}
	} else {
		if c.observe(r, rail.Rested, now).Recovered() {
			c.watchRail(r, now)
			return
		}
		end = r.life.Breaker.Until()
	}
	if !r.link.spec.Probes || (r.life.State() == rail.Paused && r.life.DeliversNothing(&r.link.options.Settings)) {
		c.timers.Set(&r.timer, end)
		return
	}
	if !c.isWanted(r.link.peer, now) {
		r.link.peer.resting = true
		c.timers.Set(&r.timer, end)
		return
	}
	c.timers.Set(&r.timer, min(end, c.probeRail(r, now)))
}

// probeRail asks a rail whether it works if that is due, and returns when to look again.
func (c *Core) probeRail(r *railState, now clock.Time) clock.Time {
	due, next := r.life.Start.Ask(r.link.options.ProbeEvery, now)
	if due {
		c.out.Probe = append(c.out.Probe, r.question())
	}
	return next
}

// probeIdle probes an idle rail of reduced health now and then, and an alternate on probation. Without it a rail of
// reduced health would only be used again when the others are full.
func (c *Core) probeIdle(r *railState, now clock.Time) {
	if !r.onProbation() || !r.link.spec.Probes || !r.healthy() {
		return
	}
	if !c.isWanted(r.link.peer, now) {
		r.link.peer.resting = true
		return
	}
	c.probeRail(r, now)
	c.timers.Set(&r.timer, now.Add(idleProbeEvery))
}

// onProbation reports whether the rail must still show that it works: its health is reduced, or it is an alternate that
// has not answered yet.
func (r *railState) onProbation() bool {
	return r.health.Value() < rail.HealthMax || r.life.State() == rail.Probation
}

// idleProbeEvery is the pause between probes of an idle rail: ten a second cost nothing and mend a health of 0 in ten
// seconds.
const idleProbeEvery = 100 * time.Millisecond

// isWanted reports whether traffic wants the peer: something is outstanding or waits, or was queued within wantedFor.
func (c *Core) isWanted(p *peer, now clock.Time) bool {
	if now.Sub(p.wanted) < wantedFor && p.wanted != 0 {
		return true
	}
	for _, l := range p.links {
		if l.outstanding > 0 || !l.idle() {
			return true
		}
	}
	return false
}

// resumeProbes goes on with the probes of a peer that was not wanted for a while.
func (c *Core) resumeProbes(p *peer, now clock.Time) {
	p.resting = false
	for r := range p.rails() {
		if r.usable() && (!r.healthy() || r.onProbation()) {
			c.timers.SetSooner(&r.timer, now)
		}
	}
}

// Probed is the answer to Effects.Probe: the round trip, or why there was none.
func (c *Core) Probed(id plan.LinkID, which transport.Rail, took clock.Time, err *errs.Error, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	c.wakeUp(now)
	r := c.rail(id, which)
	if r == nil || !r.usable() {
		return
	}
	settings := &r.link.options.Settings
	state := r.life.State()
	if err != nil {
		// the first of a row; a rail that stays silent is not worth an event each time
		if r.life.Start.Unanswered() == 1 {
			c.railEvent(event.Event{Kind: event.RailProbed, Err: err}, r, now)
		}
		return
	}
	good, need := r.life.Start.Answered(), r.life.Breaker.Trust(settings, now)
	if state != rail.Up {
		c.railEvent(event.Event{Kind: event.RailProbed, Took: time.Duration(took), N: good, M: need}, r, now)
	}
	if r.health.Raise(settings.Recovery, settings.Step) {
		c.rerank(r.link)
	}
	if state == rail.Suspected {
		r.meter.HalveRate()
	}
	c.endStandstill(r, r.flight.First(), c.awake(now))
	c.signOfLife(r, now) // of its peer, too, which is not silent while a paused rail answers
	if state != rail.Suspected {
		c.observe(r, rail.Proved, now)
		c.probeAnswered(r, now)
	}
}
