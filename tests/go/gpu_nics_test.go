//go:build cgo

package tests

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/fakes/cuda"
	fake "github.com/tent-engine/tent/tests/fakes/verbs"
	"github.com/tent-engine/tent/transports/all"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/faulty"
)

// NVLink between two engines of this process fails under a transfer, which goes on by NICs, and carries the next one
// again. The race detector sees both ends here. Package tests/go/staged has two processes.
func TestEnginesOfAProcessFailOverFromNVLinkToRDMA(t *testing.T) {
	const size, band = 2<<20 + 777, 4096
	chaos := cuda.Settings{"DELAY_US": "20", "SEED": fmt.Sprint(rand.Int32())}
	t.Logf("settings %v", chaos)
	cuda.RunWith(t, cuda.Driver{}, chaos, fake.Environment(t), func(t *testing.T, gpu *cuda.Loaded) {
		plan, err := faulty.New("")
		require.NoError(t, err)
		start := func(device int, name string, permission mem.Permission) (*engine.Engine, uintptr) {
			factories := all.Factories()
			for i := range factories {
				factories[i] = faulty.Wrap(factories[i], plan)
			}
			at, err := driver.Platform{}.Allocate(device, size+2*band)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, driver.Platform{}.Free(at, size+2*band)) })
			e := openWith(t, map[string]any{"transports/nvlink/enable": true, "transports/rdma/num_lanes": 2,
				"transports/tcp/enable": false, "transports/shm/enable": false, "staging/enable": false,
				"rail_suspect_ms": 900}, // a busy machine must add no failover
				all.Transports(), engine.Plugs(factories...), all.Platforms()...)
			_, err = e.Register(engine.Memory{Addr: at + band, Size: size, Name: name, Location: mem.Wildcard,
				Permission: permission})
			require.NoError(t, err)
			return e, at
		}
		there, theirs := start(1, "cache", mem.GlobalReadWrite)
		here, mine := start(0, "", mem.LocalReadWrite)
		r := engine.Request{Terms: request.Terms{Op: transport.Write}, Source: mine + band, Length: size,
			Remote: engine.Remote{Segment: segment(t, here, there, "cache")}}
		expected, read := make([]byte, size+2*band), make([]byte, size+2*band)
		pattern(expected, 99, 0)
		require.NoError(t, gpu.Poke(theirs, expected))
		move := func(k int, happens func()) dispatch.Summary {
			pattern(expected[band:][:size], k, 0)
			require.NoError(t, gpu.Poke(mine+band, expected[band:][:size]))
			id, err := here.Move(&r)
			require.NoError(t, err)
			happens()
			s := ended(t, here, id)
			require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
			require.NoError(t, gpu.Peek(read, theirs))
			require.Equal(t, expected, read)
			return s
		}
		for round := range 6 {
			require.Zero(t, move(2*round, func() {}).Failovers)
			gpu.Hold(true)
			s := move(2*round+1, func() {
				require.NoError(t, plan.Apply("transport=nvlink down"))
				gpu.Hold(false)
			})
			require.EqualValues(t, 1, s.Failovers)
			require.NoError(t, plan.Apply("heal"))
			for x := "rdma"; x != "nvlink"; runtime.Gosched() {
				made, err := here.Explain(&r)
				require.NoError(t, err)
				x = made.Taken
			}
		}
	})
}
