package rail

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

func TestProbesArePacedAndOneAtATime(t *testing.T) {
	var r Return
	now := clock.Time(time.Hour)
	due, next := r.Ask(10*time.Millisecond, now)
	require.True(t, due)
	require.Equal(t, now.Add(10*time.Millisecond), next)
	now = next
	due, next = r.Ask(10*time.Millisecond, now)
	require.False(t, due, "the first was not answered")
	require.Greater(t, next, now)
	require.Equal(t, 1, r.Answered(true))
	due, _ = r.Ask(10*time.Millisecond, now)
	require.True(t, due)
	require.Equal(t, 2, r.Answered(true))
	due, next = r.Ask(10*time.Millisecond, now.Add(time.Millisecond))
	require.False(t, due)
	require.Equal(t, now.Add(10*time.Millisecond), next)
	require.Zero(t, r.Answered(false), "in a row")
}

func TestTheRampDoublesWithEachRoundTripAndEnds(t *testing.T) {
	var r Return
	require.False(t, r.Ramping())
	require.EqualValues(t, 4<<20, r.Window(4<<20))
	r.Begin()
	for trips, inFlight := 0, r.Window(4<<20); r.Ramping(); trips++ {
		require.Less(t, trips, 6)
		require.LessOrEqual(t, inFlight, uint64(4<<20))
		r.Delivered(inFlight)
		wider := r.Window(4 << 20)
		require.True(t, wider == 2*inFlight || wider == 4<<20)
		inFlight = wider
	}
	require.EqualValues(t, 4<<20, r.Window(4<<20))
	r.Begin()
	require.EqualValues(t, 64<<10, r.Window(64<<10), "a small window is used whole at once")
}
