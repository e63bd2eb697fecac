package tcp

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// TestConformance runs the suite of the contract over loopback, with two rails on two of its addresses.
func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Harness{
		Check:     Factory{}.Check,
		Setup:     suite,
		Open:      func(*testing.T, transporttest.Config) transport.Transport { panic("Setup replaces it") },
		Hold:      func(*testing.T, *transporttest.Node) func() { panic("Setup replaces it") },
		CutRail:   cutRail,
		Blackhole: func(*testing.T, *transporttest.Node, transport.Rail) func() { panic("Setup replaces it") },
	})
}

// suite is the harness of one test: it knows all transports of it, so that it can find both ends of a lane.
func suite(t *testing.T) transporttest.Harness {
	var mu sync.Mutex
	var all []*Transport
	return transporttest.Harness{
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			s := Settings{Addresses: []string{"127.0.0.1", "127.0.0.2"}[:min(c.Rails, 2)]}
			tr, err := Factory{}.Open(context.Background(), s, c.Host, c.Sink)
			require.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, tr.(*Transport))
			return tr
		},
		Hold: func(_ *testing.T, n *transporttest.Node) func() {
			return freeze(*n.Transport.(*Transport).lanes.Load(), func(l *lane) bool { return l.serving })
		},
		CutRail: cutRail,
		Blackhole: func(_ *testing.T, n *transporttest.Node, rail transport.Rail) func() {
			set := n.Transport.(*Transport).setOf(rail)
			ids, mine := map[uint64]bool{}, map[*lane]bool{}
			set.each(func(l *lane) { ids[l.id], mine[l] = true, true })
			mu.Lock()
			defer mu.Unlock()
			heal := []func(){}
			for _, other := range all {
				heal = append(heal, freeze(*other.lanes.Load(), func(l *lane) bool {
					a := l.attachment.Load()
					return mine[l] || (a != nil && a.peer.Address == n.Peer.Address && ids[l.id])
				}))
			}
			return func() {
				for _, f := range heal {
					f()
				}
			}
		},
	}
}

func cutRail(_ *testing.T, n *transporttest.Node, rail transport.Rail) {
	if set := n.Transport.(*Transport).setOf(rail); set != nil {
		set.each((*lane).shutdown)
	}
}

// freeze keeps lanes from being read, as if their process was stopped: what arrives waits in the sockets.
func freeze(lanes []*lane, which func(*lane) bool) (thaw func()) {
	var frozen []*lane
	for _, l := range lanes {
		if l != nil && which(l) {
			l.readMu.Lock()
			frozen = append(frozen, l)
		}
	}
	return func() {
		for _, l := range frozen {
			l.readMu.Unlock()
			l.arm() // events that came meanwhile found nobody to read
		}
	}
}
