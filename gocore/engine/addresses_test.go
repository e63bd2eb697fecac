package engine

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
)

// regular returns a list of layers, each a region with a number of blocks at one distance.
func regular(layers, blocks int) *addressList {
	list := new(addressList)
	list.reset()
	for layer := range layers {
		in := home{mem.RegionID(layer + 1), uint64(layer+1) << 32, 1 << 30}
		for block := range blocks {
			list.add(in, uint64(block*4096+layer), 4096-uint64(layer))
		}
	}
	return list
}

// require that a list gives the ranges that it was made of, in any order, before and after compact.
func compacted(t *testing.T, list *addressList, rows int) {
	spots := slices.Clone(list.spots)
	read := func() {
		r := list.reader()
		for _, i := range append(rand.New(rand.NewPCG(1, uint64(len(spots)))).Perm(len(spots)), 0, len(spots)-1) {
			require.Equal(t, spots[i], list.at(uint64(i)))
			r.seek(uint64(i))
			require.Equal(t, spots[i], spot{r.row.home, r.row.offsetOf(uint64(i)), r.row.bytes})
		}
	}
	read()
	list.compact()
	require.Len(t, list.rows, rows)
	require.Equal(t, rows == 0, list.spots != nil)
	read()
}

func TestARegularAddressListKeepsItsRowsInsteadOfItsRanges(t *testing.T) {
	compacted(t, regular(1, 4000), 1)
	compacted(t, regular(30, 64), 30)
	for name, offsets := range map[string][]uint64{
		"forwards":  {64, 192, 320, 448, 576, 704, 832, 960},
		"backwards": {960, 832, 704, 576, 448, 320, 192, 64},
		"one spot":  {64, 64, 64, 64, 64, 64, 64, 64},
		// A stride of 2^63+64.
		"beyond zero": {1 << 63, 64, 1<<63 + 64<<1, 64 * 3, 1<<63 + 64<<2, 64 * 5, 1<<63 + 64*6, 64 * 7},
	} {
		list := new(addressList)
		list.reset()
		for _, o := range offsets {
			list.add(home{7, 0x1000, 4096}, o, 32)
		}
		t.Log(name)
		compacted(t, list, 1)
	}
}

func TestAnIrregularAddressListKeepsItsRanges(t *testing.T) {
	for name, add := range map[string]func(*addressList){
		"another distance": func(l *addressList) { l.add(home{7, 0x1000, 4096}, 300, 32) },
		"another length":   func(l *addressList) { l.add(home{7, 0x1000, 4096}, 7*96, 31) },
		"another region":   func(l *addressList) { l.add(home{8, 0x9000, 4096}, 7*96, 32) },
	} {
		list := new(addressList)
		list.reset()
		for i := range uint64(7) {
			list.add(home{7, 0x1000, 4096}, i*96, 32)
		}
		add(list)
		t.Log(name)
		compacted(t, list, 0)
	}
	list := new(addressList)
	list.reset()
	for i := range 100 { // regions come back by their number, not only as neighbours
		list.add(home{mem.RegionID(i % 3), uint64(i%3) << 20, 4096}, uint64(i), 1)
	}
	require.Len(t, list.homes, 3)
	compacted(t, list, 0)
}

func TestARowIsNotReadToItsEndForEachRange(t *testing.T) {
	list := regular(1, 4000)
	r := list.reader()
	r.seek(100)
	require.EqualValues(t, rowAhead, r.row.n)
	r.seek(3999)
	require.EqualValues(t, 1, r.row.n)
	require.Equal(t, list.spots[3999], r.row.spot)
}

func TestTheFirstGroupsHaveRoomForTheirShare(t *testing.T) {
	c := new(Call)
	for group := range 2 {
		c.openGroup(group, 1000, 2, 32)
		require.GreaterOrEqual(t, cap(c.lists[group].LocalAt), 500)
		require.GreaterOrEqual(t, cap(c.lists[group].RemoteAt), 500)
	}
}

func TestARangeOfAListHasItsIndexInTheCall(t *testing.T) {
	list := places{stretches: []stretch{{0, 3}, {2, 7}, {3, 100}}}
	require.Equal(t, 3, list.first())
	for piece, index := range []uint64{3, 4, 7, 100, 101, 102} {
		require.Equal(t, index, list.indexOf(piece), "piece %d", piece)
	}
	require.Zero(t, new(places).first(), "pages of grids are in the order of the call")
}

func TestIndexesOutsideOfAListAreNamedWhateverTheirForm(t *testing.T) {
	words, small := []int64{0, -1, 3}, []int32{0, -1, 3}
	wide := IndexesOf(words)
	narrow := Indexes{Addr: mem.AddressOf(small), Width: 4, Stride: 4}
	backwards := IndexesOf(words)
	backwards.Addr += 16
	backwards.Stride = -8
	for name, form := range map[string]struct {
		indexes Indexes
		values  []uint64
		beyond  string // the first that a list of three does not have
	}{
		"words":      {wide, []uint64{0, ^uint64(0), 3}, "[1] is -1"},
		"half words": {narrow, []uint64{0, ^uint64(0), 3}, "[1] is -1"},
		"backwards":  {backwards, []uint64{3, ^uint64(0), 0}, "[0] is 3"},
	} {
		g := newGathering()
		err := g.choose(&Pages{N: 3, Src: form.indexes, Dst: form.indexes}, 4, 4)
		require.ErrorContains(t, err, "source index [1] is -1, the grid has pages 0 to 3", name)
		err = g.choose(&Pages{N: 3, Src: IndexesOf([]int64{0, 0, 0}), Dst: form.indexes}, 4, 3)
		require.ErrorContains(t, err, "destination index "+form.beyond+", the grid has pages 0 to 2", name)
		require.Nil(t, g.choose(&Pages{N: 1, Src: form.indexes, Dst: form.indexes}, 4, 4), name)
		require.Equal(t, form.values[:1], g.src, name)
		require.Equal(t, form.values[:1], g.dst, name)
	}
	runtime.KeepAlive(small)
}

// BenchmarkSort measures the part of a post of 16,384 ranges that looks at each of them.
func BenchmarkSort(b *testing.B) {
	const layers, blocks = 128, 1024
	near, far := regular(layers, blocks), regular(layers, blocks)
	near.compact()
	far.compact()
	byLayer, byBlock := make([]int64, 0, 16384), make([]int64, 0, 16384)
	for i := range 16384 {
		byLayer = append(byLayer, int64(i/128*blocks+i%128))
		byBlock = append(byBlock, int64(i%128*blocks+i/128))
	}
	for name, order := range map[string][]int64{"by layer": byLayer, "by block": byBlock} {
		indexes := IndexesOf(order)
		chosen := Pages{N: len(order), Src: indexes, Dst: indexes}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				c, g := new(Call), newGathering()
				require.Nil(b, g.choose(&chosen, uint64(near.n), uint64(far.n)))
				few, err := c.sortByPair(g, near, far)
				require.True(b, few && err == nil)
				freePlaces(c.lists)
				gatherings.Put(g)
			}
		})
	}
}

// grow makes the stack of its caller grow, which moves it.
//
//go:noinline
func grow(depth int) byte {
	var room [512]byte
	if depth > 0 {
		room[depth%len(room)] = grow(depth - 1)
	}
	return room[0]
}

// TestIndexesOfAGoSliceStayWhereTheyAre: their address is a number, which no move of a stack corrects.
func TestIndexesOfAGoSliceStayWhereTheyAre(t *testing.T) {
	seen := make(chan uint64)
	go func() { // on a stack that is small
		values := []int64{3, 5, 7}
		x := IndexesOf(values)
		grow(1000)
		values[1] = 11
		seen <- x.word(1)
		runtime.KeepAlive(values)
	}()
	require.EqualValues(t, 11, <-seen)
}
