package clock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process whose thread loses its processor as it starts has the same clock as all others. This clock was 4 ms behind
// then, and a request with a timeout of 0 was carried out.
func TestAPauseAtTheStartDoesNotPutTheClockBack(t *testing.T) {
	const reading, pause = 50 * time.Nanosecond, 4 * time.Millisecond
	start := time.Now()
	for _, paused := range [][]int{{}, {0}, {1}, {2}, {1, 2}, {0, 1, 3}, {1, 4, 7}, {2, 5, 8, 11}} {
		var passed time.Duration
		readings := 0
		read := func() time.Duration {
			for _, n := range paused {
				if n == readings {
					passed += pause
				}
			}
			readings++
			passed += reading
			return passed
		}
		at, origin := meet(func() time.Time { return start.Add(read()) }, func() Time { return Time(read()) })
		ahead := origin.Add(start.Add(passed).Sub(at)).Sub(Time(passed))
		require.GreaterOrEqual(t, ahead, time.Duration(0), "pauses before readings %v", paused)
		require.Less(t, ahead, undisturbed, "pauses before readings %v", paused)
	}
}

// Where each try is disturbed the closest one counts.
func TestABusyMachineHasAClockToo(t *testing.T) {
	start := time.Now()
	var passed time.Duration
	n := 0
	read := func() time.Duration {
		n++
		passed += time.Duration(2+n%7) * time.Microsecond
		return passed
	}
	at, origin := meet(func() time.Time { return start.Add(read()) }, func() Time { return Time(read()) })
	ahead := origin.Add(start.Add(passed).Sub(at)).Sub(Time(passed))
	require.GreaterOrEqual(t, ahead, time.Duration(0))
	require.LessOrEqual(t, ahead, 5*time.Microsecond) // 2 and 3 µs, the least of two readings in a row
}

func TestTheClockIsThatOfTheKernel(t *testing.T) {
	for range 1000 {
		before := kernel()
		require.GreaterOrEqual(t, Now(), before)
	}
}

func TestNothingIsBeyondNever(t *testing.T) {
	require.Equal(t, Never, Never.Add(-time.Second))
	require.Equal(t, Never, (Never - 1).Add(2))
	require.Equal(t, Never-1, (Never - 2).Add(1))
}
