package pybind

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A longer limit in milliseconds never means a shorter time, however long it is.
func TestALongerLimitIsNoShorterTime(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	edges := []int64{math.MinInt64, -1, 0, 1, math.MaxInt32, math.MaxInt64 / int64(time.Millisecond), math.MaxInt64}
	for range 1000 {
		edges = append(edges, int64(random.Uint64()>>random.IntN(64)))
	}
	for _, edge := range edges {
		for _, n := range []int64{edge - min(1, edge-math.MinInt64), edge, edge + min(1, math.MaxInt64-edge)} {
			more := n + random.Int64N(max(1, math.MaxInt64-max(0, n)))
			require.LessOrEqual(t, ms(n), ms(more), "%d and %d ms", n, more)
			require.Equal(t, n > 0, ms(n) > 0, "%d ms", n)
			require.Equal(t, n < 0, ms(n) < 0, "%d ms", n)
		}
	}
	require.Equal(t, 1500*time.Millisecond, ms(1500))
}
