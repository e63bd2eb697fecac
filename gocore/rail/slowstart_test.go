package rail

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

func TestProbesArePacedAndOneAtATime(t *testing.T) {
	var s SlowStart
	now := clock.Time(time.Hour)
	due, next := s.Ask(10*time.Millisecond, now)
	require.True(t, due)
	require.Equal(t, now.Add(10*time.Millisecond), next)
	now = next
	due, next = s.Ask(10*time.Millisecond, now)
	require.False(t, due, "the first was not answered")
	require.Greater(t, next, now)
	require.Equal(t, 1, s.Answered())
	due, _ = s.Ask(10*time.Millisecond, now)
	require.True(t, due)
	require.Equal(t, 2, s.Answered())
	due, next = s.Ask(10*time.Millisecond, now.Add(time.Millisecond))
	require.False(t, due)
	require.Equal(t, now.Add(10*time.Millisecond), next)
	require.Equal(t, 1, s.Unanswered())
	require.Equal(t, 2, s.Unanswered(), "in a row")
	require.Equal(t, 1, s.Answered())
}

// A transport that forgets a probe does not keep its rail out for ever.
func TestAProbeThatIsForgottenIsRepeated(t *testing.T) {
	var s SlowStart
	now := clock.Time(time.Hour)
	s.Ask(time.Millisecond, now)
	s.Answered()
	now = now.Add(time.Millisecond)
	s.Ask(time.Millisecond, now)
	due, _ := s.Ask(time.Millisecond, now.Add(probeLost-1))
	require.False(t, due)
	due, _ = s.Ask(time.Millisecond, now.Add(probeLost))
	require.True(t, due)
	require.Equal(t, 1, s.Answered(), "the row begins anew")
}

func TestTheRampDoublesWithEachRoundTripAndEnds(t *testing.T) {
	var s SlowStart
	require.False(t, s.Ramping())
	require.EqualValues(t, 4<<20, s.Window(4<<20))
	s.Begin()
	for trips, inFlight := 0, s.Window(4<<20); s.Ramping(); trips++ {
		require.Less(t, trips, 6)
		require.LessOrEqual(t, inFlight, uint64(4<<20))
		s.Delivered(inFlight)
		wider := s.Window(4 << 20)
		require.True(t, wider == 2*inFlight || wider == 4<<20)
		inFlight = wider
	}
	require.EqualValues(t, 4<<20, s.Window(4<<20))
	s.Begin()
	require.EqualValues(t, 64<<10, s.Window(64<<10), "a small window is used whole at once")
}
