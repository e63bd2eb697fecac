package engine

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestPeersHearOfAChangeOnceAndDeafOnesAreLeftAlone(t *testing.T) {
	var heard, deaf atomic.Int64
	done := make(chan struct{}, changeRetries)
	c := newChanges(func(_ context.Context, to transport.Peer, epoch uint64) error {
		require.EqualValues(t, 7, epoch)
		if to.ID == transport.NumberedID(1) {
			heard.Add(1)
			return nil
		}
		deaf.Add(1)
		done <- struct{}{}
		return errs.New(errs.PeerUnreachable, "test", "it hears nothing")
	})
	defer c.close()
	c.announce(7) // nobody listens yet
	c.listens(transport.Peer{ID: transport.NumberedID(3)}, 7)
	c.listens(transport.Peer{ID: transport.NumberedID(1)}, 6)
	c.listens(transport.Peer{ID: transport.NumberedID(2)}, 6)
	for range changeRetries {
		<-done
	}
	c.running.Wait()
	require.EqualValues(t, 1, heard.Load())
	require.EqualValues(t, changeRetries, deaf.Load())
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Len(t, c.listeners, 2, "the deaf one is called again when it asks again")
}

func TestListenersHaveABound(t *testing.T) {
	c := newChanges(nil)
	defer c.close()
	for i := range listenersMax + 100 {
		c.listens(transport.Peer{ID: transport.NumberedID(uint64(i + 1))}, 1)
	}
	require.Len(t, c.listeners, listenersMax)
}

// The keys of a transport are kept where its Info says that it replaces descriptors.
func TestATransportWithoutReplacesReplacesNoDescriptor(t *testing.T) {
	changes, stays := newHand("changes"), newHand("stays")
	stays.stays = true
	w := newWorkshopOf(t, changes, stays)
	r := w.region("kv")
	was, another := r.descriptors()["stays"], transport.Descriptor("another")
	for i, p := range w.ports {
		p.Describe(r.key(i), another)
	}
	require.Equal(t, another, r.descriptors()["changes"])
	require.Equal(t, was, r.descriptors()["stays"])
	require.Len(t, w.ports[0].keys.regions, 1)
	require.Nil(t, w.ports[1].keys)
	require.NoError(t, w.CloseRegion(t.Context(), r.ID))
	w.regions.retire.wait(t.Context())
	require.Empty(t, w.ports[0].keys.regions)
}
