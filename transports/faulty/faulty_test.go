package faulty

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
	"github.com/tent-engine/tent/transports/transporttest"
)

// harness wraps the transports of a simulated network that drives itself.
func harness(plan *Plan) func(*testing.T) transporttest.Harness {
	return func(*testing.T) transporttest.Harness {
		n := sim.NewInline(1)
		return transporttest.Harness{
			Open: func(t *testing.T, c transporttest.Config) transport.Transport {
				settings := sim.Settings{Network: n, Rails: c.Rails}
				tr, err := Wrap(sim.Factory{Settings: settings}, plan).Open(t.Context(), nil, c.Host, c.Sink)
				require.NoError(t, err)
				return tr
			},
			Hold: func(_ *testing.T, node *transporttest.Node) func() {
				n.Stop(node.Peer.Address)
				return func() { n.Continue(node.Peer.Address) }
			},
			CutRail: func(_ *testing.T, node *transporttest.Node, rail transport.Rail) {
				where := sim.Where{A: node.Peer.Address, Rail: int(rail.Index)}
				n.Down(where)
				n.Up(where)
			},
		}
	}
}

func TestConformanceWithoutFaults(t *testing.T) {
	plan, err := New("")
	require.NoError(t, err)
	transporttest.Run(t, harness(plan))
}

// TestConformanceWithFaultsThatKeepTheContract: slices that come late, twice, in another order or slowly break no rule.
func TestConformanceWithFaultsThatKeepTheContract(t *testing.T) {
	for _, text := range []string{"delay=50us rate=0.5",
		"duplicate rate=0.3; reorder=3 rate=0.3; slow=512MiB rate=0.5; delay=20us rate=0.2"} {
		t.Run(text, func(t *testing.T) {
			plan, err := New(text + "; seed=1")
			require.NoError(t, err)
			transporttest.Again(t, func(t *testing.T) transporttest.Harness {
				h := harness(plan)(t)
				h.Allocates = "faults allocate"
				return h
			})
		})
	}
}

// bench is two wrapped engines with operands of 64 slices.
type bench struct {
	w      *transporttest.World
	plan   *Plan
	a      *transporttest.Node
	c      *transporttest.Conn
	local  *transporttest.Operand
	remote *transporttest.Remote
}

const (
	slots  = 64
	length = 1000
	moved  = 2
)

func newBench(t *testing.T, faults string) *bench {
	t.Helper()
	plan, err := New(faults)
	require.NoError(t, err)
	h := harness(plan)(t)
	h.Patience = 10e9
	b := &bench{w: transporttest.NewWorld(t, h), plan: plan}
	b.a = b.w.Open("a")
	to := b.w.Open("b")
	b.c = b.a.Connect(t, to)
	b.local = b.a.Register(t, slots*length, mem.LocalReadWrite)
	b.remote = b.c.Import(t, to.Register(t, slots*length, mem.GlobalReadWrite))
	b.local.Fill(moved, 0, b.local.Size)
	return b
}

func (b *bench) apply(t *testing.T, text string) {
	t.Helper()
	require.NoError(t, b.plan.Apply(text))
}

func (b *bench) slices(rail transport.Rail, n int) (list []*transport.Slice) {
	for i := range uint64(n) {
		list = append(list, b.c.Slice(transport.Write, rail, b.local, i*length, b.remote, i*length, length))
	}
	return list
}

// arrived reports whether the bytes of slot i are there.
func (b *bench) arrived(i int) bool {
	at := uint64(i) * length
	return b.remote.Check(moved, at, at, length) == nil
}

// lost waits for the slices of a list but for those that are wanted to be lost, and returns the wanted that did not
// arrive.
func (b *bench) lost(t *testing.T, list []*transport.Slice, want []int) (lost []int) {
	t.Helper()
	for i := range list {
		if !slices.Contains(want, i) {
			b.c.Wait(t, list[i])
		} else if !b.arrived(i) {
			lost = append(lost, i)
		}
	}
	return lost
}

// ended counts the slices that have completed now.
func (b *bench) ended(list []*transport.Slice) int {
	return b.w.Ended(list...)
}

func TestRejectedSlicesAreNeverSent(t *testing.T) {
	b := newBench(t, "reject rate=0.5 code=RPC_SERVICE_ERROR scope=link side=remote seed=3")
	list := b.slices(b.c.Rail(t), slots)
	require.Equal(t, slots, b.c.Send(list...))
	failed := 0
	for i, end := range b.c.Wait(t, list...) {
		require.Equal(t, end.Err == nil, b.arrived(i), "slice %d", i)
		if end.Err != nil {
			failed++
			require.Equal(t, errs.RpcServiceError, end.Err.Code)
			require.Equal(t, errs.ScopeLink, end.Err.Scope)
			require.Equal(t, errs.SideRemote, end.Err.Side)
		}
	}
	require.InDelta(t, slots/2, failed, slots/4)
}

func TestTheSameSeedGivesTheSameFaults(t *testing.T) {
	var patterns [2][]bool
	for round := range patterns {
		b := newBench(t, "seed=11; submit_fail_rate=0.4; status_corrupt_rate=0.2")
		list := b.slices(b.c.Rail(t), slots)
		require.Equal(t, slots, b.c.Send(list...))
		for _, end := range b.c.Wait(t, list...) {
			patterns[round] = append(patterns[round], end.Err == nil)
		}
	}
	require.Equal(t, patterns[0], patterns[1])
	require.Contains(t, patterns[0], true)
	require.Contains(t, patterns[0], false)
}

func TestFailAfterNSubmits(t *testing.T) {
	b := newBench(t, "fail_after_n_submits=5")
	list := b.slices(b.c.Rail(t), 12)
	require.Equal(t, 12, b.c.Send(list...))
	for i, end := range b.c.Wait(t, list...) {
		require.Equal(t, i < 5, end.Err == nil, "slice %d", i)
		require.Equal(t, i < 5, b.arrived(i))
	}
}

func TestACountIsTheMostThatStrike(t *testing.T) {
	for count, text := range []string{"reject count=0", "reject count=1", "reject count=2"} {
		b := newBench(t, text)
		list := b.slices(b.c.Rail(t), 4)
		require.Equal(t, 4, b.c.Send(list...))
		for i, end := range b.c.Wait(t, list...) {
			require.Equal(t, i < count, end.Err != nil, "%s, slice %d", text, i)
		}
	}
}

func TestFailInstall(t *testing.T) {
	plan, err := New("transport=sim fail_install")
	require.NoError(t, err)
	_, err = Wrap(sim.Factory{Settings: sim.Settings{Network: sim.NewInline(1)}}, plan).Open(t.Context(), nil, nil, nil)
	require.ErrorContains(t, err, "fail_install")
	require.EqualValues(t, 1, plan.Struck()[0].Hits)
	b := newBench(t, "transport=tcp fail_install")
	b.c.Must(t, b.slices(b.c.Rail(t), 1)...)
	require.Zero(t, b.plan.Struck()[0].Hits, "another transport is meant")
	require.Equal(t, sim.Factory{}, Wrap(sim.Factory{}, nil))
}

// TestFlippedCompletionsAreQuiet: a slice that is reported as failed was delivered, and the report comes after that.
func TestFlippedCompletionsAreQuiet(t *testing.T) {
	b := newBench(t, "status_corrupt_rate=1")
	list := b.slices(b.c.Rail(t), 8)
	require.Equal(t, 8, b.c.Send(list...))
	for i, end := range b.c.Wait(t, list...) {
		require.NotNil(t, end.Err)
		require.Zero(t, end.Bytes)
		require.Equal(t, errs.ScopeLink, end.Err.Scope)
		require.True(t, b.arrived(i))
	}
}

func TestBlackholeAfterBytesOnOneRail(t *testing.T) {
	b := newBench(t, "rail=1 blackhole after_bytes=5000")
	rails := b.c.Rails()
	require.Len(t, rails, 2)
	good := b.slices(rails[0], 20)
	b.c.Must(t, good...)
	list := b.slices(rails[1], 20)
	require.Equal(t, 20, b.c.Send(list...))
	require.Equal(t, 5, b.ended(list), "5000 bytes pass")
	b.c.Node.Transport.Withdraw(list[5:10])
	for _, end := range b.c.Wait(t, list[5:10]...) {
		require.Equal(t, errs.Withdrawn, end.Err.Code)
	}
	b.c.Node.Transport.Fence(rails[1])
	for _, end := range b.c.Wait(t, list...)[10:] {
		require.Equal(t, errs.Withdrawn, end.Err.Code)
	}
}

func TestHealReportsAsLostWhatABlackholeSwallowed(t *testing.T) {
	b := newBench(t, "blackhole")
	list := b.slices(b.c.Rail(t), 20)
	require.Equal(t, 20, b.c.Send(list...))
	require.Zero(t, b.ended(list))
	b.apply(t, "heal")
	for i, end := range b.c.Wait(t, list...) {
		require.Equal(t, errs.Lost, end.Err.Code)
		require.True(t, end.Err.Collateral, "the rail is fine now")
		require.False(t, b.arrived(i), "what was sent late would pass an owner's fence")
	}
}

func TestSilentBlackholesAnswerNoWithdrawal(t *testing.T) {
	b := newBench(t, "blackhole silent")
	list := b.slices(b.c.Rail(t), 3)
	require.Equal(t, 3, b.c.Send(list...))
	b.a.Transport.Withdraw(list)
	require.Zero(t, b.ended(list))
	b.apply(t, "heal")
	b.c.Wait(t, list...)
}

func TestDroppedCompletionsComeBackWhenAskedFor(t *testing.T) {
	b := newBench(t, "drop_completion count=4")
	list := b.slices(b.c.Rail(t), 10)
	require.Equal(t, 10, b.c.Send(list...))
	require.Equal(t, 6, b.ended(list))
	require.True(t, b.arrived(0), "delivered, and nobody told")
	b.a.Transport.Withdraw(list)
	for _, end := range b.c.Wait(t, list...) {
		require.Nil(t, end.Err)
	}
}

func TestShortSubmitsAreFollowedByReady(t *testing.T) {
	b := newBench(t, "short rate=0.3 seed=5")
	list := b.slices(b.c.Rail(t), slots)
	require.Less(t, b.c.Submit(list...), slots)
	b = newBench(t, "short rate=0.3 seed=5")
	b.c.Must(t, b.slices(b.c.Rail(t), slots)...)
}

func TestRailsGoDownAndHeal(t *testing.T) {
	b := newBench(t, "")
	rails := b.c.Rails()
	b.c.Must(t, b.slices(rails[1], 4)...)
	b.apply(t, "rail=1 down")
	require.Equal(t, rails[:1], b.c.Rails())
	require.Zero(t, b.c.Submit(b.slices(rails[1], 4)...))
	b.c.Must(t, b.slices(rails[0], 4)...)
	b.apply(t, "rail=1 heal")
	again := b.c.Rails()
	require.Len(t, again, 2)
	require.Greater(t, again[1].Generation, rails[1].Generation)
	b.c.Must(t, b.slices(again[1], 4)...)
}

func TestSelectors(t *testing.T) {
	b := newBench(t,
		"op=READ reject; class=2 reject; peer=elsewhere:1 reject; transport=rdma reject; peer=b:1 class=1 lose")
	list := b.slices(b.c.Rail(t), 4)
	for i, s := range list {
		s.Class = uint8(i)
	}
	list[3].Class, list[3].Op = 0, transport.Read
	require.Equal(t, 4, b.c.Send(list...))
	var got []bool
	for _, end := range b.c.Wait(t, list...) {
		got = append(got, end.Err == nil)
	}
	require.Equal(t, []bool{true, false, false, false}, got)
}

func TestExplainNamesTheFaults(t *testing.T) {
	b := newBench(t, "rail=7 reject")
	require.Contains(t, b.a.Transport.(transport.Explainer).Explain(b.c.Link), "with faults: rail=7 reject")
	b.apply(t, "heal")
	require.Contains(t, b.a.Transport.(transport.Explainer).Explain(b.c.Link), "without faults")
}

func TestOptionalInterfacesAreThoseOfTheInnerTransport(t *testing.T) {
	b := newBench(t, "")
	_, notifies := transport.Find[transport.Notifier](b.a.Transport)
	_, probes := transport.Find[transport.Prober](b.a.Transport)
	_, allocates := transport.Find[transport.Allocator](b.a.Transport)
	require.Equal(t, []bool{true, true, false}, []bool{notifies, probes, allocates})
}
