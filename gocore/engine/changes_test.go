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
