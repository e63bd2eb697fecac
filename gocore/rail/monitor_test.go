package rail

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

var defaults = Settings{}.WithDefaults()

// pause makes the rail fail until it pauses, at one moment, and returns the length of the pause.
func pause(t *testing.T, m *Monitor, now clock.Time) time.Duration {
	t.Helper()
	for range defaults.Threshold - 1 {
		require.False(t, m.Fail(&defaults, now))
	}
	require.True(t, m.Fail(&defaults, now))
	require.True(t, m.Paused(now))
	return m.Until().Sub(now)
}

func TestThreeFailuresWithinTheWindowPause(t *testing.T) {
	var m Monitor
	now := clock.Time(time.Hour)
	require.False(t, m.Fail(&defaults, now))
	require.False(t, m.Fail(&defaults, now.Add(10*time.Second)))
	require.False(t, m.Fail(&defaults, now.Add(20*time.Second+1)), "older than the window, counts as the first")
	require.False(t, m.Fail(&defaults, now.Add(21*time.Second)))
	require.Equal(t, 2, m.Failures())
	require.True(t, m.Fail(&defaults, now.Add(22*time.Second)))
	require.False(t, m.Fail(&defaults, now.Add(23*time.Second)), "a straggler of the same trouble")
	require.Equal(t, now.Add(52*time.Second), m.Until())
	require.False(t, m.Paused(now.Add(52*time.Second)), "the cooldown is over")
}

func TestPausesDoubleUpToTheCap(t *testing.T) {
	var m Monitor
	now := clock.Time(time.Hour)
	for _, want := range []int{30, 60, 120, 240, 300, 300} {
		require.Equal(t, time.Duration(want)*time.Second, pause(t, &m, now))
		now = m.Until().Add(time.Second)
	}
}

func TestASuccessEndsAPauseButNotItsMemory(t *testing.T) {
	var m Monitor
	now := clock.Time(time.Hour)
	require.False(t, m.Succeed(now))
	pause(t, &m, now)
	require.True(t, m.Succeed(now.Add(time.Second)))
	require.False(t, m.Paused(now.Add(time.Second)))
	require.Equal(t, 60*time.Second, pause(t, &m, now.Add(2*time.Second)))
}

func TestTheMemoryDecays(t *testing.T) {
	var m Monitor
	now := clock.Time(time.Hour)
	pause(t, &m, now)
	now = m.Until()
	pause(t, &m, now) // 60 s
	now = m.Until().Add(30 * time.Second)
	require.Equal(t, 60*time.Second, pause(t, &m, now), "one quiet cooldown halves what would have been 120 s")
	now = m.Until().Add(time.Hour)
	require.Equal(t, 30*time.Second, pause(t, &m, now))
}

func TestSettingsKeepTheirOrder(t *testing.T) {
	s := Settings{Cooldown: time.Hour}.WithDefaults()
	require.Equal(t, time.Hour, s.CooldownMax)
	require.Equal(t, []int{3, 100, 10}, []int{s.Threshold, s.Sensitivity, s.Recovery})
}

func TestAPauseExpires(t *testing.T) {
	var m Monitor
	now := clock.Time(time.Hour)
	require.False(t, m.Expire(now))
	pause(t, &m, now)
	require.False(t, m.Expire(m.Until()-1))
	require.True(t, m.Expire(m.Until()))
	require.False(t, m.Expire(now.Add(time.Hour)))
	require.Zero(t, m.Failures())
}

func TestARailThatFlapsMustProveMore(t *testing.T) {
	var m Monitor
	now := clock.Time(time.Hour)
	for _, want := range []int{1, 2, 4, 8, 16, 16} {
		pause(t, &m, now)
		require.Equal(t, want, m.Trust(&defaults, now))
		now = now.Add(time.Second)
		m.Succeed(now)
	}
	require.Equal(t, 1, m.Trust(&defaults, now.Add(time.Hour)), "long ago")
}
