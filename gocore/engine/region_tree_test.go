package engine

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
)

// depth of a tree; it fails where the tree breaks one of its promises.
func (n regionNode) depth(t *testing.T) int {
	require.LessOrEqual(t, len(n), entriesMax)
	below, reach := 0, uintptr(0)
	for i := range n {
		e := &n[i]
		if e.below == nil {
			require.Equal(t, e.addr+uintptr(e.region.Size), e.end)
		} else {
			require.Equal(t, e.below[len(e.below)-1].reach, e.end)
		}
		reach = max(reach, e.end)
		require.Equal(t, reach, e.reach)
		require.Equal(t, e.region.Addr, e.addr)
		if e.below != nil {
			require.Same(t, e.below[0].region, e.region)
			if depth := e.below.depth(t); i > 0 {
				require.Equal(t, below, depth)
			} else {
				below = depth
			}
		}
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
				r := testRegion(uintptr(0x1000+at(i)*64), uint64(64+random.IntN(2)*64))
				r.ID = table.reserve()
				require.Nil(t, table.add(r))
				open = append(open, r)
				if i%3 == 0 {
					gone := random.IntN(len(open))
					require.Same(t, open[gone], table.leave(open[gone].ID))
					open = slices.Delete(open, gone, gone+1)
				}
			}
			slices.SortFunc(open, func(a, b *region) int {
				return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(a.Size, b.Size), cmp.Compare(a.ID, b.ID))
			})
			require.Equal(t, open, slices.Collect(table.list()))
			require.Equal(t, len(open), table.len())
			require.LessOrEqual(t, rootOf(&table.tree).depth(t), 4)
			for i, r := range open {
				require.Same(t, r, table.leave(r.ID))
				if i%100 == 0 {
					rootOf(&table.tree).depth(t)
				}
			}
			require.Empty(t, rootOf(&table.tree))
		})
	}
}

// A published tree never changes: a reader that began before a change sees the regions of that time.
func TestAReaderOfTheTreeOfRegionsSeesOneState(t *testing.T) {
	table := &regionTable{}
	for i := range 100 {
		r := testRegion(uintptr(0x1000+i*64), 64)
		r.ID = table.reserve()
		require.Nil(t, table.add(r))
	}
	before := slices.Collect(table.list())
	var seen []*region
	for r := range table.list() {
		seen = append(seen, r)
		table.leave(r.ID)
		other := testRegion(r.Addr+7, 3)
		other.ID = table.reserve()
		require.Nil(t, table.add(other))
	}
	require.Equal(t, before, seen)
	require.Equal(t, 100, table.len())
}

func BenchmarkRegionTable(b *testing.B) {
	for _, count := range []int{10, 1000, 100_000} {
		table := &regionTable{}
		random := rand.New(rand.NewPCG(1, 0))
		order := random.Perm(count)
		for _, at := range order {
			r := testRegion(uintptr(0x1000+at*64), 64)
			r.ID = table.reserve()
			if table.add(r) != nil {
				b.Fatal("not added")
			}
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
				r := testRegion(uintptr(0x1001+random.IntN(count)*64), 63)
				r.ID = table.reserve()
				if table.add(r) != nil || table.leave(r.ID) != r || !table.left(r) {
					b.Fatal("not changed")
				}
				table.giveBack(mem.RegionID(uint32(r.ID)))
			}
		})
	}
}
