//go:build cgo

package staged

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	verbs "github.com/tent-engine/tent/tests/fakes/verbs"
	"github.com/tent-engine/tent/transports/all"
	"github.com/tent-engine/tent/transports/rdma"
)

// overFake is the rdma transport over a library without hardware.
type overFake struct {
	rdma.Factory
	path string
}

func (overFake) Check() error { return nil }

func (f overFake) Open(ctx context.Context, config any, host transport.Host, sink transport.Sink) (transport.Transport,
	error,
) {
	settings := *config.(*rdma.Settings)
	settings.Library, settings.Scan = f.path, 20*time.Millisecond
	return f.Factory.Open(ctx, settings, host, sink)
}

// nics opens an engine that reaches its peers by RDMA alone. NICs do not reach memory of devices.
func nics(t *testing.T, path string) *engine.Engine {
	factories := all.Factories()
	at := slices.IndexFunc(factories, func(f transport.Factory) bool { return f.Name() == rdma.Name })
	factories[at] = overFake{path: path}
	e, err := openOver(factories, map[string]any{"transports/tcp/enable": false, "transports/rdma/num_lanes": 2,
		"transports/rdma/disable_gpu_direct_rdma": true})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(5*time.Second, true), "the engine could not take everything back")
		require.NoError(t, e.Forget())
	})
	return e
}

// Where NICs do not reach a device, RDMA carries its bytes between slots in memory of the host. The devices of the
// emulated libibverbs are one process, so both engines are here.
func TestBytesOfADeviceCrossByRDMA(t *testing.T) {
	for name, c := range map[string]struct {
		here, there int
		taken, how  string
	}{
		"device to host": {0, -1, "rdma", "staged through host memory: 3 slots of 64 KiB, copied by nvlink"},
		"device to device": {0, 1, "delegate", "staged through host memory: 8 slots of 64 KiB, copied by nvlink; " +
			"the peer's engine moves the bytes between there and its device"},
		"host to device": {-1, 1, "delegate", "staged through host memory: 8 slots of 64 KiB, copied by rdma; " +
			"the peer's engine moves the bytes between there and its device"},
	} {
		t.Run(name, func(t *testing.T) {
			chaos := fake.Settings{"DELAY_US": "20", "SEED": fmt.Sprint(rand.Int32())}
			t.Logf("settings %v", chaos)
			fake.Run(t, fake.Driver{}, chaos, func(t *testing.T, _ *fake.Loaded) {
				f := verbs.Open(t)
				far, near := nics(t, f.Path), nics(t, f.Path)
				theirs, id, err := give(far, c.there, "cache", 1)
				require.NoError(t, err)
				t.Cleanup(func() { release(t, far, theirs, id) })
				mine, id, err := give(near, c.here, "", 2)
				require.NoError(t, err)
				t.Cleanup(func() { release(t, near, mine, id) })
				to := open(t, near, far.Address())
				crosses(t, near, mine, func() []byte {
					b, err := theirs.all()
					require.NoError(t, err)
					return b
				}, to)
				x, err := near.Explain(request(transport.Write, mine, to, 0, size))
				require.NoError(t, err)
				require.Equal(t, c.taken, x.Taken, "%+v", x)
				require.Equal(t, 2, x.Routes[0].Hops)
				require.Equal(t, c.how, x.Routes[0].Staged)
			})
		})
	}
}
