package engine

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// Peers that ask for the description get the bytes that were made for the first of them, until the regions change. One
// that knows the epoch costs nothing.
func TestADescriptionIsEncodedOncePerEpoch(t *testing.T) {
	own, err := security.Open(security.Settings{})
	require.NoError(t, err)
	e := &Engine{credentials: own, changes: newChanges(nil)}
	describe := func(known uint64) *control.Offer {
		offer, err := (*answers)(e).Describe(context.Background(), transport.Peer{}, known)
		require.NoError(t, err)
		return offer
	}
	require.Nil(t, describe(e.describedEpoch()))
	require.Nil(t, e.offers.made, "nothing was made for a peer that knows all")
	first := describe(0)
	require.Same(t, first, describe(0))
	told, err := segment.Decode(first.Encoded)
	require.NoError(t, err)
	require.Equal(t, own.ID(), told.ID)
	require.Nil(t, describe(told.Epoch))
	e.fences.Add(1)
	fenced, err := segment.Decode(describe(0).Encoded)
	require.NoError(t, err)
	require.EqualValues(t, 1, fenced.Fences, "a peer that opens us now begins behind the fence")
	e.regions.touch()
	changed, err := segment.Decode(describe(told.Epoch).Encoded)
	require.NoError(t, err)
	require.Greater(t, changed.Epoch, told.Epoch)
	require.Len(t, e.offers.made, 1)
}
