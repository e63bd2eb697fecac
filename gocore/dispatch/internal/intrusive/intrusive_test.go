package intrusive

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

type record struct {
	node  Node[record]
	timer Timer[*record]
	at    clock.Time
}

func (l *List[T]) records() (all []*T) {
	for n := l.head; n != nil; n = n.next {
		all = append(all, n.item)
	}
	return all
}

// A list and a heap are held against a slice through random operations.
func TestListAndTimersAgreeWithASlice(t *testing.T) {
	const seed = 1
	r := rand.New(rand.NewPCG(seed, seed))
	pool := make([]record, 64)
	var list List[record]
	var timers Timers[*record]
	var want []*record
	armed := map[*record]bool{}
	for range 20000 {
		x := &pool[r.IntN(len(pool))]
		i := slices.Index(want, x)
		require.Equal(t, i >= 0, x.node.Linked(), "seed %d", seed)
		switch {
		case i >= 0:
			if i > 0 {
				require.Same(t, want[i-1], x.node.Before())
			}
			if i < len(want)-1 {
				require.Same(t, want[i+1], x.node.After())
			}
			x.node.Unlink()
			want = slices.Delete(want, i, i+1)
		case r.IntN(3) == 0:
			list.PushFront(&x.node, x)
			want = slices.Insert(want, 0, x)
		case r.IntN(2) == 0 && len(want) > 0:
			mark := r.IntN(len(want))
			list.InsertAfter(&x.node, x, &want[mark].node)
			want = slices.Insert(want, mark+1, x)
		default:
			list.PushBack(&x.node, x)
			want = append(want, x)
		}
		require.Equal(t, want, append([]*record{}, list.records()...), "seed %d", seed)
		require.Equal(t, len(want), list.Len())
		if len(want) > 0 {
			require.Same(t, want[0], list.First())
			require.Same(t, want[len(want)-1], list.Last())
		}
		x.timer.Owner = x
		if r.IntN(3) == 0 {
			timers.Stop(&x.timer)
			delete(armed, x)
		} else {
			x.at = clock.Time(r.IntN(1000))
			timers.Set(&x.timer, x.at)
			armed[x] = true
		}
		require.True(t, timers.Ordered(), "seed %d", seed)
		first := clock.Never
		for y := range armed {
			first = min(first, y.at)
		}
		require.Equal(t, first, timers.Next())
		require.Equal(t, len(armed), timers.Len())
		require.Equal(t, armed[x], x.timer.Armed())
	}
	for last := clock.Time(0); timers.Len() > 0; {
		due := timers.PopDue(1000)
		require.GreaterOrEqual(t, due.At(), last)
		require.False(t, due.Owner.timer.Armed())
		last = due.At()
	}
	require.Nil(t, timers.PopDue(1000))
}

func TestInsertLastKeepsAListInOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	pool := make([]record, 500)
	var list List[record]
	for i := range pool {
		x := &pool[i]
		x.at = clock.Time(r.IntN(100))
		list.InsertLast(&x.node, x, func(y *record) bool { return y.at <= x.at })
	}
	require.True(t, slices.IsSortedFunc(list.records(), func(a, b *record) int { return int(a.at - b.at) }))
	require.Equal(t, 500, list.Len())
}

func TestATimerIsSetSoonerOnly(t *testing.T) {
	var timers Timers[int]
	var timer Timer[int]
	timers.SetSooner(&timer, 5)
	timers.SetSooner(&timer, 9)
	require.EqualValues(t, 5, timers.Next())
	timers.SetSooner(&timer, 3)
	require.EqualValues(t, 3, timer.At())
	require.Equal(t, 1, timers.Len())
}

func TestASlabHandsOutZeroRecordsAgainAndNeverAllocatesInPut(t *testing.T) {
	s := Slab[[4]int]{Chunk: 8}
	var all []*[4]int
	seen := map[*[4]int]bool{}
	for range 100 {
		p := s.Get()
		require.Zero(t, *p)
		require.False(t, seen[p])
		p[0], seen[p] = 1, true
		all = append(all, p)
	}
	require.Equal(t, 104, s.Total())
	require.Equal(t, 4, s.Free())
	require.Zero(t, testing.AllocsPerRun(1, func() {
		for _, p := range all[:40] {
			s.Put(p)
		}
		all = all[40:]
	}))
	require.Zero(t, *s.Get())
}
