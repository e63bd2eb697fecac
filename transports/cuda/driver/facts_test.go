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
	for _, c := range [][4]uint64{{0, 1, 0, 4096}, {4095, 2, 0, 8192}, {4096, 4096, 4096, 4096},
		{5000, 10_000, 4096, 12288}} {
		from, bytes := pages(uintptr(c[0]), c[1])
		require.EqualValues(t, c[2], from)
		require.Equal(t, c[3], bytes)
	}
}

func TestNodesOfSysfs(t *testing.T) {
	require.Equal(t, 1, node("1\n"))
	require.Equal(t, -1, node("-1\n"), "the kernel does not know")
	require.Equal(t, -1, node(""))
}
