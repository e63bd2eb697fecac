package engine

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
)

// Peers that ask for the description get the one that was made for the first of them, until the regions change.
func TestADescriptionIsMadeOncePerEpoch(t *testing.T) {
	e := &Engine{}
	a := (*answers)(e)
	first, err := a.Describe(context.Background(), transport.Peer{})
	require.NoError(t, err)
	again, err := a.Describe(context.Background(), transport.Peer{})
	require.NoError(t, err)
	require.Same(t, first, again)
	e.regions.touch()
	changed, err := a.Describe(context.Background(), transport.Peer{})
	require.NoError(t, err)
	require.Greater(t, changed.Epoch, first.Epoch)
}
