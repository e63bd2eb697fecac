package pybind

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// neighbours returns a number, the one before it and the one after it, where there are such.
func neighbours(n int64) []int64 {
	list := []int64{n}
	if n > math.MinInt64 {
		list = append(list, n-1)
	}
	if n < math.MaxInt64 {
		list = append(list, n+1)
	}
	return list
}

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
		for _, n := range neighbours(edge) {
			more := n + random.Int64N(max(1, math.MaxInt64-max(0, n)))
			require.LessOrEqual(t, ms(n), ms(more), "%d and %d ms", n, more)
			require.Equal(t, n > 0, ms(n) > 0, "%d ms", n)
			require.Equal(t, n < 0, ms(n) < 0, "%d ms", n)
		}
	}
	require.Equal(t, 1500*time.Millisecond, ms(1500))
}

// The settings of a variable come through a pipe too, as by <(...) in a shell: it is read once.
func TestAVariableNamesAPipe(t *testing.T) {
	for name, open := range map[string]func(environment string) error{
		"engine": func(environment string) error {
			id, err := Open(environment, "", "", "")
			if err != nil {
				return err
			}
			t.Cleanup(func() { closes(t, id) })
			e, err := get(id)
			require.NoError(t, err)
			require.Equal(t, "decode", e.Name())
			return nil
		},
		"doctor": func(environment string) error { _, err := Doctor(environment); return err },
	} {
		t.Run(name, func(t *testing.T) {
			r, w, err := os.Pipe()
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, r.Close()) })
			_, err = w.WriteString(`{"name": "decode"}`)
			require.NoError(t, err)
			require.NoError(t, w.Close())
			environment, err := json.Marshal(map[string][]byte{
				"TENT_CONF": fmt.Appendf(nil, "/proc/self/fd/%d", r.Fd())})
			require.NoError(t, err)
			require.NoError(t, open(string(environment)))
		})
	}
}
