package dispatch

import (
	"iter"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/transport"
)

// A peer that pauses is not dead. Machines stand still for seconds: they migrate, swap, sit in a debugger, or the
// switch before them restarts. So a peer that owes answers and says nothing is silent (rail.Presence), and its requests
// wait: they end by their own deadline, by the stall limit, or by Options.Outage. When the peer goes on, they do.
//
//	something is outstanding --SilentAfter--> busy rails are asked, idle ones probed --no sign--> silent
//
// A rail that is dead beside idle ones looks the same until these are probed.
//
// Three clocks tell a rail from its peer, and the peer's kernel from its process. peer.heard is any packet on any rail:
// a rail that is silent beside it is in doubt (suspect.go). peer.spoke is a sign of the process: an answer, bytes that
// it sent, a rail that came up. Nothing else ends a silence, because the kernel of a stopped process goes on to
// acknowledge. peer.moved is progress: a peer owes no answer to a slice that is still on its way.

// peer holds the facts that the links to one engine share, under one address.
type peer struct {
	name     string
	links    []*link
	engine   *remoteEngine // that it is
	open     int           // its own part of the engine's open withdrawals
	presence rail.Presence // changed by sense alone
	since    clock.Time    // when that began by the detector's clock, 0 for ever
	gone     *errs.Error   // why its presence is rail.Gone
	heard    clock.Time    // last packet on any rail, by the detector's clock
	spoke    clock.Time    // last sign of its process, by the detector's clock
	moved    clock.Time    // last progress of bytes, by the detector's clock
	stood    clock.Time    // time in all of its standstills, see standstill.go
	expected clock.Time    // since when it owes an answer, by the detector's clock
	asked    bool          // its busy rails were asked for signs of life
	timer    timer         // armed while it owes an answer
	outage   clock.Time    // when to look again for requests that have waited too long
	wanted   clock.Time    // when something was last queued for it
	resting  bool          // rails that are out are not probed because nobody wants the peer
	stale    bool          // its description is asked for, see rekey.go
	queries  int           // for it, since a task first lacked a key
	again    clock.Time    // the next one comes no sooner

	late    *errs.Error       // the error of its tasks that miss their deadline
	misses  [MissedStages]int // since the last event about them
	missed  event.Event       // about the latest
	told    clock.Time        // when the last such event was emitted
	telling bool              // in Core.tellers

	slots int // of shared stages that pieces on the way to it hold
}

// rails yields the rails of all links of the peer, in their newest generation.
func (p *peer) rails() iter.Seq[*railState] {
	return func(yield func(*railState) bool) {
		for _, l := range p.links {
			for _, r := range l.rails {
				if r != nil && !yield(r) {
					return
				}
			}
		}
	}
}

// silenceLook is the pause between the question to the rails of a peer and the verdict, and between two looks at a
// silent one.
const silenceLook = 50 * time.Millisecond

// expectAnswer begins to watch over a peer that owes an answer from now on.
func (c *Core) expectAnswer(p *peer, now clock.Time) {
	if p.timer.Armed() || p.gone != nil {
		return
	}
	p.expected, p.asked = c.awake(now), false
	c.timers.Set(&p.timer, now.Add(c.options.SilentAfter))
}

// owes reports whether the peer owes an answer: something is outstanding, or waits because no rail is up. Nobody's
// process answers on links that our own kernel serves.
func (p *peer) owes() bool {
	for _, l := range p.links {
		if l.answers() && (l.outstanding > 0 || (l.up == 0 && !l.idle())) {
			return true
		}
	}
	return false
}

// answers reports whether the peer's process has a part in the transfers of the link.
func (l *link) answers() bool { return !l.inside() && (l.spec.Info == nil || !l.spec.Info.Files) }

// watchPeer is the peer's timer.
func (c *Core) watchPeer(p *peer, now clock.Time) {
	if p.gone != nil || !p.owes() {
		return
	}
	quiet := c.awake(now).Sub(max(p.spoke, p.moved, p.expected))
	limit := max(c.options.SilentAfter, p.slowest())
	switch {
	case p.presence == rail.Silent:
		c.timers.Set(&p.timer, now.Add(silenceLook))
		c.askPeer(p, now)
		c.endOutage(p, now)
	case quiet < limit:
		p.asked = false
		c.timers.Set(&p.timer, now.Add(limit-quiet))
	case !p.asked:
		p.asked = true
		c.askPeer(p, now)
		c.timers.Set(&p.timer, now.Add(silenceLook))
	default:
		c.timers.Set(&p.timer, now.Add(silenceLook))
		c.sense(p, rail.Missed, quiet, now)
	}
}

// slowest is how long a peer may be silent where only completions speak. It is three times the time of the longest
// slice that is next to complete, by the rate of its rail.
func (p *peer) slowest() (longest time.Duration) {
	for r := range p.rails() {
		if r.slices > 0 && r.meter.Measured() {
			longest = max(longest, time.Duration(3e9*float64(r.flight.First().Length)/r.meter.Rate()))
		}
	}
	return longest
}

// askPeer looks for signs of life on all busy rails of a peer, and probes those that are idle.
func (c *Core) askPeer(p *peer, now clock.Time) {
	for r := range p.rails() {
		switch l := r.link; {
		case !r.usable() || !l.answers():
		case r.slices > 0:
			c.out.AskLiveness = append(c.out.AskLiveness, r.question())
		case l.spec.Probes && r.healthy():
			c.probeRail(r, now)
		}
	}
}

// peerSpoke notes a sign of the peer's process, which came at a time of the detector's clock.
func (c *Core) peerSpoke(p *peer, at, now clock.Time) {
	before := max(p.spoke, p.expected)
	p.spoke = max(p.spoke, at)
	if p.presence == rail.Silent && at > before {
		c.sense(p, rail.Heard, c.awake(now).Sub(before), now)
	}
}

// sense is the only way in which the presence of a peer changes. The peer has been quiet for that long.
func (c *Core) sense(p *peer, sign rail.Sign, quiet time.Duration, now clock.Time) {
	if !p.presence.Observe(sign) {
		return
	}
	p.since = c.awake(now)
	e := event.Event{Time: now, Peer: p.name, Took: quiet}
	switch p.presence {
	case rail.Silent:
		e.Kind = event.PeerSilent
		p.since, p.outage = p.since.Add(-quiet), 0
	case rail.Present:
		e.Kind = event.PeerBack
		c.resume(p, now)
	case rail.Gone:
		e.Kind, e.Err = event.PeerGone, p.gone
	}
	c.emit(e)
}

// resume gives every rail of a peer that is back a fresh start: its silence was not the rail's. A rail that has said
// nothing since its last one is mute from then on, and doubted before its peer is (silenceOf). It would never be
// suspected otherwise where the other signs of its peer take longer than silenceLook.
func (c *Core) resume(p *peer, now clock.Time) {
	p.asked = false
	for r := range p.rails() {
		if !r.usable() {
			continue
		}
		r.meter.Resume(now)
		before := r.heard
		r.beginSilence(c.awake(now))
		if r.mute = 0; before == r.fresh {
			r.mute = r.heard
		}
		r.fresh = r.heard
		c.timers.SetSooner(&r.timer, now.Add(c.options.SuspectAfter))
		if r.device.shared { // bytes of LOW that did not move do so again
			r.device.meter.Resume(now)
			c.findStuck(r.device, now)
		}
	}
	for _, l := range p.links {
		c.activate(l)
	}
}

// endOutage ends the requests that have waited for a silent peer as long as they may. Those that have a way on which
// the peer's process has no part take it.
func (c *Core) endOutage(p *peer, now clock.Time) {
	limit := c.options.Outage
	if limit >= c.options.Stall || now < p.outage {
		return // the stall limit ends them
	}
	p.outage = now.Add(limit / 16)
	for _, l := range p.links {
		if !l.answers() {
			continue
		}
		c.gatherAll(l)
		moved := false
		for _, t := range c.scratch {
			if !t.live() || t.path().Across().Link != l.id || c.awake(now).Sub(max(t.queued, p.since)) < limit {
				continue
			}
			err := c.silentError(l, now)
			next, _ := c.nextRoute(t, false)
			if next >= 0 && !c.link(t.spec.Plan.Routes[next].Across().Link).answers() {
				c.switchRoute(t, next, err, now)
				moved = true
			} else {
				c.endTask(t, Failed, err, now)
			}
		}
		for _, r := range l.rails {
			if moved && r != nil && r.usable() {
				c.recallFlight(r, now)
			}
		}
	}
}

// silentError is the error of a request that has waited for a silent peer on a link as long as it may. Behind a closed
// port of data a peer is as silent as one that is stopped, so the error has the cause of a link that is down.
func (c *Core) silentError(l *link, now clock.Time) *errs.Error {
	err := errs.New(errs.PeerUnreachable, "transfer", "the peer is silent: %s, and nothing proves that it has gone",
		c.lastHeard(l.peer, now)).WithScope(errs.ScopeLink, errs.SideUnknown).OfPeer(l.peer.name).
		WithHint("transfer_stall_timeout and peer_outage_timeout are the limits")
	if l.up == 0 && l.cause != nil {
		err.Cause += "; no rail of it is up: " + l.cause.Cause
		if l.cause.Hint != "" {
			err.WithHint("%s", l.cause.Hint)
		}
	}
	return err
}

// LastHeard says for people when a peer was last heard.
func (c *Core) LastHeard(number uint32, now clock.Time) string {
	if p := c.peers[number]; p != nil {
		return c.lastHeard(p, now)
	}
	return "never used"
}

// lastHeard says for people when a peer was last heard.
func (c *Core) lastHeard(p *peer, now clock.Time) string {
	if p.spoke == 0 {
		return "never heard since it was opened"
	}
	return "last heard " + c.awake(now).Sub(p.spoke).Round(100*time.Millisecond).String() + " ago"
}

// fates say where the bytes of a request are that failed because of its peer.
var fates = [...]string{"nothing of this was sent", "some of its bytes may have landed, and none does any more",
	"some of its bytes may still land"}

// tellFate adds the fate of its bytes to the error of a task that failed because of its peer. Tasks that fail of one
// cause share the texts.
func (c *Core) tellFate(t *task) {
	l := c.link(t.path().Across().Link)
	if l == nil || l.peer.presence == rail.Present || t.failure == nil || t.failure.Scope < errs.ScopeLink {
		return
	}
	fate := 1
	switch {
	case t.attempts == 0:
		fate = 0
	case t.dirty && l.peer.gone == nil:
		fate = 2
	}
	if c.fated.cause != t.failure {
		c.fated = fated{cause: t.failure}
	}
	told := &c.fated.told[fate]
	if *told == nil {
		e := *t.failure
		e.Cause += "; " + fates[fate]
		*told = &e
	}
	t.failure = *told
}

// fated are the errors that tellFate has made of the last cause.
type fated struct {
	cause *errs.Error
	told  [len(fates)]*errs.Error
}

// Silent reports whether a peer is silent now. One that owes nothing any more is not asked either, so nobody knows.
func (c *Core) Silent(number uint32) bool {
	p := c.peers[number]
	return p != nil && p.presence == rail.Silent && p.owes()
}

// Answered says that a peer has answered by another way, as the control plane.
func (c *Core) Answered(number uint32, now clock.Time) {
	if p := c.peers[number]; p != nil && p.gone == nil {
		c.peerSpoke(p, c.awake(now), now)
	}
}

// Liveness is the answer to Effects.AskLiveness, from the transport's account; no signs where it keeps none.
func (c *Core) Liveness(q Question, signs transport.Signs, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	c.wakeUp(now)
	r := c.rail(q.Link, q.Rail)
	if r == nil || !r.usable() {
		return
	}
	p := r.link.peer
	if signs.Spoke != 0 {
		c.peerSpoke(p, c.awake(signs.Spoke), now)
	}
	if signs.Moved != 0 && !r.life.Start.Probing() { // else it may be the probe that moves, into the peer's system
		moved := c.awake(signs.Moved)
		r.noted, p.moved = max(r.noted, moved), max(p.moved, moved)
	}
	heard := clock.Time(0)
	if signs.Heard != 0 {
		heard = c.awake(signs.Heard)
		c.endStandstill(r, r.flight.First(), heard)
		p.heard = max(p.heard, heard)
	}
	if r.life.State() == rail.Suspected { // only the rail's own answers clear it
		return
	}
	if signs.Held { // by the peer: its kernel answers, so the rail itself is well
		heard = c.awake(now)
	}
	news := heard > r.heard
	if news {
		asked := r.asked
		r.beginSilence(heard)
		r.asked = asked // this is the answer: the same question now would hear no more than ticks of the clock
	}
	if !signs.Held && !signs.Unacked {
		c.askItself(r, news, now)
	}
	if r.slices > 0 && r.healthy() {
		c.watchRail(r, now)
	}
}
