//go:build cgo

package staged

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
)

// noAccess is the reason of nvlink where the driver gives no peer access: both GPUs, the cause, and the cure.
const noAccess = "cuda:0 (PCI face:1a:00.0) has no peer access to cuda:1 (PCI face:1b:00.0): cuDeviceCanAccessPeer " +
	"says 0; with staging/enable their bytes go through memory of the host; peer access needs NVLink"

// withoutAccess opens engines with memory of two GPUs without peer access, and carries a test out. Alone, one engine
// has both memories.
func withoutAccess(t *testing.T, alone bool, s fake.Settings, more map[string]any, test func(t *testing.T,
	e *engine.Engine, m memory, far func() []byte, to engine.SegmentID)) {
	s = maps.Clone(s)
	s["APART"], s["DELAY_US"], s["SEED"] = "0-1", "20", fmt.Sprint(rand.Int32())
	t.Logf("settings %v", s)
	fake.Run(t, fake.Driver{}, s, func(t *testing.T, _ *fake.Loaded) {
		opened := maps.Clone(apart)
		maps.Copy(opened, more)
		if !alone {
			c := startWith(t, 1, opened)
			e, m := hereWith(t, 0, opened)
			test(t, e, m, c.bytes, open(t, e, c.address))
			return
		}
		e, m := hereWith(t, 0, opened)
		other, id, err := give(e, 1, "cache", 1)
		require.NoError(t, err)
		t.Cleanup(func() { release(t, e, other, id) })
		test(t, e, m, func() []byte {
			b, err := other.all()
			require.NoError(t, err)
			return b
		}, open(t, e, e.Address()))
	})
}

// Two GPUs without peer access exchange bytes through memory of the host, and the explanation has the reason. Memory of
// one process is no exception: the driver's own way there is silent, and there is none for chunks.
func TestGPUsWithoutPeerAccessAreStaged(t *testing.T) {
	for name, c := range map[string]struct {
		alone    bool
		settings fake.Settings
	}{
		"one engine":              {true, fake.Settings{}},
		"chunks of one engine":    {true, fake.Settings{"RDMA_VMM": "1"}},
		"two processes":           {false, fake.Settings{}},
		"chunks of two processes": {false, fake.Settings{"RDMA_VMM": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			withoutAccess(t, c.alone, c.settings, nil, func(t *testing.T, e *engine.Engine, m memory, far func() []byte,
				to engine.SegmentID) {
				crosses(t, e, m, far, to)
				x, err := e.Explain(request(transport.Write, m, to, 0, size))
				require.NoError(t, err)
				require.Contains(t, x.Routes[0].Staged,
					"staged through host memory: 3 slots of 64 KiB, copied by nvlink")
				require.Contains(t, reasonOf(x, "nvlink"), noAccess)
				awaitSlots(t, e)
			})
		})
	}
}

// Where staging is off, the error has both GPUs and the cause, also for a request that wants nvlink alone. The memory
// stays as it is.
func TestWithoutStagingTheErrorNamesBothGPUs(t *testing.T) {
	for name, alone := range map[string]bool{"one engine": true, "two processes": false} {
		t.Run(name, func(t *testing.T) {
			withoutAccess(t, alone, fake.Settings{}, map[string]any{"staging/enable": false}, func(t *testing.T,
				e *engine.Engine, m memory, far func() []byte, to engine.SegmentID) {
				before, nvlink := far(), e.Config().NumberOf("nvlink")
				for _, c := range []struct {
					terms engine.Terms
					code  errs.Code
				}{
					{engine.Terms{Op: transport.Write}, errs.NoRoute},
					{engine.Terms{Op: transport.Write, Require: 1 << (nvlink % 64)}, errs.NoRoute},
					{engine.Terms{Op: transport.Write, Hint: nvlink}, errs.InvalidArgument},
				} {
					r := request(transport.Write, m, to, 0, size)
					r.Terms = c.terms
					_, err := e.Move(r)
					require.Equal(t, c.code, errs.CodeOf(err), "%+v: %v", c.terms, err)
					require.ErrorContains(t, err, noAccess)
				}
				require.Equal(t, before, far())
			})
		})
	}
}

// A request that wants nvlink alone is staged by nvlink: it carries both hops.
func TestNVLinkAloneStagesByItself(t *testing.T) {
	withoutAccess(t, false, fake.Settings{}, nil, func(t *testing.T, e *engine.Engine, m memory, _ func() []byte,
		to engine.SegmentID) {
		nvlink := e.Config().NumberOf("nvlink")
		for _, terms := range []engine.Terms{{Require: 1 << (nvlink % 64)}, {Hint: nvlink}} {
			r := request(transport.Read, m, to, 0, size)
			r.Terms = terms
			id, err := e.Move(r)
			require.NoError(t, err)
			s := finish(t, e, id)
			require.Equal(t, dispatch.Completed, s.State, "%v", s.Err)
		}
		now, err := m.all()
		require.NoError(t, err)
		want := pattern(2, size+2*band)
		copy(want[band:band+size], pattern(1, size+2*band)[band:])
		require.Equal(t, want, now)
	})
}

// reasonOf returns why a transport is not taken.
func reasonOf(x *engine.Explanation, transport string) string {
	for _, r := range x.Rejected {
		if r.Transport == transport {
			return r.Reason
		}
	}
	return ""
}
