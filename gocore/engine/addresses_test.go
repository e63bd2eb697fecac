package engine

import (
	"testing"

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
