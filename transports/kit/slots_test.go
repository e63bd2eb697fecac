package kit

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

type key uint64

type value struct{ key key }

// table is Slots or Keys.
type table interface {
	Insert(build func(key) *value) key
	Lookup(key) *value
	Delete(key) *value
}

func insert(t testing.TB, s table) *value {
	v := &value{}
	k := s.Insert(func(k key) *value { v.key = k; return v })
	require.NotZero(t, k)
	require.Equal(t, k, v.key)
	return v
}

func TestAKeyThatHasEndedFindsNothingAlthoughItsIndexIsUsedAgain(t *testing.T) {
	var s Slots[key, value]
	require.Nil(t, s.Lookup(0))
	first := insert(t, &s)
	require.Same(t, first, s.Lookup(first.key))
	require.Same(t, first, s.Delete(first.key))
	require.Nil(t, s.Delete(first.key), "twice")
	second := insert(t, &s)
	require.Equal(t, uint32(first.key), uint32(second.key), "the index is used again")
	require.Nil(t, s.Lookup(first.key))
	require.Same(t, second, s.Lookup(second.key))
	for _, wrong := range []key{0, second.key + 1, second.key + 1000, second.key + 1<<32, second.key &^ (1<<32 - 1),
		second.key & (1<<32 - 1)} {
		require.Nil(t, s.Lookup(wrong), "%#x", wrong)
	}
	require.Equal(t, 1, s.Len())
}

func TestGenerationsSkipZero(t *testing.T) {
	var s Slots[key, value]
	s.generation = 1<<32 - 2
	first, second := insert(t, &s), insert(t, &s)
	require.Equal(t, uint32(1<<32-1), uint32(first.key>>32))
	require.Equal(t, uint32(1), uint32(second.key>>32), "0 is never a generation")
}

// TestATableIsAMap compares the table with a map under random changes.
func TestATableIsAMap(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	var s Slots[key, value]
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
			delete(model, k)
			gone = append(gone, k)
			break
		}
	}
	require.Equal(t, len(model), s.Len())
	for _, k := range gone {
		require.Nil(t, s.Lookup(k), "seed %d", seed)
	}
	n := 0
	for k, v := range s.All() {
		require.Same(t, model[k], v, "seed %d", seed)
		n++
	}
	require.Equal(t, len(model), n)
}

// TestAHundredThousandOneAfterTheOtherLeaveNothing is the promise for links and files that come and go.
func TestAHundredThousandOneAfterTheOtherLeaveNothing(t *testing.T) {
	var s Slots[key, value]
	insert(t, &s)
	before := len(*s.table.Load())
	for range 100_000 {
		s.Delete(insert(t, &s).key)
	}
	require.Len(t, *s.table.Load(), before)
	require.LessOrEqual(t, len(s.free), before)
}

func TestATableStartsSmallAgainWhenItsLastEntryGoes(t *testing.T) {
	var s Slots[key, value]
	var keys []key
	for range 100_000 {
		keys = append(keys, insert(t, &s).key)
	}
	require.GreaterOrEqual(t, len(*s.table.Load()), 100_000)
	for _, k := range keys {
		s.Delete(k)
	}
	require.Nil(t, s.table.Load())
	require.Empty(t, s.free)
	v := insert(t, &s)
	require.Len(t, *s.table.Load(), slotsKept)
	require.Nil(t, s.Lookup(keys[0]))
	require.Same(t, v, s.Lookup(v.key))
}

// TestLookupNeverReturnsAnotherKeysValue lets goroutines look up while others change and grow the table.
func TestLookupNeverReturnsAnotherKeysValue(t *testing.T) {
	changeMeanwhile(t, &Slots[key, value]{})
}

// changeMeanwhile checks lookups while the table changes and grows.
func changeMeanwhile(t *testing.T, s table) {
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
			mine = append(mine, insert(t, s).key)
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

func TestAllMayChangeTheTable(t *testing.T) {
	var s Slots[key, value]
	for range 200 {
		insert(t, &s)
	}
	n := 0
	for k := range s.All() {
		s.Delete(k)
		n++
	}
	require.Equal(t, 200, n)
	require.Zero(t, s.Len())
}

func BenchmarkLookup(b *testing.B) {
	var s Slots[key, value]
	var keys [64]key
	for i := range keys {
		keys[i] = insert(b, &s).key
	}
	b.ReportAllocs()
	found := 0
	for i := 0; b.Loop(); i++ {
		if s.Lookup(keys[i&63]) != nil {
			found++
		}
	}
	if found == 0 {
		b.Fatal("nothing is there")
	}
}
