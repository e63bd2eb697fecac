package tests

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/leaks"
	"github.com/tent-engine/tent/transports/all"
)

// census counts the resources that a process can leak.
type census struct{ files, threads, mappings, goroutines, heap int }

func count(t *testing.T) census {
	t.Helper()
	for range 3 {
		runtime.GC()
	}
	threads, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return census{leaks.Descriptors(t), len(threads), bytes.Count(maps, []byte("\n")), runtime.NumGoroutine(),
		int(m.HeapAlloc)}
}

// settled counts again and again until there are no more files and goroutines than these. Threads and goroutines end a
// moment after the call that ended them.
func settled(t *testing.T, most census) (c census) {
	t.Helper()
	for range 50 {
		if c = count(t); c.goroutines <= most.goroutines && c.files <= most.files {
			break
		}
		runtime.Gosched()
	}
	return c
}

// goroutines is where they stand, for the message of a failure.
func goroutines() string {
	var b bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
	return b.String()
}

// cycle opens two engines, moves some bytes and closes everything.
func cycle(t *testing.T, own, theirs []byte) {
	start := func() *engine.Engine {
		c, err := config.Load(config.Options{Transports: all.Transports()}, map[string]any{"max_batches": 64})
		require.NoError(t, err)
		e, err := engine.Open(context.Background(),
			engine.Options{Config: c, Transports: engine.Plugs(all.Factories()...)})
		require.NoError(t, err)
		return e
	}
	here, there := start(), start()
	offer(t, here, own, "")
	_, memory, err := here.Allocate(engine.Memory{Size: 65536, Location: "cpu:0"})
	require.NoError(t, err)
	region := offer(t, there, theirs, "kv")
	at := segment(t, here, there, "kv")
	for _, source := range []uintptr{address(own), memory.Addr} {
		id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: source, Length: 4096,
			Remote: engine.Remote{Segment: at}})
		require.NoError(t, err)
		require.Equal(t, dispatch.Completed, ended(t, here, id).State)
	}
	require.NoError(t, here.CloseSegment(at))
	require.NoError(t, there.CloseRegion(context.Background(), region))
	for _, e := range []*engine.Engine{here, there} {
		require.Empty(t, e.Close(patience, true))
	}
	require.NoError(t, here.FreeMemory(memory.ID))
	for _, e := range []*engine.Engine{here, there} {
		require.NoError(t, e.Forget())
	}
}

func TestAThousandCyclesLeaveNothingBehind(t *testing.T) {
	cycles := 100 // of two engines each
	switch {
	case raceDetector:
		cycles = 50
	case os.Getenv(churnEnv) != "":
		cycles = 500
	}
	own, theirs := memory(t, 65536), memory(t, 65536)
	for range 20 { // pools, caches and the runtime's own threads
		cycle(t, own, theirs)
	}
	before := count(t)
	for range cycles {
		cycle(t, own, theirs)
	}
	after := settled(t, census{files: before.files, goroutines: before.goroutines})
	t.Logf("before %+v, after %d cycles %+v", before, cycles, after)
	require.LessOrEqual(t, after.files, before.files)
	require.LessOrEqual(t, after.goroutines, before.goroutines, "%s", goroutines())
	require.LessOrEqual(t, after.threads, before.threads+4)
	require.LessOrEqual(t, after.mappings, before.mappings+8)
	require.LessOrEqual(t, after.heap, before.heap+2<<20)
}

const logsAtOnce = 1 << 20 // all

// fillHistory makes an engine's table of events as large as it gets, and takes its logs, which Python would. Both have
// bounds, but until they are full they look like a leak of a kilobyte a round.
func fillHistory(t *testing.T, e *engine.Engine) {
	t.Helper()
	follower, err := e.Follow()
	require.NoError(t, err)
	defer e.Unfollow(follower)
	region := make([]byte, 4096)
	for i := 0; ; i++ {
		require.Less(t, i, 1<<16, "the history has no end")
		require.NoError(t, e.CloseRegion(context.Background(), offer(t, e, region, "filler")))
		if _, lost, err := e.Events(follower, 0); lost > 0 {
			require.NoError(t, err)
			break
		}
	}
	e.Logs(logsAtOnce)
}

func TestRegionsSegmentsAndBatchesOfOneEngineLeaveNothingBehind(t *testing.T) {
	here, there := openTCP(t, nil), openTCP(t, nil)
	own := memory(t, 65536)
	offer(t, here, own, "")
	round := func(k int) {
		name := fmt.Sprintf("kv%d", k)
		id, m, err := there.Allocate(engine.Memory{Size: 65536, Name: name, Permission: mem.GlobalReadWrite,
			Location: "cpu:0"})
		require.NoError(t, err)
		at := segment(t, here, there, name)
		b, err := here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own),
			Length: uint64(m.Size),
			Remote: engine.Remote{Segment: at}})
		require.NoError(t, err)
		sum := ended(t, here, b)
		require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
		require.NoError(t, here.CloseSegment(at))
		require.NoError(t, there.CloseRegion(context.Background(), id))
		require.NoError(t, there.FreeMemory(id))
	}
	for k := range 50 {
		round(k)
	}
	fillHistory(t, here)
	fillHistory(t, there)
	before := count(t)
	for k := range 1000 {
		round(k)
		here.Logs(logsAtOnce)
		there.Logs(logsAtOnce)
	}
	after := settled(t, census{files: before.files + 2, goroutines: before.goroutines + 8})
	t.Logf("before %+v, after %+v", before, after)
	require.LessOrEqual(t, after.files, before.files+2) // connections of the control plane, kept for a minute
	require.LessOrEqual(t, after.goroutines, before.goroutines+8, "%s", goroutines())
	// a thread that Go's scheduler adds has some of its own, more with the race detector
	require.LessOrEqual(t, after.mappings, before.mappings+50)
	require.LessOrEqual(t, after.heap, before.heap+1<<20)
}

func TestAnIdleEngineUsesNoProcessor(t *testing.T) {
	here, there := openTCP(t, nil), openTCP(t, nil)
	own, theirs := memory(t, 4096), memory(t, 4096)
	offer(t, here, own, "")
	offer(t, there, theirs, "kv")
	exchange(t, here, segment(t, here, there, "kv"), own, transport.Write)
	before := processorTime(t)
	there.NotesWait(500 * time.Millisecond) // nobody sends any: an idle half second
	used := processorTime(t) - before
	require.Less(t, used, 25*time.Millisecond, "two idle engines used the processor")
}

// TestMain passes one goroutine by. A pool of the redis client that has lost its server dials once a second, and then
// finds itself closed.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
