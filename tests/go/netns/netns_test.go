// Package netns tests whole engines in two processes, on two hosts that are joined by real TCP rails. Meanwhile the
// rails break in the ways in which cables, switches and hosts break. See tests/netbed for how.
package netns

import (
	"errors"
	"maps"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

const (
	rails     = 4
	regionAll = 48 << 20
	railRate  = 50e6 // bytes/s: a move takes some 250 ms, so that a fault can fall into its middle
)

func TestMain(m *testing.M) {
	if forked.RunChild(new(netbed.Actor)) {
		return
	}
	os.Exit(m.Run())
}

// world is a bed with an engine on each host.
type world struct {
	*netbed.Bed
	*netbed.Pair
	far string // Far's address
}

func newWorld(t *testing.T, settings map[string]string) *world {
	t.Helper()
	bed, err := netbed.New(rails)
	if errors.Is(err, netbed.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(bed.Close)
	w := &world{Bed: bed, Pair: netbed.NewPair(t, "tcp", regionAll)}
	for _, r := range bed.Rails {
		require.NoError(t, r.Limit(railRate))
	}
	w.Far, w.far = w.start(t, bed.B, settings)
	w.Near, _ = w.start(t, bed.A, settings)
	require.NoError(t, w.Near.Call("Actor.Connect", w.far, &forked.Nothing{}))
	w.AwaitRails(t, rails)
	return w
}

func (w *world) start(t *testing.T, h *netbed.Host, settings map[string]string) (c *forked.Child, address string) {
	t.Helper()
	own := h.Settings()
	maps.Copy(own, settings)
	return w.Open(t, h.Start, own)
}

// railName is how engines call a rail.
func (w *world) railName(i int) string {
	return w.A.Addresses[i] + " -> " + w.B.Addresses[i]
}
