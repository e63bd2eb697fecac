package engine

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/metrics"
	"github.com/tent-engine/tent/gocore/transport"
)

// Each refusal is counted. The first one of a (peer, reason) makes an event at once. Later ones make at most one a
// second, with their number.
func TestRefusalsAreAllCountedAndRarelyTold(t *testing.T) {
	r := newRefusals(nil, nil)
	r.planes = []metrics.Refusals{{Plane: "tcp"}}
	key, start := refusalKey{"tcp", "10.0.0.1", transport.RefusedProof}, clock.Time(1)
	require.Equal(t, 1, r.due(key, start))
	for range 41 {
		require.Zero(t, r.due(key, start.Add(refusalEvery-1)))
	}
	require.Equal(t, 42, r.due(key, start.Add(refusalEvery)))
	require.Equal(t, 1, r.due(refusalKey{"tcp", "10.0.0.2", transport.RefusedProof}, start))
	require.Equal(t, uint64(44), r.snapshot()[0].Counts[transport.RefusedProof])
}

// Strangers with ever new addresses make neither memory nor events grow. Those without an event are in a later one.
func TestManyStrangersAreCountedInBoundedMemory(t *testing.T) {
	r := newRefusals(nil, nil)
	told := 0
	for i := range 100_000 {
		told += r.due(refusalKey{planeControl, strconv.Itoa(i), transport.RefusedLimit}, 1)
	}
	require.Equal(t, refusalsMax, told)
	require.Len(t, r.told, refusalPeers)
	require.Equal(t, uint64(100_000), r.snapshot()[0].Counts[transport.RefusedLimit])
	later := refusalKey{planeControl, "later", transport.RefusedLimit}
	second := clock.Time(1).Add(refusalEvery)
	first := refusalKey{planeControl, "0", transport.RefusedLimit}
	require.Zero(t, r.due(first, second-1))
	quiet := refusalKey{planeControl, strconv.Itoa(refusalsMax), transport.RefusedLimit}
	require.Equal(t, 2, r.due(quiet, second), "no event has told of it yet")
	require.Equal(t, 2, r.due(first, second))
	require.Equal(t, 1, r.due(later, second))
}
