package engine

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/mem"
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

// Regions that peers may not touch are in no description, so peers that know it have nothing to ask for.
func TestALocalRegionChangesNoDescription(t *testing.T) {
	e := &Engine{}
	register := func(allows mem.Permission) *region {
		r := testRegion(0x1000, 64)
		r.ID, r.Permission = e.regions.reserve(), allows
		require.Nil(t, e.regions.add(r))
		return r
	}
	known := e.describedEpoch()
	local := register(mem.LocalReadWrite)
	require.Equal(t, known, e.describedEpoch())
	offered := register(mem.GlobalReadOnly)
	require.Greater(t, e.describedEpoch(), known)
	known = e.describedEpoch()
	e.regions.leave(local.ID)
	require.Equal(t, known, e.describedEpoch())
	e.regions.leave(offered.ID)
	require.Greater(t, e.describedEpoch(), known)
}
