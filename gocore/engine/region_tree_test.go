package engine

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
)

// depth of a tree; it fails where the tree breaks one of its promises.
func (n *regionNode) depth(t *testing.T) int {
	require.Positive(t, n.count)
	below, reach := 0, uintptr(0)
	for i := range n.count {
		e := &n.entries[i]
		if n.leaf {
			require.Equal(t, e.region().Addr, e.addr)
			require.Equal(t, e.addr+uintptr(e.region().Size), e.end)
		} else {
			require.Equal(t, e.below().entries[0].addr, e.addr)
			require.Equal(t, e.below().entries[e.below().count-1].reach, e.end)
		}
		reach = max(reach, e.end)
		require.Equal(t, reach, e.reach)
		if !n.leaf {
			depth := e.below().depth(t)
			require.True(t, i == 0 || depth == below, "leaves at different depths")
			below = depth
		}
	}
	for _, e := range n.entries[n.count:] {
		require.Zero(t, e, "a copy keeps what has left")
	}
	return 1 + below
}

// The tree holds the open regions in order, and stays flat for addresses that rise, fall or jump.
func TestTheTreeOfRegionsStaysFlatAndInOrder(t *testing.T) {
	const count = 4096
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for name, at := range map[string]func(int) int{"rising": func(i int) int { return i },
		"falling": func(i int) int { return count - i }, "random": func(int) int { return random.IntN(count) }} {
		t.Run(name, func(t *testing.T) {
			table := &regionTable{}
			var open []*region
			for i := range count {
				open = append(open, table.opened(t, uintptr(0x1000+at(i)*64), uint64(64+random.IntN(2)*64)))
				if i%3 == 0 {
					gone := random.IntN(len(open))
					require.Same(t, open[gone], table.leave(open[gone].ID))
					open = slices.Delete(open, gone, gone+1)
				}
			}
			slices.SortFunc(open, func(a, b *region) int {
				return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(a.Size, b.Size), cmp.Compare(a.ID, b.ID))
			})
			require.Equal(t, open, table.list())
			require.Equal(t, len(open), table.len())
			require.LessOrEqual(t, table.tree.root.Load().depth(t), 4)
			for i, r := range open {
				require.Same(t, r, table.leave(r.ID))
				if i%100 == 0 && i+1 < len(open) {
					table.tree.root.Load().depth(t)
				}
			}
			require.Nil(t, table.tree.root.Load())
		})
	}
}

// The tree that readers reach is the one of before a change or the one of after it, also while the change is made.
func TestAChangeOfTheTreeOfRegionsIsOneStore(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	tree := &regionTree{}
	var open []*region
	for id := range 3000 {
		before := tree.appendTo(nil)
		root, second := tree.root.Load(), (*regionNode)(nil)
		was := root
		if len(open) < 200 || len(open) < 600 && random.IntN(2) == 0 { // two and three levels
			r := testRegion(uintptr(random.IntN(500)), uint64(1+random.IntN(2)*random.IntN(500)))
			r.ID = mem.RegionID(id)
			if root == nil {
				root = &regionNode{leaf: true}
			}
			root, second = root.insert(r)
			open = append(open, r)
		} else {
			gone := random.IntN(len(open))
			root = root.remove(open[gone])
			open = slices.Delete(open, gone, gone+1)
		}
		if root == was {
			require.Len(t, tree.appendTo(nil), len(open), "a store below the root was the change")
			continue
		}
		require.Equal(t, before, tree.appendTo(nil), "the root was to be the only store")
		if second != nil {
			root = (&regionNode{}).replaced(0, 0, over(root), over(second))
		}
		tree.put(root)
		require.Len(t, tree.appendTo(nil), len(open))
	}
	tree.root.Load().depth(t)
}

// One of two regions holds a range at each moment, and a lookup goes over thousands of larger ones from the one to the
// other. It finds the one or the other, though they take turns meanwhile.
func TestALookUpMissesNoneOfTwoRegionsThatTakeTurns(t *testing.T) {
	const larger, at = 3000, 0x80000
	var table regionTable
	for i := range larger {
		table.opened(t, uintptr(0x10000+i*16), 0x200000)
	}
	first := func() *region { return table.opened(t, 0x1000, at) }
	second := func() *region { return table.opened(t, at-64, 128) }
	open := first()
	var turns atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for next, other := second, first; ; next, other = other, next {
			select {
			case <-stop:
				return
			default:
			}
			came := next()
			table.closed(t, open)
			open = came
			turns.Add(1)
		}
	}()
	misses := 0
	for beside := 0; beside < 40 && misses == 0; { // look-ups beside two turns or more
		before := turns.Load()
		if found := table.find(at-16, 16); found == nil || found.Size > at {
			misses++
		}
		if turns.Load() > before+1 {
			beside++
		}
	}
	close(stop)
	<-stopped
	require.Zero(t, misses, "look-ups that missed both")
}

func BenchmarkRegionTable(b *testing.B) {
	for _, count := range []int{10, 1000, 100_000} {
		table := &regionTable{}
		random := rand.New(rand.NewPCG(1, 0))
		order := random.Perm(count)
		for _, at := range order {
			table.opened(b, uintptr(0x1000+at*64), 64)
		}
		name := map[int]string{10: "10", 1000: "1k", 100_000: "100k"}[count]
		b.Run("find/"+name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if table.find(uintptr(0x1000+order[i%count]*64), 64) == nil {
					b.Fatal("not found")
				}
			}
		})
		b.Run("change/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				table.closed(b, table.opened(b, uintptr(0x1001+random.IntN(count)*64), 63))
			}
		})
	}
}
