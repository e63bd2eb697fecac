package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	gostaging "github.com/tent-engine/tent/gocore/staging"
	"github.com/tent-engine/tent/gocore/transport"
)

// A pool as it is by default hides the copy behind the wire, in both directions, for one range and for pages.
func TestDefaultPoolsReachTheSlowerHop(t *testing.T) {
	sizes, err := defaults()
	require.NoError(t, err)
	for _, rate := range wireRates {
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			for _, pages := range []uint64{0, page} {
				share, err := usual.efficiency(op, rate, sizes, pages)
				require.NoError(t, err)
				require.GreaterOrEqual(t, share, target, "%v over %s, pages of %d", op, speed(rate), pages)
				require.LessOrEqual(t, share, 1.0)
			}
		}
	}
}

// A pool that is too small for the delays follows Little's law: it carries all its slots once in the time of one way.
func TestSmallPoolsFollowLittlesLaw(t *testing.T) {
	for _, rate := range wireRates {
		for _, slots := range []int{1, 2, 3} {
			sizes := gostaging.Sizes{Slots: slots, SlotBytes: 64 << 10}
			share, err := usual.efficiency(transport.Write, rate, sizes, 0)
			require.NoError(t, err)
			bytes := float64(sizes.SlotBytes)
			way := bytes/copyRate + bytes/rate + (usual.copyDelay + usual.wireDelay).Seconds()
			require.InEpsilon(t, float64(slots)*bytes/way/rate, share, 0.01, "%v over %s", sizes, speed(rate))
		}
	}
}
