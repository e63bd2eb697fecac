package roce

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
)

// Programs of the guest tell the time from the processor's counter, by a page that its kernel keeps
// (tests/guest/kernel.patch). That is the kernel's own time at each moment. Go shows its monotonic clock without its
// origin: then some origin fits all readings.
func TestProgramsOfTheGuestReadItsKernelsClock(t *testing.T) {
	needGuest(t, 1)
	kernel := func(id int32) int64 {
		var at unix.Timespec
		require.NoError(t, unix.ClockGettime(id, &at))
		return at.Nano()
	}
	least, most := int64(math.MinInt64), int64(math.MaxInt64)
	for range 20_000 { // some ticks, each of which changes the page
		before := clock.Now()
		monotonic := kernel(unix.CLOCK_MONOTONIC)
		after := clock.Now()
		require.LessOrEqual(t, before, after)
		least, most = max(least, monotonic-int64(after)), min(most, monotonic-int64(before))

		earlier := time.Now().UnixNano()
		wall := kernel(unix.CLOCK_REALTIME)
		later := time.Now().UnixNano()
		require.LessOrEqual(t, earlier, wall)
		require.LessOrEqual(t, wall, later)
	}
	require.LessOrEqual(t, least, most, "no origin fits")
}
