//go:build cgo

package staged

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/fstest"
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
	root fs.FS
}

func (overFake) Check() error { return nil }

func (f overFake) Open(ctx context.Context, config any, host transport.Host, sink transport.Sink) (transport.Transport,
	error,
) {
	settings := *config.(*rdma.Settings)
	settings.Library, settings.Scan, settings.Root = f.path, 20*time.Millisecond, f.root
	return f.Factory.Open(ctx, settings, host, sink)
}

// nics opens an engine that reaches its peers by RDMA alone, with NICs that may reach memory of devices or not.
func nics(t *testing.T, over overFake, direct bool) *engine.Engine {
	factories := all.Factories()
	at := slices.IndexFunc(factories, func(f transport.Factory) bool { return f.Name() == rdma.Name })
	factories[at] = over
	e, err := openOver(factories, map[string]any{"transports/tcp/enable": false, "transports/rdma/num_lanes": 2,
		"transports/rdma/disable_gpu_direct_rdma": !direct})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(patience, true), "the engine could not take everything back")
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
				over := overFake{path: f.Path}
				far, near := nics(t, over, false), nics(t, over, false)
				theirs, id, err := give(far, c.there, "cache", 1)
				require.NoError(t, err)
				t.Cleanup(func() { release(t, far, theirs, id) })
				mine, id, err := give(near, c.here, "", 2)
				require.NoError(t, err)
				t.Cleanup(func() { release(t, near, mine, id) })
				to := open(t, near, far.Address())
				crosses(t, near, mine, theirs.mustAll(t), to)
				x, err := near.Explain(request(transport.Write, mine, to, 0, size))
				require.NoError(t, err)
				require.Equal(t, c.taken, x.Taken, "%+v", x)
				require.Equal(t, 2, x.Routes[0].Hops)
				require.Equal(t, c.how, x.Routes[0].Staged)
			})
		})
	}
}

// mustAll returns a look at all bytes.
func (m memory) mustAll(t *testing.T) func() []byte {
	return func() []byte {
		b, err := m.all()
		require.NoError(t, err)
		return b
	}
}

// board is a machine with the emulated devices: cuda:0 is behind one switch with the NIC fake1, and cuda:1 with fake0,
// at another root.
func board() fs.FS {
	root := fstest.MapFS{}
	for address, place := range map[string]string{"face:1a:00.0": "pci0000:00/0000:00:01.0/0000:02:00.0",
		"face:05:00.0": "pci0000:00/0000:00:01.0/0000:02:02.0", "face:1b:00.0": "pci0000:80/0000:80:01.0/0000:82:00.0",
		"face:85:00.0": "pci0000:80/0000:80:01.0/0000:82:02.0"} {
		root["sys/bus/pci/devices/"+address] = &fstest.MapFile{Mode: fs.ModeSymlink,
			Data: []byte("../../../devices/" + place + "/" + address)}
	}
	for nic, address := range map[string]string{"fake0": "face:85:00.0", "fake1": "face:05:00.0"} {
		root["sys/class/infiniband/"+nic+"/device"] = &fstest.MapFile{Mode: fs.ModeSymlink,
			Data: []byte("../../../" + address)}
	}
	return root
}

// Memory of a GPU moves without a copy in memory of the host where NICs take it. Its plan knows which of them is behind
// the GPU's own switch, at both ends.
func TestAPlanRanksTheNICsNearAGPU(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
		f := verbs.Open(t)
		over := overFake{path: f.Path, root: board()}
		far, near := nics(t, over, true), nics(t, over, true)
		theirs, id, err := give(far, 1, "cache", 1)
		require.NoError(t, err)
		t.Cleanup(func() { release(t, far, theirs, id) })
		to := open(t, near, far.Address())
		for device, words := range []string{"near: rails 1, 3; farthest: rails 0, 2",
			"near: rails 0, 2; farthest: rails 1, 3"} {
			mine, id, err := give(near, device, "", 2)
			require.NoError(t, err)
			t.Cleanup(func() { release(t, near, mine, id) })
			require.NoError(t, theirs.poke(0, pattern(1, size+2*band)))
			crosses(t, near, mine, theirs.mustAll(t), to)
			x, err := near.Explain(request(transport.Write, mine, to, 0, size))
			require.NoError(t, err)
			require.Equal(t, rdma.Name, x.Taken, "%+v", x)
			require.Equal(t, 1, x.Routes[0].Hops)
			require.Equal(t, "from this memory, "+words+
				"; from the peer's memory, near: rails 0, 3; farthest: rails 1, 2", x.Routes[0].Near)
		}
	})
}
