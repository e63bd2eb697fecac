package rdma

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/verbs"
	"github.com/tent-engine/tent/transports/rdma/verbs"
	"github.com/tent-engine/tent/transports/transporttest"
)

// pinned is the reason for the rules about memory that its user takes away.
const pinned = "a NIC has pinned the pages, and goes on to reach them"

// overFake is the suite over the fake library, with as many devices as a test wants rails.
func overFake(t *testing.T, change func(*Settings)) (transporttest.Harness, *fake.Fake) {
	f := fake.Open(t)
	f.Control(t, "refuse fake1 %d", partial)
	return transporttest.Harness{
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			settings := Settings{Library: f.Path, Devices: []string{"fake0", "fake1"}[:c.Rails],
				Clock: 2 * time.Second} // machines of tests are slow
			if change != nil {
				change(&settings)
			}
			tr, err := Factory{}.Open(t.Context(), settings, c.Host, c.Sink)
			require.NoError(t, err)
			return tr
		},
		CutRail: func(t *testing.T, n *transporttest.Node, which transport.Rail) { cut(t, f, n, which) },
		Blackhole: func(t *testing.T, n *transporttest.Node, which transport.Rail) (heal func()) {
			r := n.Transport.(*Transport).links.Lookup(which.Link).rail(which.Index)
			f.Control(t, "silence %s 1", r.device.name)
			return func() { f.Control(t, "silence %s 0", r.device.name) }
		},
		Replace: func(t *testing.T, n *transporttest.Node, key transport.LocalKey, serve bool) {
			replace(t, n.Transport.(*Transport), key, serve)
		},
		Partial: partial,
		Pinned:  pinned,
	}, f
}

// partial is a size of memory that one device refuses.
const partial = 54_321

// replace gives a region another descriptor. Without serve its keys are others, as after Remap.
func replace(t *testing.T, tr *Transport, key transport.LocalKey, serve bool) {
	r := tr.regions.Lookup(key)
	if !serve {
		require.NoError(t, tr.Remap(t.Context(), key, transport.Remapped{Length: r.Size}))
		return
	}
	k := *r.keys.Load()
	k.version++
	r.keys.Store(&k)
	tr.host.Describe(key, tr.describe(r))
}

// cut makes a queue pair of a rail fail as when nobody acknowledges.
func cut(t *testing.T, f *fake.Fake, n *transporttest.Node, which transport.Rail) {
	r := n.Transport.(*Transport).links.Lookup(which.Link).rail(which.Index)
	pair := uint32(0)
	r.mu.Lock()
	if r.lanes[0].pair != nil {
		pair = r.lanes[0].pair.Number
	}
	r.unlock()
	if pair == 0 { // it was not used
		r.down(errs.New(errs.Lost, Name, "cut by the test").WithScope(errs.ScopeRail, errs.SidePath))
		return
	}
	f.Control(t, "pair-error %d 12", pair)
}

func TestConformance(t *testing.T) {
	transporttest.Run(t, func(t *testing.T) transporttest.Harness {
		h, _ := overFake(t, nil)
		return h
	})
}

// TestConformanceUnkind is the suite over NICs that acknowledge WRITEs before they place them. They serve queue pairs
// in any order, and give closed keys to the next region at once. Registrations are small, so regions have several. Each
// call goes two ways.
func TestConformanceUnkind(t *testing.T) {
	transporttest.Again(t, func(t *testing.T) transporttest.Harness {
		h, f := overFake(t, func(s *Settings) {
			s.Visibility, s.Lanes, s.Requests, s.Cut = "flush", 2, 16, 64<<10
		})
		f.Control(t, "late 3000")
		f.Control(t, "shuffle 1")
		f.Control(t, "reuse 1")
		open := h.Open
		h.Open = func(t *testing.T, c transporttest.Config) transport.Transport {
			c.Host = twice{c.Host}
			return open(t, c)
		}
		return h
	})
}

// twice is a host with calls that arrive twice.
type twice struct{ transport.Host }

func (h twice) Call(ctx context.Context, peer transport.Peer, message []byte) ([]byte, error) {
	_, _ = h.Host.Call(ctx, peer, message) // its answer was overtaken
	return h.Host.Call(ctx, peer, message)
}

// TestConformanceOnDevices is the suite over the devices of this machine: real NICs, or Soft-RoCE. Where names end in a
// and b, as those of the test bed do, the node b has the latter and the others the former.
func TestConformanceOnDevices(t *testing.T) {
	// The loader gives the emulated library of an earlier test to a call for the system's.
	if devices, _ := os.ReadDir("/sys/class/infiniband"); len(devices) == 0 {
		t.Skip("no RDMA device here: /sys/class/infiniband is empty")
	}
	transporttest.Run(t, func(t *testing.T) transporttest.Harness {
		return transporttest.Harness{
			Patience: 2 * time.Minute, // the guest has one processor, and shares that
			Check:    Factory{}.Check,
			Open: func(t *testing.T, c transporttest.Config) transport.Transport {
				settings := Settings{Devices: devicesOf(t, c), Clock: 2 * time.Second}
				tr, err := Factory{}.Open(t.Context(), settings, c.Host, c.Sink)
				require.NoError(t, err)
				return tr
			},
			CutRail: func(_ *testing.T, n *transporttest.Node, which transport.Rail) {
				r := n.Transport.(*Transport).links.Lookup(which.Link).rail(which.Index)
				r.down(errs.New(errs.Lost, Name, "cut by the test").WithScope(errs.ScopeRail, errs.SidePath))
			},
			Pinned: pinned,
		}
	})
}

func devicesOf(t *testing.T, c transporttest.Config) (names []string) {
	library, err := verbs.Load("")
	require.NoError(t, err)
	all, err := library.Devices()
	require.NoError(t, err)
	side := "a"
	if c.Name == "b" {
		side = "b"
	}
	for _, name := range all {
		if strings.HasSuffix(name, side) && strings.HasPrefix(name, "rxe") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		names = all
	}
	return names[:min(c.Rails, len(names))]
}
