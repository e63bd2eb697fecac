package tests

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/transports/all"
	"github.com/tent-engine/tent/transports/sim"
)

// patience bounds every wait of these tests; a longer one hangs.
const patience = 20 * time.Second

// world opens engines over one kind of transport; a test that passes over both says nothing about either.
type world struct {
	name string
	open func(t testing.TB, settings map[string]any) *engine.Engine
}

// worlds are a simulated network that drives itself, one that moves little on the caller's thread and knows pieces, and
// real sockets on loopback.
func worlds() []world {
	return []world{{"sim", openSim(false)}, {"inline", openSim(true)}, {"tcp", openTCP}}
}

func openSim(inline bool) func(testing.TB, map[string]any) *engine.Engine {
	networks := map[string]*sim.Network{}
	return func(t testing.TB, settings map[string]any) *engine.Engine {
		n := networks[t.Name()]
		if n == nil {
			n = sim.NewInline(1)
			networks[t.Name()] = n
		}
		if settings == nil {
			settings = map[string]any{}
		}
		// Here Submit carries out all that follows from it, so a withdrawal behind it may wait long under load.
		settings["fence_timeout_host_ms"] = 20_000
		return open(t, settings, []string{"sim"}, func() []engine.Plug {
			return []engine.Plug{{Factory: sim.Factory{Settings: sim.Settings{Network: n, Rails: 2, Inline: inline,
				Vectors: inline}}}}
		})
	}
}

func openTCP(t testing.TB, settings map[string]any) *engine.Engine {
	settings = maps.Clone(settings)
	if settings == nil {
		settings = map[string]any{}
	}
	settings["transports/shm/enable"] = false
	return openAll(t, settings)
}

func openAll(t testing.TB, settings map[string]any) *engine.Engine {
	return openWith(t, settings, all.Transports(), engine.Plugs(all.Factories()...))
}

// table is the registry's, where the transports of a test stand in for those of their names.
func table(names []string) []config.Transport {
	list := all.Transports()
	for i := range list {
		list[i].Settings = nil
	}
	for _, own := range config.WithRails(names...) {
		if i := slices.IndexFunc(list, func(t config.Transport) bool { return t.Name == own.Name }); i >= 0 {
			list[i].Settings = own.Settings
		} else {
			list = append(list, own)
		}
	}
	return list
}

// open starts an engine over transports of the test's own.
func open(t testing.TB, settings map[string]any, names []string, plugs func() []engine.Plug) *engine.Engine {
	t.Helper()
	return openWith(t, settings, table(names), plugs())
}

// openWith starts an engine. At the end of the test it is closed, and must hold nothing back.
func openWith(t testing.TB, settings map[string]any, table []config.Transport, plugs []engine.Plug,
	platforms ...device.Platform) *engine.Engine {
	t.Helper()
	if settings == nil {
		settings = map[string]any{}
	}
	c, err := config.Load(config.Options{Transports: table}, settings)
	require.NoError(t, err)
	e, err := engine.Open(context.Background(), engine.Options{Config: c, Transports: plugs, Platforms: platforms})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(patience, true), "an engine could not take everything back")
		require.NoError(t, e.Forget())
	})
	return e
}

// memory maps zeroed bytes outside of Go's heap.
func memory(t testing.TB, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

// offer registers bytes under a name that peers may read and write, or under none for local use.
func offer(t testing.TB, e *engine.Engine, b []byte, name string) mem.RegionID {
	t.Helper()
	m := engine.Memory{Addr: address(b), Size: uint64(len(b)), Name: name, Location: mem.Wildcard}
	if name != "" {
		m.Permission = mem.GlobalReadWrite
	}
	id, err := e.Register(m)
	require.NoError(t, err)
	return id
}

// segment opens a peer's region by name.
func segment(t testing.TB, e, peer *engine.Engine, region string) engine.SegmentID {
	t.Helper()
	name := peer.Address()
	if region != "" {
		name += "/" + region
	}
	s, err := e.OpenSegment(context.Background(), name)
	require.NoError(t, err)
	return s
}

// ended waits for a batch and frees it.
func ended(t testing.TB, e *engine.Engine, id dispatch.BatchID) dispatch.Summary {
	t.Helper()
	require.True(t, e.Wait(id, patience).Terminal(), "the batch did not end in %v", patience)
	sum, err := e.Summary(id)
	require.NoError(t, err)
	require.NoError(t, e.FreeBatch(id))
	return sum
}
