package engine

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
)

func TestARegularAddressListKeepsItsRuleInsteadOfItsRanges(t *testing.T) {
	for name, offsets := range map[string][]uint64{
		"forwards":  {64, 192, 320, 448},
		"backwards": {448, 320, 192, 64},
		"one spot":  {64, 64, 64},
	} {
		list := new(addressList)
		list.reset()
		for _, o := range offsets {
			list.add(home{7, 0x1000, 4096}, o, 32)
		}
		list.compact()
		require.Nil(t, list.spots, name)
		for i, o := range offsets {
			require.Equal(t, spot{0, o, 32}, list.at(uint64(i)), name)
		}
	}
}

func TestAnIrregularAddressListKeepsItsRanges(t *testing.T) {
	for name, add := range map[string]func(*addressList){
		"another distance": func(l *addressList) { l.add(home{7, 0x1000, 4096}, 300, 32) },
		"another length":   func(l *addressList) { l.add(home{7, 0x1000, 4096}, 192, 31) },
		"another region":   func(l *addressList) { l.add(home{8, 0x9000, 4096}, 192, 32) },
	} {
		list := new(addressList)
		list.reset()
		list.add(home{7, 0x1000, 4096}, 0, 32)
		list.add(home{7, 0x1000, 4096}, 96, 32)
		add(list)
		want := list.at(2)
		list.compact()
		require.Len(t, list.spots, 3, name)
		require.Equal(t, want, list.at(2), name)
	}
	list := new(addressList)
	list.reset()
	for i := range 100 { // regions come back by their number, not only as neighbours
		list.add(home{mem.RegionID(i % 3), uint64(i%3) << 20, 4096}, uint64(i), 1)
	}
	require.Len(t, list.homes, 3)
	require.Equal(t, spot{2, 50, 1}, list.at(50))
}

func TestTheFirstGroupHasRoomForItsShareAndAnOrderOnceThereIsAnother(t *testing.T) {
	c := new(Call)
	c.open(0, 0, 1000, 2, 32)
	require.GreaterOrEqual(t, cap(c.lists[0].LocalAt), 500)
	require.GreaterOrEqual(t, cap(c.lists[0].RemoteAt), 500)
	require.Empty(t, c.lists[0].order, "a group that is alone has the order of the call")
	require.Zero(t, c.lists[0].first())

	c.open(0, 3, 1000, 2, 64)
	require.Equal(t, []uint32{0, 1, 2}, c.lists[0].order)
	require.Empty(t, c.lists[1].order)
}

func TestIndexesOutsideOfAListAreNamedWhateverTheirForm(t *testing.T) {
	words, small := []int64{0, -1, 3}, []int32{0, -1, 3}
	wide := IndexesOf(words)
	narrow := Indexes{Addr: uintptr(unsafe.Pointer(unsafe.SliceData(small))), Width: 4, Stride: 4}
	backwards := IndexesOf(words)
	backwards.Addr += 16
	backwards.Stride = -8
	for name, form := range map[string]struct {
		indexes Indexes
		places  [3]int // of 0, -1 and 3
	}{
		"words":      {wide, [3]int{0, 1, 2}},
		"half words": {narrow, [3]int{0, 1, 2}},
		"backwards":  {backwards, [3]int{2, 1, 0}},
	} {
		chosen := chosenBy(&Pages{N: 3, Src: form.indexes, Dst: form.indexes}, 3, 4)
		src, dst, err := chosen.at(form.places[0])
		require.Nil(t, err, name)
		require.Zero(t, src+dst, name)
		_, _, err = chosen.at(form.places[1])
		require.ErrorContains(t, err, "is -1, the grid has pages 0 to 2", name)
		_, _, err = chosen.at(form.places[2])
		require.ErrorContains(t, err, "source index", name)
	}
	runtime.KeepAlive(small)
}
