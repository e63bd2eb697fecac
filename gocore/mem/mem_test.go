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
