package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestNothingMovesButInAdvance(t *testing.T) {
	d := newDuet(t, 1, 1, Shape{Delay: time.Millisecond})
	list := d.writes(1, 1000)
	require.Equal(t, 1, d.a.t.Submit(list))
	begun := d.n.Now()
	require.Empty(t, d.a.ends)
	d.n.Advance(begun + millisecond - 1)
	require.False(t, d.arrived(list[0]))
	d.n.Advance(begun + millisecond)
	require.True(t, d.arrived(list[0]), "the bytes land after one way")
	require.Empty(t, d.a.ends)
	d.n.Advance(begun + 2*millisecond)
	require.Contains(t, d.a.ends, list[0].Id, "the answer takes another")
	require.Equal(t, clock.Never, d.n.NextEvent())
}

func TestRateAndClassDecideTheOrder(t *testing.T) {
	d := newDuet(t, 1, 1, Shape{Rate: 1e6}) // 1000 bytes a millisecond
	list := d.writes(4, 1000)
	list[1].Class, list[2].Class = 2, 1
	begun := d.n.Now()
	require.Equal(t, 4, d.a.t.Submit(list))
	d.idle()
	for i, after := range []clock.Time{1, 4, 3, 2} {
		require.Equal(t, begun+after*millisecond, d.a.when[list[i].Id], "slice %d", i)
	}
}

func TestTheSameSeedGivesTheSameRun(t *testing.T) {
	run := func(seed uint64) []string {
		births = 0
		d := newDuet(t, seed, 2, Shape{Rate: 1e9, Delay: 100_000, Jitter: 90_000, Loss: 0.1, LostAck: 0.1,
			Duplicate: 0.1, Late: 0.1, LateBy: time.Millisecond, Refuse: 0.3})
		list := d.writes(100, 1000)
		for rest := list; len(rest) > 0; {
			took := d.a.t.Submit(rest[:min(7, len(rest))])
			rest = rest[took:]
			d.n.Advance(d.n.Now() + 10_000)
			d.a.t.Withdraw(list[len(rest)/2 : len(rest)/2+1])
		}
		d.idle()
		return d.a.journal
	}
	require.Equal(t, run(5), run(5))
	require.NotEqual(t, run(5), run(6))
}

func TestLossAndLostAcknowledgements(t *testing.T) {
	for _, c := range []struct {
		shape  Shape
		landed bool
	}{{Shape{Loss: 1}, false}, {Shape{LostAck: 1}, true}} {
		d := newDuet(t, 1, 1, c.shape)
		list := d.writes(5, 100)
		d.a.t.Submit(list)
		d.idle()
		for _, s := range list {
			err := d.a.ends[s.Id].Err
			require.Equal(t, errs.Lost, err.Code)
			require.Equal(t, errs.ScopeRail, err.Scope)
			require.Equal(t, c.landed, d.arrived(s))
		}
	}
}

// TestDuplicatesLandBeforeTheCompletion overwrites the bytes that landed first and sees them come back; after the
// completion never.
func TestDuplicatesLandBeforeTheCompletion(t *testing.T) {
	d := newDuet(t, 1, 1, Shape{Delay: time.Millisecond, Duplicate: 1, LateBy: 10 * time.Millisecond})
	s := d.writes(1, 100)
	d.a.t.Submit(s)
	d.n.Advance(d.n.Now() + millisecond)
	require.True(t, d.arrived(s[0]))
	d.remote.Fill(9, 0, 100)
	again := false
	for len(d.a.ends) == 0 {
		d.n.Advance(d.n.NextEvent())
		again = again || d.arrived(s[0])
	}
	require.True(t, again, "the second landing")
	d.remote.Fill(9, 0, 100)
	d.idle()
	require.False(t, d.arrived(s[0]))
}

func TestCutRailsAnswerNothingUntilHealed(t *testing.T) {
	d := newDuet(t, 3, 2, Shape{Delay: time.Millisecond})
	list := d.writes(40, 100)
	d.a.t.Submit(list)
	d.n.Advance(d.n.Now() + 10) // on the wire
	d.n.Cut(Between("a:1", "b:1").On(0))
	d.idle()
	require.Empty(t, d.a.ends)
	d.n.Heal(Between("a:1", "b:1").On(0))
	d.idle()
	good, lost := 0, 0
	for _, s := range list {
		if end := d.a.ends[s.Id]; end.Err == nil {
			good++
			require.True(t, d.arrived(s))
		} else {
			lost++
			require.False(t, d.arrived(s))
		}
	}
	require.Positive(t, good, "some land late")
	require.Positive(t, lost, "some never")
	require.Len(t, d.a.ends, len(list))
}

func TestWithdrawalsGoOverAnotherRail(t *testing.T) {
	for _, own := range []bool{false, true} {
		n := New(1)
		n.Shape(Anywhere, Shape{Delay: time.Millisecond})
		d := &duet{n: n, a: open(t, n, "a:1", Settings{Rails: 2, WithdrawOnRail: own}),
			b: open(t, n, "b:1", Settings{Rails: 2})}
		d.link, _ = d.a.t.Attach(d.b.self)
		d.idle()
		d.local = d.a.register(t, 1<<12, mem.Host)
		d.remote = d.a.expose(t, d.link, d.b, d.b.register(t, 1<<12, mem.Host))
		list := d.writes(3, 100)
		d.a.t.Submit(list)
		d.n.Advance(d.n.Now() + 10) // on the wire
		d.n.Cut(Between("a:1", "b:1").On(0))
		d.idle()
		d.a.t.Withdraw(list)
		d.idle()
		if own {
			require.Empty(t, d.a.ends, "a silent rail keeps its slices where no other may speak for it")
			d.n.Heal(Anywhere.On(0))
			d.idle()
			require.Len(t, d.a.ends, 3)
			continue
		}
		require.Len(t, d.a.ends, 3)
		d.remote.Fill(9, 0, 300)
		d.n.Heal(Anywhere.On(0))
		d.idle()
		require.NoError(t, d.remote.Check(9, 0, 0, 300), "it was held, and is void now")
	}
}

func TestDownAndUpChangeTheGeneration(t *testing.T) {
	d := newDuet(t, 4, 1, Shape{Delay: time.Millisecond})
	was := d.a.rails[0]
	list := d.writes(20, 100)
	d.a.t.Submit(list)
	d.n.Advance(d.n.Now() + 10)
	d.n.Down(Anywhere)
	require.Len(t, d.a.ends, 20, "both ends know")
	require.Empty(t, d.a.rails)
	d.remote.Fill(9, 0, 2000)
	d.n.Up(Anywhere)
	d.idle()
	require.NoError(t, d.remote.Check(9, 0, 0, 2000))
	require.Equal(t, was.Generation+1, d.a.rails[0].Generation)
	require.Zero(t, d.a.t.Submit(list[:1]))
}

func TestStoppedPeersGoOn(t *testing.T) {
	d := newDuet(t, 1, 1, Shape{Delay: time.Millisecond})
	d.n.Stop("b:1")
	list := d.writes(3, 100)
	d.a.t.Submit(list)
	d.idle()
	require.Empty(t, d.a.ends)
	require.False(t, d.arrived(list[0]))
	d.a.t.Withdraw(list[:1])
	d.idle()
	require.Empty(t, d.a.ends, "a stopped peer confirms nothing")
	d.n.Continue("b:1")
	d.idle()
	require.Len(t, d.a.ends, 3)
}

func TestKilledPeersAreReportedAndMayComeBack(t *testing.T) {
	d := newDuet(t, 1, 2, Shape{Delay: time.Millisecond})
	list := d.writes(3, 100)
	d.a.t.Submit(list)
	d.n.Kill("b:1")
	d.idle()
	require.False(t, d.arrived(list[0]), "the memory of a dead process is not touched")
	for _, s := range list {
		require.Equal(t, errs.PeerUnreachable, d.a.ends[s.Id].Err.Code)
		require.Equal(t, errs.ScopeLink, d.a.ends[s.Id].Err.Scope)
	}
	require.Equal(t, errs.SideRemote, d.a.down.Side)

	old := d.b
	d.b = open(t, d.n, "b:1", Settings{Rails: 2})
	_, err := d.a.t.Attach(old.self)
	require.NoError(t, err)
	d.idle()
	require.Equal(t, errs.PeerRestarted, d.a.down.Code)
	d.link, err = d.a.t.Attach(d.b.self)
	require.NoError(t, err)
	d.idle()
	d.remote = d.a.expose(t, d.link, d.b, d.b.register(t, 1<<20, mem.Host))
	list = d.writes(3, 100)
	require.Equal(t, 3, d.a.t.Submit(list))
	d.idle()
	require.True(t, d.arrived(list[2]))
}

func TestRefusedSubmitsAreFollowedByReady(t *testing.T) {
	d := newDuet(t, 9, 1, Shape{Delay: time.Millisecond, Refuse: 1})
	list := d.writes(50, 100)
	for rest := list; len(rest) > 0; {
		before, took := d.a.ready, d.a.t.Submit(rest)
		if rest = rest[took:]; len(rest) > 0 {
			d.idle()
			require.Greater(t, d.a.ready, before)
		}
	}
	d.idle()
	require.Len(t, d.a.ends, 50)
}

func TestPairsOfMemoryAreChecked(t *testing.T) {
	n := NewInline(1)
	var pairs [mem.KindCount][mem.KindCount]bool
	pairs[mem.Cuda][mem.Host] = true
	a, b := open(t, n, "a:1", Settings{Pairs: pairs}), open(t, n, "b:1", Settings{Pairs: pairs})
	link, err := a.t.Attach(b.self)
	require.NoError(t, err)
	gpu, host := a.register(t, 100, mem.Cuda), a.register(t, 100, mem.Host)
	remote := a.expose(t, link, b, b.register(t, 100, mem.Host))
	good, bad := a.slice(transport.Write, 0, gpu, 0, remote, 0, 100), a.slice(transport.Write, 0, host, 0, remote, 0,
		100)
	require.Equal(t, 2, a.t.Submit([]*transport.Slice{good, bad}))
	require.Nil(t, a.ends[good.Id].Err)
	require.ErrorContains(t, a.ends[bad.Id].Err, "does not move between cpu and cpu")
}

// TestExecutorsCopyInThePeer is a route of three hops: GPU to stage, stage to the peer's stage, and the peer's stage to
// its GPU by an executor.
func TestExecutorsCopyInThePeer(t *testing.T) {
	n := New(1)
	n.Shape(Anywhere, Shape{Delay: time.Millisecond})
	var pairs [mem.KindCount][mem.KindCount]bool
	pairs[mem.Host][mem.Cuda] = true
	executor := Settings{Name: "remote", Executor: true, Pairs: pairs}
	d := &duet{n: n, a: open(t, n, "a:1", executor), b: open(t, n, "b:1", executor)}
	link, err := d.a.t.Attach(d.b.self)
	require.NoError(t, err)
	d.idle()
	stage := d.a.expose(t, link, d.b, d.b.register(t, 4096, mem.Host))
	gpu := d.a.expose(t, link, d.b, d.b.register(t, 4096, mem.Cuda))
	stage.Fill(2, 0, 4096)
	s := d.a.slice(transport.Write, 0, stage, 100, gpu, 200, 1000)
	s.LocalKey = transport.LocalKey(stage.remote)
	require.Equal(t, 1, d.a.t.Submit([]*transport.Slice{s}))
	d.idle()
	require.Nil(t, d.a.ends[s.Id].Err)
	require.NoError(t, gpu.Check(2, 100, 200, 1000))

	s = d.a.slice(transport.Read, 0, stage, 0, gpu, 200, 1000) // may be withdrawn like anything else
	s.LocalKey = transport.LocalKey(stage.remote)
	d.a.t.Submit([]*transport.Slice{s})
	d.a.t.Withdraw([]*transport.Slice{s})
	stage.Fill(9, 0, 4096)
	d.idle()
	require.Equal(t, errs.Withdrawn, d.a.ends[s.Id].Err.Code)
	require.NoError(t, stage.Check(9, 0, 0, 4096))
}

func TestNotificationsAndProbes(t *testing.T) {
	d := newDuet(t, 1, 2, Shape{Delay: time.Millisecond})
	acked := 0
	require.True(t, d.a.t.Notify(d.link, []byte("hello"), func(err *errs.Error) { require.Nil(t, err); acked++ }))
	var rtt clock.Time
	d.a.t.Probe(d.a.rails[1], func(took clock.Time, err *errs.Error) { require.Nil(t, err); rtt = took })
	d.idle()
	require.Equal(t, 1, acked)
	require.Contains(t, d.b.journal[len(d.b.journal)-1], `a:1 says "hello"`)
	require.Equal(t, 2*millisecond, rtt)

	d.n.Cut(Anywhere.On(1))
	var failed *errs.Error
	d.a.t.Probe(d.a.rails[1], func(_ clock.Time, err *errs.Error) { failed = err })
	d.idle()
	require.Equal(t, errs.Timeout, failed.Code, "a probe of a silent rail ends")
}
