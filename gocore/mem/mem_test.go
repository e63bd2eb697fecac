package mem

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestContainsNeverOverflows(t *testing.T) {
	require.True(t, Contains(10, 0, 10))
	require.True(t, Contains(10, 10, 0))
	require.False(t, Contains(10, 1, 10))
	require.False(t, Contains(10, 11, 0))
	require.False(t, Contains(10, math.MaxUint64, 2))
	require.False(t, Contains(10, 5, math.MaxUint64))
}

// A slice may be on a stack, which moves when it grows. The address is somebody else's memory then.
func TestAnAddressHoldsWhenTheStackGrows(t *testing.T) {
	grown := make(chan bool)
	go func() { // on a stack that is small
		words := make([]uint64, 2)
		at := AddressOf(words)
		deepen(64)
		Words(at, 2)[1] = 7
		grown <- words[1] == 7
	}()
	require.True(t, <-grown)
}

//go:noinline
func deepen(calls int) byte {
	var frame [4096]byte
	if calls > 0 {
		frame[calls] = deepen(calls - 1)
	}
	return frame[calls/2]
}

func TestLocationNamesAKindAndAnIndexOrSaysWhatItTakes(t *testing.T) {
	for text, want := range map[Location]struct {
		kind  Kind
		index int
	}{"*": {Host, -1}, "cpu:0": {Host, 0}, "cuda:3": {Cuda, 3}, "file": {File, -1}, "npu:12": {Npu, 12}} {
		kind, index, err := text.Parse()
		require.NoError(t, err, text)
		require.Equal(t, want.kind, kind, text)
		require.Equal(t, want.index, index, text)
	}
	for _, text := range []Location{"gpu:0", "cuda:-1", "cuda:x", "cpu:99999999", ":"} {
		_, _, err := text.Parse()
		require.ErrorContains(t, err, `"cuda:N"`, text)
	}
}

func TestPermissionsOfPeers(t *testing.T) {
	require.False(t, LocalReadWrite.Allows(false))
	require.True(t, GlobalReadOnly.Allows(false))
	require.False(t, GlobalReadOnly.Allows(true))
	require.True(t, GlobalReadWrite.Allows(true))
}
