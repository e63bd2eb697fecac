package transporttest

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

func faultRules() []rule {
	hold := func(h Harness, _ transport.Transport) string {
		return unless(h.Hold != nil, "no Hold: peers cannot be stopped here")
	}
	cut := func(h Harness, _ transport.Transport) string {
		return unless(h.CutRail != nil, "no CutRail: rails cannot be broken here")
	}
	hole := func(h Harness, _ transport.Transport) string {
		return unless(h.Blackhole != nil, "no Blackhole: rails cannot be silenced here")
	}
	return []rule{
		{"AStoppedPeerGoesOnWhereItWas", hold, testHold},
		{"WhatAStoppedPeerGotIsWithdrawnForGood", hold, testHoldWithdraw},
		{"ABrokenRailCompletesItsSlicesAndComesBack", cut, testCut},
		{"ABrokenRailLeavesOtherRailsAlone", cut, testCutOther},
		{"ASilentRailCompletesOnceHealed", hole, testBlackhole},
	}
}

func unless(there bool, reason string) string {
	if there {
		return ""
	}
	return reason
}

// hold makes a node stand still, when all rails of the pair are up: the harness reaches none that comes up later. It
// returns a rail. The node goes on by release, or when the test ends.
func (p *pair) hold(t *testing.T, n *Node) (rail transport.Rail, release func()) {
	t.Helper()
	if p.w.h.CutRail != nil {
		p.w.Await(t, "two rails, as the suite asked for", func() bool { return len(p.c.railsLocked()) > 1 })
	}
	rail = p.c.Rail(t)
	release = sync.OnceFunc(p.w.h.Hold(t, n))
	t.Cleanup(release)
	return rail, release
}

func testHold(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 40
	size := fit(p.c, 64<<10)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		local, remote, _, to := p.aimed(t, op, n*size)
		rail, release := p.hold(t, p.b)
		begin := clock.Now()
		list := p.volley(op, rail, local, remote, n, size)
		list = list[:p.c.Submit(list...)] // returns: Submit never waits for a peer
		p.saysNothing(t, rail, begin)
		release()
		p.arrive(t, list, to, size)
	}
}

// saysNothing looks for a while at the signs on a rail of a peer that stands still since a time. Its kernel may answer;
// a transport that takes that for the process finds no silence.
func (p *pair) saysNothing(t *testing.T, rail transport.Rail, since clock.Time) {
	witness, is := transport.Find[transport.Witness](p.a.Transport)
	for is && clock.Now() < since.Add(3*heardGrain) {
		spoke := witness.Heard(rail).Spoke
		require.Less(t, spoke, since.Add(heardGrain), "a process that is stopped says nothing")
		runtime.Gosched()
	}
}

// testHoldWithdraw is the sharpest case of rule c: the peer holds bytes that it has not looked at yet, and the request
// is given up. The transport's answer then has to stay true when the peer goes on.
func testHoldWithdraw(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 40
	size := fit(p.c, 64<<10)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		local, remote, from, to := p.aimed(t, op, n*size)
		rail, release := p.hold(t, p.b)
		list := p.volley(op, rail, local, remote, n, size)
		p.scribbleOnEnd(from, tagBefore, list, size) // the source is used again at once, too, by other bytes than there
		list = list[:p.c.Submit(list...)]
		p.a.Transport.Withdraw(list)
		release()
		p.stillQuiet(t, to, p.ended(t, list, to, size, errs.Withdrawn), size)
	}
}

func testCut(t *testing.T, h Harness) {
	p := newPair(t, h)
	p.interrupt(t, func(rail transport.Rail) {
		p.w.h.CutRail(t, p.a, rail)
		p.w.Await(t, "RailDown", func() bool { return p.a.ended[rail] })
	}, errs.Lost)
}

func testCutOther(t *testing.T, h Harness) {
	p := newPair(t, h)
	p.w.Await(t, "two rails, as the suite asked for", func() bool { return len(p.c.railsLocked()) > 1 })
	rails := p.c.Rails()
	size := fit(p.c, 64<<10)
	local, remote := p.operands(t, 8*size)
	list := p.launch(transport.Write, rails[1], local, remote, 8, size)
	p.w.h.CutRail(t, p.a, rails[0])
	p.c.Succeed(t, list...)
	p.comesBack(t, rails[0])
	require.Contains(t, p.c.Rails(), rails[1])
}

func testBlackhole(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 20
	size := fit(p.c, 64<<10)
	local, remote := p.operands(t, n*size)
	local.Fill(tagMoved, 0, local.Size)
	rail := p.c.Rail(t)
	heal := p.w.h.Blackhole(t, p.a, rail)
	list := p.launch(transport.Write, rail, local, remote, n, size)
	p.a.Transport.Withdraw(list)
	heal()
	failed := p.ended(t, list, remote.Memory, size, errs.Withdrawn, errs.Lost)
	p.stillQuiet(t, remote.Memory, failed, size)
}
