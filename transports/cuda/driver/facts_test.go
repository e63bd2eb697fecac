package driver

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

func TestResultsOfTheDriverHaveCodes(t *testing.T) {
	require.Equal(t, errs.OutOfMemory, codeOf(2))
	require.Equal(t, errs.DeviceNotFound, codeOf(101))
	require.Equal(t, errs.CudaError, codeOf(700))
	require.True(t, sticky(700))
	require.False(t, sticky(1))
	require.False(t, sticky(600))
}

func TestPagesHoldTheRange(t *testing.T) {
	for _, c := range [][5]uint64{{0, 1, 4096, 0, 4096}, {4095, 2, 4096, 0, 8192}, {4096, 4096, 4096, 4096, 4096},
		{5000, 10_000, 4096, 4096, 12288}, {5000, 10_000, 65536, 0, 65536}, {65535, 2, 65536, 0, 131072}} {
		from, bytes := pages(uintptr(c[0]), c[1], c[2])
		require.EqualValues(t, c[3], from)
		require.Equal(t, c[4], bytes)
	}
}
