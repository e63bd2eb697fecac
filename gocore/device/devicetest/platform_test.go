package devicetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
)

func TestTheFakeKeepsTheRulesOfPlatforms(t *testing.T) {
	Run(t, New(t, mem.Cuda, 2))
}

// The bands find a copy that is a byte too long or begins a byte too early.
func TestBandsTellOfWritesBesideAnAllocation(t *testing.T) {
	for _, at := range []int{-1, 100} {
		p := New(t, mem.Cuda, 1)
		addr, err := p.Allocate(0, 100)
		require.NoError(t, err)
		require.NoError(t, p.CheckBands())
		require.NoError(t, p.Store(addr+uintptr(at), []byte{1}))
		require.ErrorContains(t, p.CheckBands(), "guard band")
		require.NoError(t, p.Free(addr, 100))
	}
}
