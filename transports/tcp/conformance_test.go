package tcp

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// TestConformance runs the suite of the contract over loopback, with two rails on two of its addresses.
func TestConformance(t *testing.T) {
	transporttest.Run(t, suite)
}

// TestConformanceOfProtectedLanes runs the suite again with lanes of chunks.
func TestConformanceOfProtectedLanes(t *testing.T) {
	for _, p := range []transport.Protection{transport.Sign, transport.Encrypt} {
		t.Run(p.String(), func(t *testing.T) {
			transporttest.Again(t, func(t *testing.T) transporttest.Harness {
				h := suite(t)
				h.Protects = p
				return h
			})
		})
	}
}

// suite is the harness of one test: it knows all transports of it, so that it can find both ends of a lane.
func suite(t *testing.T) transporttest.Harness {
	var mu sync.Mutex
	var all []*Transport
	return transporttest.Harness{
		Check: Factory{}.Check,
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
			return freeze(n.Transport.(*Transport), isResponder)
		},
		CutRail: cutRail,
		Blackhole: func(_ *testing.T, n *transporttest.Node, rail transport.Rail) func() {
			set := n.Transport.(*Transport).setOf(rail)
			ids, mine := map[uint64]bool{}, map[*conn]bool{}
			set.each(func(l *initiatorLane) { ids[l.id], mine[&l.conn] = true, true })
			mu.Lock()
			defer mu.Unlock()
			heal := []func(){}
			for _, other := range all {
				heal = append(heal, freeze(other, func(c *conn) bool {
					l, is := c.lane.(*responderLane)
					return mine[c] || (is && l.peerName() == n.Peer.Address && ids[l.id])
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
		set.each(func(l *initiatorLane) { l.shutdown() })
	}
}

// freeze keeps lanes from being read, as if their process was stopped: bytes that arrive wait in the sockets.
func freeze(t *Transport, which func(*conn) bool) (thaw func()) {
	awaitProofs(t)
	return hold(t, which)
}

// hold is freeze in the middle of handshakes.
func hold(t *Transport, which func(*conn) bool) (thaw func()) {
	var frozen []*conn
	for _, c := range t.conns.All() {
		if which(c) {
			c.readMu.Lock()
			frozen = append(frozen, c)
		}
	}
	return func() {
		for _, c := range frozen {
			c.readMu.Unlock()
			c.arm() // events that came meanwhile found nobody to read
		}
	}
}

// awaitProofs lets handshakes end: initiators count a lane as open as soon as they have sent their proof.
func awaitProofs(t *Transport) {
	waits := func() (n int) {
		for _, a := range t.attachments.ofPeer(nil) {
			t.attachments.mu.Lock()
			n += len(a.expected)
			t.attachments.mu.Unlock()
		}
		return n
	}
	for end := clock.Now().Add(5 * time.Second); waits() > 0 && clock.Now() < end; {
		runtime.Gosched()
	}
}

func isResponder(c *conn) bool {
	_, is := c.lane.(*responderLane)
	return is
}
