package sim

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/device/devicetest"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// harness runs the suite on a fresh network a test.
func harness(hearsLater string, make func(t *testing.T) *Network) func(*testing.T) transporttest.Harness {
	return func(t *testing.T) transporttest.Harness {
		n := make(t)
		return transporttest.Harness{
			HearsLater: hearsLater, Partial: partial,
			Open: func(t *testing.T, c transporttest.Config) transport.Transport {
				tr, err := Factory{}.Open(t.Context(), Settings{Network: n, Rails: c.Rails,
					Reaches: secondRail}, c.Host, c.Sink)
				require.NoError(t, err)
				return tr
			},
			Hold: func(_ *testing.T, node *transporttest.Node) func() {
				n.Stop(node.Peer.Address)
				return func() { n.Continue(node.Peer.Address) }
			},
			Replace: replace,
			CutRail: func(_ *testing.T, node *transporttest.Node, rail transport.Rail) {
				where := Where{A: node.Peer.Address, Rail: int(rail.Index)}
				n.Down(where)
				n.Up(where)
			},
			Blackhole: func(_ *testing.T, node *transporttest.Node, rail transport.Rail) func() {
				where := Where{A: node.Peer.Address, Rail: int(rail.Index)}
				n.Cut(where)
				return func() { n.Heal(where) }
			},
		}
	}
}

// partial is a size of memory that the second rail alone can use.
const partial = 12345

func secondRail(m *mem.Region, rail int) bool { return m.Size != partial || rail == 1 }

func replace(_ *testing.T, node *transporttest.Node, key transport.LocalKey, serve bool) {
	node.Transport.(interface {
		Replace(transport.LocalKey, bool)
	}).Replace(key, serve)
}

// TestConformancePosted has peers that acknowledge WRITEs before they place them, in any order.
func TestConformancePosted(t *testing.T) {
	transporttest.Again(t, func(t *testing.T) transporttest.Harness {
		n := New(3)
		n.Shape(Anywhere, Shape{Rate: 1e9, Delay: 20_000, Jitter: 50_000, Duplicate: 0.2})
		drive(t, n)
		h := harness("nobody can wait in virtual time", func(*testing.T) *Network { return n })(t)
		h.Allocates = "flushes are simulated by closures"
		h.Open = func(t *testing.T, c transporttest.Config) transport.Transport {
			s := Settings{Network: n, Rails: c.Rails, Reaches: secondRail, Posts: time.Millisecond}
			tr, err := Factory{}.Open(t.Context(), s, c.Host, c.Sink)
			require.NoError(t, err)
			return tr
		}
		return h
	})
}

func TestConformanceInline(t *testing.T) {
	transporttest.Run(t, harness("", func(*testing.T) *Network { return NewInline(1) }))
}

// TestConformanceDriven has a goroutine advance the network, over paths that delay, reorder and duplicate.
func TestConformanceDriven(t *testing.T) {
	transporttest.Run(t, harness("nobody can wait in virtual time", func(t *testing.T) *Network {
		n := New(2)
		n.Shape(Anywhere, Shape{Rate: 1e9, Delay: 20_000, Jitter: 10_000, Duplicate: 0.2, Late: 0.1, LateBy: 50_000})
		drive(t, n)
		return n
	}))
}

// TestConformanceDevice moves between memories that the processor cannot touch: of devices, and of a device and the
// host. A transport that took one for memory of the host would die of it.
func TestConformanceDevice(t *testing.T) {
	for name, both := range map[string]bool{"DeviceAndDevice": true, "HostAndDevice": false} {
		t.Run(name, func(t *testing.T) {
			transporttest.Again(t, func(t *testing.T) transporttest.Harness {
				gpu := devicetest.New(t, mem.Cuda, 2)
				h := transporttest.Harness{Remote: transporttest.OnPlatform(gpu, 1),
					Allocates: "the platform of tests is not made for speed"}
				if both {
					h.Local = transporttest.OnPlatform(gpu, 0)
				}
				s := Settings{Network: NewInline(1), Platform: gpu, Inline: true, Vectors: true}
				for _, one := range []mem.Kind{mem.Host, mem.Cuda} {
					s.Pairs[one] = [mem.KindCount]bool{mem.Host: true, mem.Cuda: true}
				}
				h.Open = func(t *testing.T, c transporttest.Config) transport.Transport {
					s.Rails = c.Rails
					tr, err := Factory{}.Open(t.Context(), s, c.Host, c.Sink)
					require.NoError(t, err)
					return tr
				}
				return h
			})
		})
	}
}

// drive advances a network as fast as it goes until the test has ended.
func drive(t *testing.T, n *Network) {
	stop := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			if next := n.NextEvent(); next != clock.Never {
				n.Advance(next)
				select {
				case <-stop:
					return
				default:
				}
				continue
			}
			select {
			case <-stop:
				return
			case <-n.Changed():
			}
		}
	})
	t.Cleanup(func() { close(stop); wait.Wait() })
}
