package tcp

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// lonely is a host that reaches nobody by its control plane.
type lonely struct{ *endpoint }

func (lonely) Call(context.Context, transport.Peer, []byte) ([]byte, error) {
	return nil, errs.New(errs.PeerUnreachable, "call", "nobody is there")
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestAHundredThousandPeersLeaveTheTablesAsTheyWere attaches peers that nobody answers for, sixteen at a time.
func TestAHundredThousandPeersLeaveTheTablesAsTheyWere(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	opened, err := Factory{}.Open(context.Background(), Settings{}, lonely{e}, e)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, opened.Close(context.Background())) })
	tr := opened.(*Transport)
	const together = 16
	rounds := func(n int) {
		for range n {
			var links [together]transport.Link
			for i := range links {
				links[i], err = tr.Attach(transport.Peer{Address: "nobody"})
				require.NoError(t, err)
				require.Less(t, links[i].Index(), uint32(together), "numbers are reused")
			}
			for _, l := range links {
				tr.Detach(l)
			}
			tr.running.Wait()
		}
	}
	rounds(64)
	tr.tasks.Wait()
	before, goroutines := heapBytes(), runtime.NumGoroutine()
	rounds(100_000 / together)
	tr.tasks.Wait()
	require.Zero(t, tr.links.Len())
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+8, "not one a peer; some end a moment later")
	require.Less(t, heapBytes(), before+1<<20)
}

// TestAnIdleLinkHasNoGoroutine lets a link rest, then has one be asked by many at once: each is answered.
func TestAnIdleLinkHasNoGoroutine(t *testing.T) {
	near, _ := neighbours(t, 4096)
	tr := near.tr.(*Transport)
	l := tr.links.Lookup(near.link)
	s := near.slice(transport.Write, 0, 0, 4096)
	require.Equal(t, 1, tr.Submit([]*transport.Slice{s}))
	near.awaitEnds(t, 5*time.Second, s)
	require.Eventually(t, func() bool { return l.kicks.Load() == 0 }, 10*time.Second, time.Millisecond,
		"the other lanes are there too, and nothing is due")
	for range 100 {
		var asked sync.WaitGroup
		var answers, inside atomic.Int32
		for range 8 {
			asked.Go(func() {
				assert.True(t, l.runOnLink(func(clock.Time) {
					assert.EqualValues(t, 1, inside.Add(1), "one at a time")
					answers.Add(1)
					inside.Add(-1)
				}))
			})
		}
		asked.Wait()
		require.Eventually(t, func() bool { return answers.Load() == 8 }, 10*time.Second, time.Millisecond)
	}
}

// TestPeersThatComeAndGoLeaveNoConnections has rails come up and carry a page each time.
func TestPeersThatComeAndGoLeaveNoConnections(t *testing.T) {
	near, far := neighbours(t, 4096)
	tr, other := near.tr.(*Transport), far.tr.(*Transport)
	lanes := tr.settings.Lanes + 1
	for range 200 {
		s := near.slice(transport.Write, 0, 0, 4096)
		require.Equal(t, 1, tr.Submit([]*transport.Slice{s}))
		near.awaitEnds(t, 5*time.Second, s)
		require.Nil(t, near.ends[s].Err)
		for k := range tr.conns.All() {
			require.Less(t, uint32(k), uint32(4*lanes), "slots are reused")
		}
		tr.Detach(near.link)
		tr.running.Wait()
		require.Zero(t, tr.conns.Len())
		near.change(func() { clear(near.rails) })
		link, err := tr.Attach(far.self)
		require.NoError(t, err)
		near.link = link
		near.await(t, "a rail", 5*time.Second, func() bool { return len(near.rails) == 1 })
	}
	for g := range tr.attended {
		require.LessOrEqual(t, len(tr.attended[g].all()), laneListMin)
	}
	require.Eventually(t, func() bool { return len(other.attachments.ofPeer(nil)) == 1 && other.conns.Len() == lanes },
		5*time.Second, time.Millisecond)
}
