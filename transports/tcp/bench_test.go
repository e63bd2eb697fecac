package tcp

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

// counting is a Sink for benchmarks: it counts completions.
type counting struct {
	*endpoint
	ended  atomic.Int64
	failed atomic.Int64
}

func (c *counting) Complete(list []transport.Completion) {
	for i := range list {
		if list[i].Err != nil {
			c.failed.Add(1)
		}
	}
	c.ended.Add(int64(len(list)))
}

// runner moves requests of one size by one thread, the way the engine does: submit, poll for a while, then park.
type runner struct {
	c      *couple
	sink   *counting
	tr     *Transport
	slices []*transport.Slice
	ready  chan struct{}
}

func newRunner(b testing.TB, op transport.Op, size, count int) *runner {
	c := newCouple(b, Settings{}, childBytes)
	r := &runner{c: c, tr: c.tr.(*Transport), ready: make(chan struct{}, 1)}
	r.sink = &counting{endpoint: c.endpoint}
	r.tr.sink = readyOn{r.sink, r.ready}
	piece := int(min(uint64(size), r.tr.Info().SliceBest))
	for i := range count {
		for at := 0; at < size; at += piece {
			s := c.slice(op, 0, (i*size+at)%childBytes, min(piece, size-at))
			r.slices = append(r.slices, s)
		}
	}
	return r
}

type readyOn struct {
	*counting
	ready chan struct{}
}

func (r readyOn) Complete(list []transport.Completion) {
	r.counting.Complete(list)
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

func (r readyOn) Ready(transport.Rail) {
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

// round submits everything and waits for its completions.
func (r *runner) round(b testing.TB) {
	goal := r.sink.ended.Load() + int64(len(r.slices))
	rest := r.slices
	polled := false
	r.tr.Poll(0, transport.AllClasses)
	begin := clock.Now()
	for i := 0; r.sink.ended.Load() < goal; i++ {
		if len(rest) > 0 {
			rest = rest[r.tr.Submit(rest):]
		}
		if r.tr.Poll(64, transport.AllClasses) > 0 {
			begin = clock.Now()
		}
		polled = true
		if i%8 == 7 && clock.Now().Sub(begin) > 50*time.Microsecond {
			r.tr.Arm()
			polled = false
			if r.sink.ended.Load() < goal {
				<-r.ready
			}
			begin = clock.Now()
		}
	}
	if polled {
		r.tr.Arm()
	}
	require.Zero(b, r.sink.failed.Load())
}

func cpuSeconds(b testing.TB) float64 {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

var shapes = []struct {
	op          transport.Op
	size, count int
}{
	{transport.Write, 64, 1}, {transport.Write, 4 << 10, 1}, {transport.Read, 4 << 10, 1},
	{transport.Write, 64 << 10, 1}, {transport.Write, 4 << 10, 64}, {transport.Write, 4 << 10, 256},
	{transport.Write, 64 << 10, 64}, {transport.Write, 1 << 20, 1}, {transport.Write, 64 << 20, 1},
	{transport.Read, 64 << 20, 1},
}

// BenchmarkMove gives p50 and p99 of rounds between two processes over loopback; make bench compares with plain
// programs.
func BenchmarkMove(b *testing.B) {
	for _, s := range shapes {
		b.Run(fmt.Sprintf("%v/%dx%d", s.op, s.count, s.size), func(b *testing.B) {
			r := newRunner(b, s.op, s.size, s.count)
			for range 20 {
				r.round(b)
			}
			took := make([]time.Duration, 0, 1<<20)
			b.SetBytes(int64(s.size * s.count))
			b.ReportAllocs()
			cpu := cpuSeconds(b) + r.c.child.processorSeconds(b)
			for b.Loop() {
				begin := clock.Now()
				r.round(b)
				if len(took) < cap(took) {
					took = append(took, clock.Now().Sub(begin))
				}
			}
			cpu = cpuSeconds(b) + r.c.child.processorSeconds(b) - cpu
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
			b.ReportMetric(cpu*1e9/float64(b.N), "cpu-ns/op")
		})
	}
}

// TestSubmitToCompletionAllocatesNothing covers both ends: they run in this process.
func TestSubmitToCompletionAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates on its own")
	}
	e, err := newEndpoint(Settings{})
	require.NoError(t, err)
	t.Cleanup(func() { e.close(t) })
	e.self.Self = true
	c := &couple{endpoint: e, memory: mapping(t, 1<<20)}
	key, d, err := e.tr.Register(context.Background(), regionOf(c.memory))
	require.NoError(t, err)
	c.key = key
	c.link, err = e.tr.Attach(e.self)
	require.NoError(t, err)
	c.remote, err = e.tr.Import(c.link, d)
	require.NoError(t, err)
	c.await(t, "rail", 5*time.Second, func() bool { return len(c.rails) == 1 })
	r := &runner{c: c, tr: c.tr.(*Transport), ready: make(chan struct{}, 1), sink: &counting{endpoint: e}}
	r.tr.sink = readyOn{r.sink, r.ready}
	for i := range 32 {
		s := c.slice(transport.Op(i%2), 0, i*4096, 4096)
		s.Remote = 512<<10 + uint64(i)*4096
		r.slices = append(r.slices, s)
	}
	for range 50 {
		r.round(t)
	}
	require.Zero(t, testing.AllocsPerRun(200, func() { r.round(t) }))
}

var _ transport.Sink = (*endpoint)(nil)
