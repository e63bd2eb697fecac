package kit

import (
	"math/bits"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func enter(t testing.TB, s *Keys[key, value]) *value {
	v := &value{}
	k := s.Insert(func(k key) *value { v.key = k; return v })
	require.NotZero(t, k)
	require.Equal(t, k, v.key)
	return v
}

// TestAKeyLeadsToNoOther: those that were given out around it differ from it in half of their bits, in any distance.
func TestAKeyLeadsToNoOther(t *testing.T) {
	var s Keys[key, value]
	const n = 4096
	steps, differ := map[key]bool{}, 0
	last := enter(t, &s).key
	for range n {
		k := enter(t, &s).key
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
			v := enter(t, &s)
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
		keys = append(keys, enter(t, &s).key)
		require.LessOrEqual(t, 2*s.used, len(*s.table.Load()))
	}
	require.LessOrEqual(t, len(*s.table.Load()), 4*len(keys))
	for _, k := range keys {
		require.NotNil(t, s.Delete(k))
	}
	require.Nil(t, s.table.Load())
	v := enter(t, &s)
	require.Len(t, *s.table.Load(), slotsKept)
	require.Same(t, v, s.Lookup(v.key))
}

// TestKeysNeverFindAnothersValue lets goroutines look up while others change and grow the table.
func TestKeysNeverFindAnothersValue(t *testing.T) {
	var s Keys[key, value]
	var wait sync.WaitGroup
	keys := make(chan key, 64)
	stop := make(chan struct{})
	for range 2 {
		wait.Go(func() {
			for {
				select {
				case k := <-keys:
					for range 20 {
						if v := s.Lookup(k); v != nil && v.key != k {
							t.Errorf("%#x found %#x", k, v.key)
						}
						runtime.Gosched()
					}
				case <-stop:
					return
				}
			}
		})
	}
	for range 300 {
		var mine []key
		for range 1 + rand.IntN(200) {
			mine = append(mine, enter(t, &s).key)
			select {
			case keys <- mine[len(mine)-1]:
			default:
			}
		}
		for _, k := range mine {
			require.NotNil(t, s.Delete(k))
			require.Nil(t, s.Lookup(k))
		}
	}
	close(stop)
	wait.Wait()
}

func BenchmarkKeysLookup(b *testing.B) {
	var s Keys[key, value]
	var keys []key
	for range 64 {
		keys = append(keys, enter(b, &s).key)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if s.Lookup(keys[i%len(keys)]) == nil {
			b.Fatal("a key found nothing")
		}
	}
}
