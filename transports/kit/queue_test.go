package kit

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

type entry struct {
	class int
	place Element[entry]
}

func entriesOf(l *List[entry]) (list []*entry) {
	for e := l.First(); e != nil; e = l.Next(&e.place) {
		list = append(list, e)
	}
	return list
}

// TestAClassQueueIsAListForEachClass compares the queue with slices under random changes.
func TestAClassQueueIsAListForEachClass(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	var q ClassQueue[entry]
	var model [Classes][]*entry
	slab := make([]entry, 40)
	for range 20_000 {
		e := &slab[random.IntN(len(slab))]
		if e.place.Queued() {
			i := slices.Index(model[e.class], e)
			require.GreaterOrEqual(t, i, 0, "seed %d", seed)
			require.False(t, q.Leave((e.class+1)%Classes, &e.place), "of another class")
			require.True(t, q.Leave(e.class, &e.place))
			model[e.class] = slices.Delete(model[e.class], i, i+1)
			continue
		}
		e.class = random.IntN(Classes)
		if random.IntN(3) == 0 {
			q.PushFront(e.class, e, &e.place)
			model[e.class] = slices.Insert(model[e.class], 0, e)
		} else {
			q.PushBack(e.class, e, &e.place)
			model[e.class] = append(model[e.class], e)
		}
		n, waiting, urgent := 0, uint32(0), Classes
		for c := Classes - 1; c >= 0; c-- {
			n += len(model[c])
			require.Equal(t, len(model[c]), q.List(c).Len(), "seed %d", seed)
			require.True(t, slices.Equal(model[c], entriesOf(q.List(c))), "seed %d", seed)
			if len(model[c]) > 0 {
				waiting, urgent = waiting|1<<c, c
			}
		}
		require.Equal(t, n, q.Len())
		require.Equal(t, waiting, q.Waiting(), "seed %d", seed)
		require.Equal(t, urgent, q.Urgent(), "seed %d", seed)
	}
}

func TestAListGivesItsEntriesInOrder(t *testing.T) {
	var l List[entry]
	require.Nil(t, l.PopFront())
	slab := make([]entry, 3)
	for i := range slab {
		l.PushBack(&slab[i], &slab[i].place)
	}
	slab[1].place.Leave()
	slab[1].place.Leave() // twice is the same as once
	require.Same(t, &slab[0], l.PopFront())
	require.False(t, slab[0].place.Queued())
	require.Same(t, &slab[2], l.PopFront())
	require.Nil(t, l.PopFront())
	require.Zero(t, l.Len())
}

func TestClassesBeyondTheLastWaitWithIt(t *testing.T) {
	require.Equal(t, 0, ClassOf(0))
	require.Equal(t, Classes-1, ClassOf(Classes))
	require.Equal(t, Classes-1, ClassOf(255))
}
