package transporttest_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/transports/transporttest"
)

// TestCheckFindsAnyWrongByte changes single bytes of a region that is longer than one chunk of the check.
func TestCheckFindsAnyWrongByte(t *testing.T) {
	const size, tag, chunk = 100_001, 7, 32 << 10
	m := transporttest.NewMemory(t, size, 1)
	t.Cleanup(m.Free)
	m.Fill(tag, 3, size-3)
	require.NoError(t, m.Check(tag, 3, 3, size-3))
	whole := make([]byte, size-3)
	transporttest.Pattern(whole, tag, 3)
	got := make([]byte, size-3)
	m.Load(got, 3)
	require.Equal(t, whole, got, "the pattern does not depend on how it is written")
	for _, at := range []uint64{3, 4, chunk + 2, chunk + 3, 2*chunk + 2, 2*chunk + 3, size - 2, size - 1} {
		b := make([]byte, 1)
		m.Load(b, at)
		m.Store(at, []byte{b[0] ^ 1})
		require.ErrorContains(t, m.Check(tag, 3, 3, size-3), fmt.Sprintf("byte %d of ", at-3))
		require.NoError(t, m.Check(tag, 3, 3, at-3))
		m.Store(at, b)
	}
	require.NoError(t, m.Check(tag, 3, 3, size-3))
}
