//go:build cgo

package driver_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
)

// Posting waits for nothing, and each lane has a stream: copies of all lanes are under way at once. A call that fails
// leaves none behind, although the driver may have taken a part of it.
func TestCopiesOfAllLanesAreUnderWayAtOnce(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		const n = 4096
		from, err := platform.Allocate(0, driver.Lanes*n)
		require.NoError(t, err)
		to, err := platform.Allocate(1, driver.Lanes*n)
		require.NoError(t, err)
		want := make([]byte, driver.Lanes*n)
		for i := range want {
			want[i] = byte(i*7 + i/n)
		}
		require.NoError(t, gpu.Poke(from, want))
		copies := make([]driver.Copies, driver.Lanes)
		gpu.Hold(true)
		for lane := range copies {
			at := uintptr(lane * n)
			copies[lane].Add(to+at, from+at, n/2)
			copies[lane].Add(to+at+n/2, from+at+n/2, n/2)
			require.Len(t, copies[lane].To, 1, "ranges that go on are one")
			require.NoError(t, copies[lane].Post(0, lane))
		}
		require.EqualValues(t, driver.Lanes, gpu.Stats().Streams-2, "one for each, beside those of the allocations")
		gpu.Hold(false)
		for lane := range copies {
			require.NoError(t, copies[lane].Finish())
			require.NoError(t, copies[lane].Finish(), "nothing is under way")
		}
		got := make([]byte, len(want))
		require.NoError(t, gpu.Peek(got, to))
		require.Equal(t, want, got)

		events := gpu.Stats().Events
		for _, function := range []string{"cuMemcpyAsync", "cuEventRecord"} {
			gpu.Inject(function, 1, 1, false)
			if function == "cuEventRecord" {
				gpu.Inject(function, 1, 1, false) // that of a kept event is tried again with a new one
				gpu.Inject("cuEventCreate", 1, 2, false)
			}
			require.Error(t, copies[0].Post(0, 0), function)
			require.NoError(t, copies[0].Finish())
			require.NoError(t, gpu.Poke(to, bytes.Repeat([]byte{9}, n)))
			require.NoError(t, gpu.Peek(got[:n], to))
			require.Equal(t, bytes.Repeat([]byte{9}, n), got[:n], "bytes of a call that has failed")
		}
		require.LessOrEqual(t, gpu.Stats().Events, events)
		require.NoError(t, platform.Free(from, driver.Lanes*n))
		require.NoError(t, platform.Free(to, driver.Lanes*n))
	})
}
