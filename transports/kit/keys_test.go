package kit

import (
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAKeyLeadsToNoOther: those that were given out around it differ from it in half of their bits, in any distance.
func TestAKeyLeadsToNoOther(t *testing.T) {
	var s Keys[key, value]
	const n = 4096
	steps, differ := map[key]bool{}, 0
	last := insert(t, &s).key
	for range n {
		k := insert(t, &s).key
		require.False(t, steps[k-last], "two keys lie as far apart as two others")
		steps[k-last] = true
		differ += bits.OnesCount64(uint64(k ^ last))
		last = k
	}
	require.InDelta(t, 32*n, differ, 6*4*64, "six standard deviations of a fair coin") // sqrt(64n)/2 is 256
	for near := range key(1000) {
		for _, guess := range []key{last + near + 1, last - near - 1, last ^ 1<<(near%64), last<<32 | last>>32} {
			require.Nil(t, s.Lookup(guess), "%#x", guess)
		}
	}
}

// TestATableOfKeysIsAMap compares the table with a map under random changes.
func TestATableOfKeysIsAMap(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	var s Keys[key, value]
	require.Nil(t, s.Lookup(0))
	require.Nil(t, s.Delete(1))
	model, gone := map[key]*value{}, []key{}
	for step := range 20_000 {
		grow := step/4000%2 == 0
		if random.IntN(100) < 70 == grow {
			v := insert(t, &s)
			require.Nil(t, model[v.key], "seed %d", seed)
			model[v.key] = v
			continue
		}
		for k, v := range model {
			require.Same(t, v, s.Delete(k), "seed %d", seed)
			require.Nil(t, s.Delete(k), "twice, seed %d", seed)
			delete(model, k)
			gone = append(gone, k)
			break
		}
	}
	require.Equal(t, len(model), s.Len())
	for k, v := range model {
		require.Same(t, v, s.Lookup(k), "seed %d", seed)
	}
	for _, k := range gone {
		require.Nil(t, s.Lookup(k), "seed %d", seed)
	}
}

func TestATableOfKeysIsHalfFullAtMostAndStartsSmallAgain(t *testing.T) {
	var s Keys[key, value]
	var keys []key
	for range 10_000 {
		keys = append(keys, insert(t, &s).key)
		require.LessOrEqual(t, 2*s.used, len(*s.table.Load()))
	}
	require.LessOrEqual(t, len(*s.table.Load()), 4*len(keys))
	for _, k := range keys {
		require.NotNil(t, s.Delete(k))
	}
	require.Nil(t, s.table.Load())
	v := insert(t, &s)
	require.Len(t, *s.table.Load(), slotsKept)
	require.Same(t, v, s.Lookup(v.key))
}

// TestKeysNeverFindAnothersValue lets goroutines look up while others change and grow the table.
func TestKeysNeverFindAnothersValue(t *testing.T) {
	changeMeanwhile(t, &Keys[key, value]{})
}

func BenchmarkKeysLookup(b *testing.B) {
	var s Keys[key, value]
	var keys []key
	for range 64 {
		keys = append(keys, insert(b, &s).key)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if s.Lookup(keys[i%len(keys)]) == nil {
			b.Fatal("a key found nothing")
		}
	}
}
