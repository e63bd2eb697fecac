//go:build cgo

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/transporttest"
)

// Bytes of a device are staged through pools of the engine all the time, so these are pinned without host_register. The
// device that is in use pins them: no other one gets a context for it.
func TestPoolsOfTheEngineArePinned(t *testing.T) {
	for name, inUse := range map[string]bool{"in use": true, "unused": false} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
				poolIsPinned(t, gpu, inUse)
			})
		})
	}
}

func poolIsPinned(t *testing.T, gpu *fake.Loaded, inUse bool) {
	const size = 3 * 4096
	if inUse {
		at, err := driver.Platform{}.Allocate(1, size)
		require.NoError(t, err)
		defer func() { require.NoError(t, driver.Platform{}.Free(at, size)) }()
	}
	h := suiteOf(onHost(), onHost(), Settings{})
	h.Warm = nil // it uses each device
	near := transporttest.NewWorld(t, h).Open("near")
	before := gpu.Stats()
	host := onHost()
	at := host.Allocate(t, size)
	defer host.Free(at, size)
	tr := near.Transport.(*nvlink)
	for _, pool := range []bool{false, true} {
		key, _, err := tr.Register(t.Context(), mem.Region{Addr: at, Size: size, Kind: mem.Host, Location: "cpu:0",
			Permission: mem.LocalReadWrite, Pool: pool})
		require.NoError(t, err)
		require.Equal(t, pool && inUse, tr.regions.Lookup(key).pinned.Load())
		require.Equal(t, pool && inUse, gpu.Stats().Pinned > before.Pinned)
		require.Equal(t, before.Retained, gpu.Stats().Retained, "contexts")
		require.Empty(t, tr.unpinned(), "nobody has asked for it")
		require.NoError(t, tr.Deregister(t.Context(), key))
		require.Equal(t, before.Pinned, gpu.Stats().Pinned)
	}
}

// Bytes between a device and a pool need no pinned memory beside it.
func TestADeviceReachesAPoolDirectly(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		const size = 3 * 4096
		w := transporttest.NewWorld(t, suiteOf(onDevice(0), onHost(), Settings{}))
		near, far := w.Open("near"), w.Open("far")
		c := near.Connect(t, far)
		local, remote := near.Register(t, size, mem.LocalReadWrite), far.Register(t, size, mem.GlobalReadWrite)
		require.NoError(t, far.Transport.Deregister(t.Context(), remote.Key))
		pool := mem.Region{Addr: remote.Addr, Size: size, Kind: mem.Host, Location: "cpu:0",
			Permission: mem.GlobalReadWrite, Pool: true}
		key, there, err := far.Transport.Register(t.Context(), pool)
		require.NoError(t, err)
		imported, err := near.Transport.Import(c.Link, there)
		require.NoError(t, err)
		match, err := near.Transport.(*nvlink).Match(c.Link, local.Key, imported)
		require.NoError(t, err)
		require.EqualValues(t, slicePinned, match.SliceMax)
		before := gpu.Stats().Pinned
		to := &transporttest.Remote{Operand: remote, Key: imported}
		s := c.Slice(transport.Write, c.Rail(t), local, 0, to, 0, size)
		local.Fill(5, 0, size)
		c.Must(t, s)
		require.NoError(t, remote.Check(5, 0, 0, size))
		require.Equal(t, before, gpu.Stats().Pinned, "nothing else")
		require.NoError(t, far.Transport.Deregister(t.Context(), key))
	})
}
