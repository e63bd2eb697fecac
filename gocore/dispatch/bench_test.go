package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// loop is a core over rails that complete everything at once.
type loop struct {
	core        *Core
	now         clock.Time
	specs       []TaskSpec
	completions []transport.Completion
}

func newLoop(tb testing.TB, rails, tasks int, length uint64, merge bool) *loop {
	l := &loop{core: New(Options{Transports: []string{"tcp"}, Merge: merge}), now: clock.Time(time.Second)}
	id := l.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Info: &transport.Info{Vectors: true}})
	for i := range rails {
		l.core.RailUp(id, transport.RailInfo{Rail: railOf(id, i, 1), BytesMax: 4 << 20}, l.now)
	}
	p := &plan.Plan{Routes: []plan.Route{{SliceMax: 1 << 20, SliceBest: 64 * kib, Alignment: 1,
		Hops: []plan.Hop{{Link: id, Op: transport.Write}}}}}
	for i := range tasks {
		l.specs = append(l.specs, TaskSpec{Terms: request.Terms{Op: transport.Write, Deadline: l.now.Add(time.Hour)},
			Plan: p, Local: uintptr(i+1) << 24, Remote: uint64(i) << 25,
			Length: length})
	}
	l.turn(tb) // warm up
	return l
}

// divide gives each task n parts that are not contiguous.
func (l *loop) divide(n int) *loop {
	size := l.specs[0].Length / uint64(n)
	parts := &transport.Pieces{LocalAt: places(0, uint64(n), 2*size), RemoteAt: places(0, uint64(n), 2*size),
		Bytes: size}
	for i := range l.specs {
		l.specs[i].Parts = parts
	}
	return l
}

// turn carries one batch from submit to end.
func (l *loop) turn(tb testing.TB) {
	b, err := l.core.NewBatch(len(l.specs))
	if err == nil {
		_, err = l.core.Submit(b, l.specs, l.now)
	}
	if err != nil {
		tb.Fatal(err)
	}
	for l.core.Outstanding() > 0 || l.core.Pending() > 0 {
		l.pass()
	}
	if err := l.core.FreeBatch(b); err != nil {
		tb.Fatal(err)
	}
}

func (l *loop) pass() {
	l.now += 1000
	e := l.core.Step(l.now)
	l.completions = l.completions[:0]
	for i := range e.Submit {
		for _, s := range e.Submit[i].Slices {
			l.completions = append(l.completions, transport.Completion{Slice: s, Id: s.Id, Bytes: s.Length})
		}
	}
	l.core.Complete(0, l.completions, l.now)
}

func TestNothingIsAllocatedBetweenSubmitAndEnd(t *testing.T) {
	for name, l := range map[string]*loop{
		"small": newLoop(t, 2, 256, 4*kib, false), "large": newLoop(t, 2, 4, 16<<20, false),
		"merged": newLoop(t, 2, 256, 4*kib, true),
		"parts":  newLoop(t, 2, 4, 1<<20, false).divide(256),
	} {
		require.Zero(t, testing.AllocsPerRun(100, func() { l.turn(t) }), name)
	}
}

// A step costs its work, and not the length of its queues: 256 times as many tasks may not make it 16 times as long.
func TestPendingTasksDoNotSlowAStep(t *testing.T) {
	if invariants {
		t.Skip("the core looks at every task behind each call")
	}
	cost := func(waiting int, byDeadline bool) time.Duration {
		l := newLoop(t, 1, 64, 4*kib, false)
		l.core.links[1].byDeadline = byDeadline
		b, err := l.core.NewBatch(waiting)
		require.Nil(t, err)
		specs := make([]TaskSpec, waiting)
		for i := range specs {
			specs[i] = l.specs[0]
			specs[i].Class, specs[i].Length = Low, 1<<40
			specs[i].Deadline += clock.Time(i * 7919 % waiting)
		}
		_, err = l.core.Submit(b, specs, l.now)
		require.Nil(t, err)
		best := time.Hour
		for range 50 {
			start := clock.Now()
			for range 20 {
				l.pass()
			}
			best = min(best, clock.Now().Sub(start))
		}
		return best
	}
	for _, byDeadline := range []bool{false, true} {
		few, many := cost(1<<10, byDeadline), cost(1<<18, byDeadline)
		require.Less(t, many, 16*few, "by deadline: %v", byDeadline)
	}
}

func benchmark(b *testing.B, l *loop, slices int) {
	b.ReportAllocs()
	b.SetBytes(int64(l.specs[0].Length) * int64(len(l.specs)))
	for b.Loop() {
		l.turn(b)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(slices), "ns/slice")
}

// BenchmarkSlice is the cost of a slice of a long task from cut to completion. BenchmarkTask is that of a task of one
// slice from submit to end.
func BenchmarkSlice(b *testing.B) { benchmark(b, newLoop(b, 1, 1, 64<<20, false), 1024) }

func BenchmarkSlice4Rails(b *testing.B) { benchmark(b, newLoop(b, 4, 1, 64<<20, false), 1024) }

// BenchmarkSlice8Rails may cost 1.3 times BenchmarkSlice: the choice looks at one rail a slice, not at all.
func BenchmarkSlice8Rails(b *testing.B) { benchmark(b, newLoop(b, 8, 1, 64<<20, false), 1024) }

// BenchmarkTask8Rails is a task of one slice where eight rails could take it.
func BenchmarkTask8Rails(b *testing.B) { benchmark(b, newLoop(b, 8, 256, 4*kib, false), 256) }

func BenchmarkTask(b *testing.B) { benchmark(b, newLoop(b, 1, 256, 4*kib, false), 256) }

// BenchmarkPart is the cost of a page of a grid: 80 pairs of regions with 256 pages of 4 KiB each.
func BenchmarkPart(b *testing.B) { benchmark(b, newLoop(b, 1, 80, 1<<20, false).divide(256), 80*256) }

func BenchmarkOneTask(b *testing.B) { benchmark(b, newLoop(b, 1, 1, 64, false), 1) }
