package rail

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

var defaults = Settings{}.WithDefaults()

// pause makes the rail fail until it pauses, at one moment, and returns the length of the pause.
func pause(t *testing.T, b *Breaker, now clock.Time) time.Duration {
	t.Helper()
	for range defaults.Threshold - 1 {
		require.False(t, b.Fail(&defaults, now))
	}
	require.True(t, b.Fail(&defaults, now))
	require.True(t, b.Open())
	return b.Until().Sub(now)
}

func TestThreeFailuresWithinTheWindowPause(t *testing.T) {
	var b Breaker
	now := clock.Time(time.Hour)
	require.False(t, b.Fail(&defaults, now))
	require.False(t, b.Fail(&defaults, now.Add(10*time.Second)))
	require.False(t, b.Fail(&defaults, now.Add(20*time.Second+1)), "older than the window, counts as the first")
	require.False(t, b.Fail(&defaults, now.Add(21*time.Second)))
	require.Equal(t, 2, b.Failures())
	require.True(t, b.Fail(&defaults, now.Add(22*time.Second)))
	require.False(t, b.Fail(&defaults, now.Add(23*time.Second)), "a straggler of the same trouble")
	require.Equal(t, now.Add(52*time.Second), b.Until())
	require.True(t, b.Open())
}

func TestPausesDoubleUpToTheCap(t *testing.T) {
	var b Breaker
	now := clock.Time(time.Hour)
	for _, want := range []int{30, 60, 120, 240, 300, 300} {
		require.Equal(t, time.Duration(want)*time.Second, pause(t, &b, now))
		now = b.Until().Add(time.Second)
	}
}

func TestClosingEndsAPauseButNotItsMemory(t *testing.T) {
	var b Breaker
	now := clock.Time(time.Hour)
	pause(t, &b, now)
	b.Close(now.Add(time.Second))
	require.False(t, b.Open())
	require.Zero(t, b.Failures())
	require.Equal(t, 60*time.Second, pause(t, &b, now.Add(2*time.Second)))
}

func TestTheMemoryDecays(t *testing.T) {
	var b Breaker
	now := clock.Time(time.Hour)
	pause(t, &b, now)
	now = b.Until()
	pause(t, &b, now) // 60 s
	now = b.Until().Add(30 * time.Second)
	require.Equal(t, 60*time.Second, pause(t, &b, now), "one quiet cooldown halves what would have been 120 s")
	now = b.Until().Add(time.Hour)
	require.Equal(t, 30*time.Second, pause(t, &b, now))
}

func TestSettingsKeepTheirOrder(t *testing.T) {
	s := Settings{Cooldown: time.Hour}.WithDefaults()
	require.Equal(t, time.Hour, s.CooldownMax)
	require.Equal(t, []int{3, 100, 10}, []int{s.Threshold, s.Sensitivity, s.Recovery})
}

// Nobody may have looked when a pause was over: a failure after it counts as the first one of the next.
func TestAFailureAfterAPauseCountsAnew(t *testing.T) {
	var b Breaker
	now := clock.Time(time.Hour)
	pause(t, &b, now)
	require.False(t, b.Fail(&defaults, b.Until()-1), "a straggler")
	require.True(t, b.Open())
	require.False(t, b.Fail(&defaults, b.Until()))
	require.False(t, b.Open())
	require.Equal(t, 1, b.Failures())
}

func TestARailThatFlapsMustProveMore(t *testing.T) {
	var b Breaker
	now := clock.Time(time.Hour)
	for _, want := range []int{1, 2, 4, 8, 16, 16} {
		pause(t, &b, now)
		require.Equal(t, want, b.Trust(&defaults, now))
		now = now.Add(time.Second)
		b.Close(now)
	}
	require.Equal(t, 1, b.Trust(&defaults, now.Add(time.Hour)), "long ago")
}

func TestNoRailHasToProveMoreThan32Times(t *testing.T) {
	s := Settings{Threshold: 1, Cooldown: time.Millisecond, CooldownMax: time.Hour}.WithDefaults()
	var b Breaker
	now := clock.Time(time.Hour)
	for range 10 {
		require.True(t, b.Fail(&s, now))
		now = b.Until()
		b.Close(now)
	}
	require.Equal(t, 32, b.Trust(&s, now))
}
