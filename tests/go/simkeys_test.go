package tests

import (
	"bytes"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

// Descriptors change in the simulation, too. Peers are called after a while, or never; a refused slice makes its
// engine ask. Some calls are planned by an older description and submitted later.

// simCall is a call of the control plane on its way.
type simCall struct {
	at clock.Time
	to *simEngine
	do func(now clock.Time)
}

func (r *simRun) call(to *simEngine, do func(now clock.Time)) {
	r.calls = append(r.calls, simCall{r.network.Now() + clock.Time(r.random.IntN(int(2*time.Millisecond))), to, do})
}

// answerCalls makes the calls that are due; those of a stopped engine wait, those of a dead one are lost.
func (r *simRun) answerCalls() {
	now := r.network.Now()
	var due []simCall
	r.calls = slices.DeleteFunc(r.calls, func(c simCall) bool {
		mine := c.at <= now && !r.stopped[c.to]
		if mine && !c.to.dead {
			due = append(due, c)
		}
		return mine
	})
	for _, c := range due {
		c.do(now)
		c.to.asked = true
	}
}

// nextCall is when the next call can be made.
func (r *simRun) nextCall() clock.Time {
	next := clock.Never
	for _, c := range r.calls {
		if !r.stopped[c.to] {
			next = min(next, c.at)
		}
	}
	return next
}

// replace gives the area of an engine another descriptor on one transport.
func (r *simRun) replace(owner *simEngine) {
	k := r.random.IntN(len(owner.transports))
	owner.transports[k].(*sim.Transport).Replace(owner.keys[1][k], r.random.IntN(2) == 0)
}

// Describe calls most of the peers; the rest must find out.
func (h simHost) Describe(_ transport.LocalKey, d transport.Descriptor) {
	owner := h.engine
	owner.offered[h.index] = d
	for _, e := range owner.run.engines {
		if e.peers[owner] != nil && owner.run.random.IntN(4) > 0 {
			owner.run.call(e, func(now clock.Time) { e.renew(owner, now) })
		}
	}
}

// renew imports again, as the engine does when a description has changed.
func (e *simEngine) renew(owner *simEngine, now clock.Time) {
	known := e.peers[owner]
	if owner.dead || e.run.stopped[owner] {
		return
	}
	for k, tr := range e.transports {
		if bytes.Equal(known.by[k], owner.offered[k]) {
			continue
		}
		link := e.linkOf(k, known)
		key, err := tr.Import(link, owner.offered[k])
		require.NoError(e.run.t, err)
		old := known.remotes[k]
		known.older[k], known.remotes[k], known.by[k] = old, key, owner.offered[k]
		if e.core.Pending() > 0 {
			seen["rekeyed while transfers ran"]++
		}
		var matches plan.Matches // or its rails say it
		if e.run.random.IntN(2) == 0 {
			matches = e.matches(k, link, key)
		}
		e.core.Rekey(known.links[k], old, key, matches, now)
	}
}

// matches says on which rails a new key works beside the one of our area.
func (e *simEngine) matches(k int, on transport.Link, there transport.RemoteKey) plan.Matches {
	here := e.keys[0][k]
	match, err := e.transports[k].(transport.Matcher).Match(on, here, there)
	if err != nil {
		return nil
	}
	return plan.Matches{here: match}
}

func (e *simEngine) linkOf(k int, known *simPeer) transport.Link {
	for name, to := range e.links {
		if int(name.transport) == k && to.peer == known {
			return name.link
		}
	}
	panic("no link")
}

// carryKeys carries out the core's wishes about keys.
func (e *simEngine) carryKeys(effects *dispatch.Effects) {
	for _, number := range effects.Stale {
		for owner, known := range e.peers {
			if known.number == number {
				e.run.call(e, func(now clock.Time) {
					e.renew(owner, now)
					e.core.Refreshed(number, now)
				})
			}
		}
	}
	for _, k := range effects.Retired {
		seen["key forgotten"]++
		e.transports[k.Transport].Forget(k.Link, k.Key)
	}
}
