package faulty

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestDropLosesTheNthSlice(t *testing.T) {
	b := newBench(t, "nth=3 drop")
	list := b.slices(b.c.Rail(t), 8)
	require.Equal(t, 8, b.c.Send(list...))
	require.Equal(t, 7, b.ended(list))
	require.False(t, b.arrived(2))
	b.a.Transport.Withdraw(list)
	require.Equal(t, errs.Withdrawn, b.c.Wait(t, list...)[2].Err.Code)
	b.c.Must(t, b.slices(b.c.Rail(t), 8)...) // the third came once
}

func TestEveryTakesOneInSoMany(t *testing.T) {
	b := newBench(t, "every=4 reject")
	list := b.slices(b.c.Rail(t), 12)
	require.Equal(t, 12, b.c.Send(list...))
	for i, end := range b.c.Wait(t, list...) {
		require.Equal(t, i%4 == 3, end.Err != nil, "slice %d", i)
	}
}

func TestTruncatedSlicesHaveHalfTheirBytes(t *testing.T) {
	for _, text := range []string{"truncate", "truncate silent"} {
		b := newBench(t, text)
		list := b.slices(b.c.Rail(t), 3)
		require.Equal(t, 3, b.c.Send(list...))
		for i, end := range b.c.Wait(t, list...) {
			at := uint64(i) * length
			require.Equal(t, text == "truncate", end.Err != nil)
			require.NoError(t, b.remote.Check(moved, at, at, length/2))
			require.Error(t, b.remote.Check(moved, at+length/2, at+length/2, length/2))
		}
	}
}

// TestTruncatedPiecesAreWholeOnes: half of a slice of many pieces is half of the pieces.
func TestTruncatedPiecesAreWholeOnes(t *testing.T) {
	plan, err := New("")
	require.NoError(t, err)
	tr := &Transport{plan: plan, alignment: 1}
	pieces := &transport.Pieces{LocalAt: []uint64{0, 10, 20, 30}, RemoteAt: []uint64{5, 15, 25, 35}, Bytes: 10}
	s := transport.Slice{Length: 30, Pieces: pieces, First: 1}
	tr.halve(&s)
	require.Equal(t, transport.Slice{Length: 10, Pieces: pieces, First: 1}, s)
	tr.halve(&s)
	require.Equal(t, transport.Slice{Length: 5, Local: 10, Remote: 15}, s, "a part of one piece is a plain range")
	local, remote := tr.middle(&transport.Slice{Length: 30, Pieces: pieces, First: 1, Local: 1000, Remote: 100})
	require.Equal(t, uintptr(1000+20+5), local, "the 16th byte is in the second of three pieces")
	require.Equal(t, uint64(100+25+5), remote)
}

func TestCorruptionChangesOneByteWithoutAWord(t *testing.T) {
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		b := newBench(t, "corrupt count=2")
		at := b.remote.Memory
		list := b.slices(b.c.Rail(t), 4)
		if op == transport.Read {
			at = b.local.Memory
			b.remote.Fill(moved, 0, b.remote.Size)
			b.local.Fill(moved+1, 0, b.local.Size)
		}
		for _, s := range list {
			s.Op = op
		}
		b.c.Must(t, list...)
		for i := range uint64(4) {
			middle := i*length + length/2
			require.Equal(t, i < 2, at.Check(moved, middle, middle, 1) != nil, "%v slice %d", op, i)
			require.NoError(t, at.Check(moved, i*length, i*length, length/2))
			require.NoError(t, at.Check(moved, middle+1, middle+1, length/2-1))
		}
		if op == transport.Write {
			require.NoError(t, b.local.Check(moved, 0, 0, b.local.Size), "the source is the user's")
		}
	}
}

// frugal is an inner transport that has room for slices of the core alone.
type frugal struct{ transport.Transport }

func (f frugal) Submit(list []*transport.Slice) int {
	if len(list) == 1 && list[0].Id >= ownId {
		return 0
	}
	return f.Transport.Submit(list)
}

// TestWhatCannotBeSentIsNoStrike: a byte that stays right, or a copy that is not made, has tested nothing.
func TestWhatCannotBeSentIsNoStrike(t *testing.T) {
	for _, text := range []string{"corrupt count=1", "duplicate count=1"} {
		b := newBench(t, text)
		tr := b.a.Transport.(*Transport)
		inner := tr.Transport
		tr.Transport = frugal{inner}
		list := b.slices(b.c.Rail(t), 2)
		b.c.Must(t, list[0])
		require.True(t, b.arrived(0), text)
		require.Zero(t, b.plan.Struck()[0].Hits, text)
		tr.Transport = inner
		b.c.Must(t, list[1])
		require.Equal(t, uint64(1), b.plan.Struck()[0].Hits, "%s: the next one", text)
	}
	b := newBench(t, "corrupt")
	tr := b.a.Transport.(*Transport)
	tr.mu.Lock()
	tr.scratch.used = ^uint64(0) // as many are under way
	tr.mu.Unlock()
	b.c.Must(t, b.slices(b.c.Rail(t), 1)...)
	require.True(t, b.arrived(0))
	require.Zero(t, b.plan.Struck()[0].Hits)
}

func TestCorruptionOfCheckedSlicesIsReported(t *testing.T) {
	b := newBench(t, "corrupt nth=2")
	list := b.slices(b.c.Rail(t), 3)
	for _, s := range list {
		s.Checked = true
	}
	require.Equal(t, 3, b.c.Send(list...))
	for i, end := range b.c.Wait(t, list...) {
		require.Equal(t, i == 1, end.Err != nil && end.Err.Code == errs.Corrupted, "%v", end.Err)
	}
}

// counter counts the slices that reach the transport below.
type counter struct {
	transport.Transport
	slices int
}

func (c *counter) Submit(list []*transport.Slice) int {
	n := c.Transport.Submit(list)
	c.slices += n
	return n
}

func TestDuplicatesAreSentTwiceAndCompleteOnce(t *testing.T) {
	b := newBench(t, "duplicate count=3")
	below := &counter{Transport: b.a.Transport.(*Transport).Transport}
	b.a.Transport.(*Transport).Transport = below
	b.c.Must(t, b.slices(b.c.Rail(t), 5)...) // the world complains about a second completion
	require.Equal(t, 8, below.slices)
}

func TestReorderedCompletionsComeBehindOthers(t *testing.T) {
	b := newBench(t, "reorder=2 nth=1")
	list := b.slices(b.c.Rail(t), 4)
	for i, want := range []int{0, 1, 3, 4} {
		require.Equal(t, 1, b.c.Send(list[i]))
		require.Equal(t, want, b.ended(list), "after slice %d", i)
	}
	last := b.slices(b.c.Rail(t), 1)
	b.apply(t, "reorder=5")
	b.c.Must(t, last...) // nobody passes it: its time comes
}

// TestSlowRailsCarryWhatTheyAreToldTo: 40 kB at 400 kB/s last a tenth of a second, and other rails are not slowed.
func TestSlowRailsCarryWhatTheyAreToldTo(t *testing.T) {
	b := newBench(t, "slow=1GiB; rail=1 slow=400000") // the slower one counts
	rails := b.c.Rails()
	begin := clock.Now()
	list := b.slices(rails[1], 40)
	require.Equal(t, 40, b.c.Send(list...))
	b.c.Must(t, b.slices(rails[0], 40)...)
	require.Less(t, b.ended(list), 40)
	b.c.Wait(t, list...)
	require.GreaterOrEqual(t, clock.Now().Sub(begin), 95*time.Millisecond)
}

// TestASlowerRuleBeginsWhenItsParametersSay: it takes no slice that it would not hit by itself. The rails of the test
// kit's pairs are slowed all the time, as this one is.
func TestASlowerRuleBeginsWhenItsParametersSay(t *testing.T) {
	const n = 6
	for parameters, want := range map[string][]int{"after_slices=4": {4, 5}, "after_bytes=4kB": {4, 5}, "nth=2": {1},
		"every=3": {2, 5}, "count=2": {0, 1}, "rate=0": nil, "nth=1000": nil} {
		b := newBench(t, "slow=1GiB ambient; slow=1 "+parameters) // that one keeps a slice for a quarter of an hour
		list := b.slices(b.c.Rail(t), n)
		require.Equal(t, n, b.c.Send(list...))
		var kept, passing []*transport.Slice
		for i, s := range list {
			if slices.Contains(want, i) {
				kept = append(kept, s)
			} else {
				passing = append(passing, s)
			}
		}
		b.c.Wait(t, passing...)
		require.Zero(t, b.ended(kept), parameters)
		_, struck, ambient := b.a.Transport.(*Transport).Injected()
		require.Equal(t, uint64(len(want)), struck, parameters)
		require.Equal(t, uint64(n-len(want)), ambient, parameters)
		require.Equal(t, uint64(len(want)), b.plan.Struck()[0].Hits, parameters)
		b.a.Transport.Withdraw(kept)
		b.c.Wait(t, kept...)
	}
}

// TestAFasterRuleBehindASlowerOneChangesNothingOfIt: no slice is offered twice to the slower one.
func TestAFasterRuleBehindASlowerOneChangesNothingOfIt(t *testing.T) {
	for _, slower := range []string{"slow=512MiB rate=0.3", "slow=512MiB every=3", "slow=512MiB count=5"} {
		var hits [2]uint64
		for i, faster := range []string{"", "; slow=1GiB ambient"} {
			b := newBench(t, "seed=3; "+slower+faster)
			b.c.Must(t, b.slices(b.c.Rail(t), slots)...)
			hits[i] = b.plan.Struck()[0].Hits
		}
		require.NotZero(t, hits[0], slower)
		require.Equal(t, hits[0], hits[1], slower)
	}
}

func TestWhatASlowRailStillCarriesComesBackWhenAskedFor(t *testing.T) {
	b := newBench(t, "slow=1")
	list := b.slices(b.c.Rail(t), 3)
	require.Equal(t, 3, b.c.Send(list...))
	require.Zero(t, b.ended(list))
	b.a.Transport.Withdraw(list)
	for _, end := range b.c.Wait(t, list...) {
		require.Equal(t, errs.Withdrawn, end.Err.Code)
	}
}

func TestASlowRailCanAlsoBreak(t *testing.T) {
	b := newBench(t, "slow=1GiB; rail=0 lose count=1; rail=0 blackhole after_slices=2")
	list := b.slices(b.c.Rail(t), 3)
	require.Equal(t, 3, b.c.Send(list...))
	ends := b.c.Wait(t, list[:2]...)
	require.Equal(t, errs.Lost, ends[0].Err.Code)
	require.Nil(t, ends[1].Err)
	require.Equal(t, 2, b.ended(list))
	b.a.Transport.Withdraw(list)
	b.c.Wait(t, list...)
}

func TestResetIsOnce(t *testing.T) {
	b := newBench(t, "")
	before := b.c.Rails()
	b.apply(t, "rail=1 reset")
	require.Empty(t, b.plan.String(), "nothing stays in force")
	require.Eventually(t, func() bool { return len(b.c.Rails()) == 2 }, 10*time.Second, time.Millisecond,
		"the rail comes back")
	after := b.c.Rails()
	require.Greater(t, after[1].Generation, before[1].Generation)
	require.Equal(t, before[0], after[0])
	b.c.Must(t, b.slices(after[1], 4)...)
}

func TestRegisterAndAttachFail(t *testing.T) {
	b := newBench(t, "")
	b.apply(t, "fail_register count=1 code=RDMA_ERROR; fail_attach nth=2")
	_, _, err := b.a.Transport.Register(t.Context(), mem.Region{ID: 99, Addr: b.local.Addr, Size: 100, Fd: -1})
	require.Equal(t, errs.RdmaError, errs.CodeOf(err))
	_, err = b.a.Transport.Attach(transport.Peer{Address: "b:1", ID: transport.NumberedID(5)})
	require.NoError(t, err)
	_, err = b.a.Transport.Attach(transport.Peer{Address: "b:1", ID: transport.NumberedID(6)})
	require.ErrorContains(t, err, "fail_attach")
	require.Equal(t, errs.ScopeLink, errs.From("", err).Scope)
}

func TestProbesFareAsSlicesWould(t *testing.T) {
	b := newBench(t, "")
	prober, is := transport.Find[transport.Prober](b.a.Transport)
	require.True(t, is)
	probe := func() *errs.Error {
		var wait sync.WaitGroup
		var got *errs.Error
		wait.Add(1)
		prober.Probe(b.c.Rail(t), func(_ clock.Time, err *errs.Error) { got = err; wait.Done() })
		wait.Wait()
		return got
	}
	require.Nil(t, probe())
	for _, text := range []string{"blackhole", "drop", "reject", "drop_completion"} {
		b.apply(t, "heal; "+text)
		require.NotNil(t, probe(), text)
	}
	for _, text := range []string{"heal", "delay=1ms", "slow=1MiB", "rail=1 blackhole", "op=READ blackhole",
		"blackhole after_slices=9", "drop count=3", "reject count=1", "drop_completion count=1"} {
		b.apply(t, "heal; "+text)
		require.Nil(t, probe(), text)
	}
}

// inlining is an inner transport that carries out anything at once.
type inlining struct{ transport.Transport }

func (inlining) Inline([]*transport.Slice) bool { return true }

func TestNothingIsInlineWhileAFaultMayMeetIt(t *testing.T) {
	b := newBench(t, "")
	tr := b.a.Transport.(*Transport)
	tr.inliner = inlining{}
	list := b.slices(b.c.Rail(t), 1)
	for text, want := range map[string]bool{"": true, "blackhole": false, "transport=rdma blackhole": true} {
		b.apply(t, "heal; "+text)
		require.Equal(t, want, tr.Inline(list), text)
	}
}

func TestInjectedCountsWhatHasHappened(t *testing.T) {
	b := newBench(t, "transport=rdma reject; lose count=2; every=3 delay=1us")
	b.c.Send(b.slices(b.c.Rail(t), 6)...)
	rules, struck, _ := b.a.Transport.(*Transport).Injected()
	require.Equal(t, 2, rules, "those of another transport are not counted")
	require.Equal(t, uint64(2+2), struck)
	_, is := transport.Outermost[transport.Injector](b.a.Transport)
	require.True(t, is)
}

// TestTheControlPlaneGoesDown: open connections break, new ones are refused, other addresses work, heal heals.
func TestTheControlPlaneGoesDown(t *testing.T) {
	plan, err := New("")
	require.NoError(t, err)
	var listener net.ListenConfig
	server, err := listener.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	defer serving.Wait() // its descriptors are closed when the next test counts its own
	defer server.Close()
	serving.Go(func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = c.Write([]byte("x"))
		}
	})
	dial := func() (net.Conn, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		return plan.Dial(ctx, "tcp", server.Addr().String())
	}
	c, err := dial()
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	require.NoError(t, err)

	require.NoError(t, plan.Apply("control_down peer="+server.Addr().String()))
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err, "the open connection is broken")
	_, err = dial()
	require.ErrorContains(t, err, "refused")

	require.NoError(t, plan.Apply("heal; control_down silent"))
	_, err = dial()
	require.ErrorIs(t, err, context.DeadlineExceeded)

	require.NoError(t, plan.Apply("heal; control_down peer=127.0.0.9:1"))
	c, err = dial()
	require.NoError(t, err)
	require.NoError(t, plan.Apply("control_down silent"))
	heard := make(chan error, 1)
	go func() { _, err := c.Read(make([]byte, 1)); heard <- err }()
	select {
	case err := <-heard:
		t.Fatalf("heard something on a silent connection: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	require.NoError(t, plan.Apply("heal"))
	require.NoError(t, <-heard, "what had come is heard now")
	require.NoError(t, c.Close())
}

// A fault that comes while a connection is being made breaks it, as it breaks one that is there.
func TestAConnectionIsNotMadeBehindAFault(t *testing.T) {
	for text, stays := range map[string]bool{"": true, "control_down": false, "control_down peer=10.0.0.1:5": false,
		"control_down peer=10.0.0.1:6": true, "control_down silent": true} {
		plan, err := New("")
		require.NoError(t, err)
		before := plan.wires.turned
		require.NoError(t, plan.Apply(text))
		near, far := net.Pipe()
		c := &wire{Conn: near, of: &plan.wires, address: "10.0.0.1:5", closed: make(chan struct{})}
		require.Equal(t, stays, plan.wires.keep(c, before), text)
		require.NoError(t, c.Close())
		require.NoError(t, far.Close())
		if !stays {
			require.EqualValues(t, 1, plan.Struck()[0].Hits)
		}
		require.Empty(t, plan.wires.open)
	}
}

// witnessing is an inner transport that hears of its rails all the time.
type witnessing struct{ transport.Transport }

func (witnessing) Heard(transport.Rail) transport.Signs {
	return transport.Signs{Heard: clock.Now(), Held: true}
}

func TestNothingIsHeardOutOfABlackhole(t *testing.T) {
	b := newBench(t, "delay=0s")
	tr, rail := b.a.Transport.(*Transport), b.c.Rail(t)
	tr.witness = witnessing{}
	first, second := tr.Heard(rail), tr.Heard(rail)
	require.True(t, second.Held)
	require.Greater(t, second.Heard, first.Heard)
	b.apply(t, "blackhole")
	third := tr.Heard(rail)
	require.False(t, third.Held, "a hole is no peer that holds the rail up")
	require.Equal(t, second.Heard, third.Heard)
	b.apply(t, "heal")
	require.Greater(t, tr.Heard(rail).Heard, third.Heard)
}

// TestABlackholeKeepsWhatASlowRailStillCarries: a slice that waits for its turn when the hole opens does not come out
// any more.
func TestABlackholeKeepsWhatASlowRailStillCarries(t *testing.T) {
	b := newBench(t, "slow=100000") // a slice lasts 10 ms
	list := b.slices(b.c.Rail(t), 4)
	require.Equal(t, 4, b.c.Send(list...))
	b.c.Wait(t, list[0])
	b.apply(t, "blackhole")
	b.apply(t, "delay=1us rail=9") // no more than a change
	out := b.ended(list)
	probe, _ := transport.Find[transport.Prober](b.a.Transport)
	silent := make(chan struct{})
	probe.Probe(b.c.Rail(t), func(clock.Time, *errs.Error) { close(silent) }) // comes 100 ms later: all turns are over
	<-silent
	require.Equal(t, out, b.ended(list))
	require.Equal(t, Count{"blackhole", uint64(len(list) - out), false}, b.plan.Struck()[1])
	b.a.Transport.Withdraw(list)
	for _, end := range b.c.Wait(t, list...)[out:] {
		require.Equal(t, errs.Withdrawn, end.Err.Code, "as far as anybody can know, it was not delivered")
	}
}

func TestFaultsThatNeverStruckAreKnownAlsoAfterTheirEnd(t *testing.T) {
	b := newBench(t, "")
	b.apply(t, "rail=0 lose count=2; rail=9 drop; rail=9 delay=1us unused_ok; rail=1 reset; slow=1GiB ambient")
	require.Equal(t, "rail=0 lose count=2; rail=9 drop; rail=9 delay=1us unused_ok; slow=1GiB ambient", b.plan.String())
	list := b.slices(b.c.Rail(t), 3)
	require.Equal(t, 3, b.c.Send(list...))
	b.c.Wait(t, list...)
	rules, struck, ambient := b.a.Transport.(*Transport).Injected()
	require.Equal(t, 3, rules, "the ambient one is not counted")
	require.Equal(t, uint64(2+1), struck, "two slices and a rail")
	require.Equal(t, uint64(1), ambient, "the third slice")

	b.apply(t, "heal")
	require.Equal(t, "slow=1GiB ambient", b.plan.String())
	require.Equal(t, []Count{{"rail=0 lose count=2", 2, false}, {"rail=9 drop", 0, false},
		{"rail=9 delay=1us unused_ok", 0, true}, {"rail=1 reset", 1, false}}, b.plan.Struck())
	b.apply(t, "heal ambient")
	require.Empty(t, b.plan.String())
}

func TestTheHistoryOfFaultsIsBoundedAndKeepsThoseThatNeverStruck(t *testing.T) {
	p, err := New("rail=9 drop")
	require.NoError(t, err)
	for range historyMax {
		require.NoError(t, p.Apply("lose; heal"))
		if h := p.history[len(p.history)-1]; h.verb == lose {
			h.hits.Add(1)
		}
	}
	counts := p.Struck()
	require.Len(t, counts, historyMax)
	require.Equal(t, "rail=9 drop", counts[0].Text)
}
