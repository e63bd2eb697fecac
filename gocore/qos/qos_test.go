package qos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

const never = clock.Never

func TestOrderIsStrict(t *testing.T) {
	var turns Turns
	for _, c := range []struct {
		waiting [Classes]clock.Time
		class   int
	}{{[Classes]clock.Time{5, 5, 5}, High}, {[Classes]clock.Time{never, 5, 5}, Medium},
		{[Classes]clock.Time{never, never, 5}, Low},
		{[Classes]clock.Time{never, never, never}, -1}} {
		class, aged := turns.Pick(&c.waiting, nil, time.Second, 6)
		require.Equal(t, c.class, class)
		require.False(t, aged)
	}
}

// In any second of steady HIGH, MEDIUM and LOW get one turn each for every time-out, and no more.
func TestTurnsAreGrantedByTheTimeSinceTheLastService(t *testing.T) {
	var turns Turns
	const ageing = 10 * time.Millisecond
	now := clock.Time(time.Second)
	waiting := [Classes]clock.Time{now, now, now}
	var served [Classes]int
	var last [Classes]clock.Time
	for range 10000 {
		now = now.Add(100 * time.Microsecond)
		class, aged := turns.Pick(&waiting, nil, ageing, now)
		require.Equal(t, class != High, aged)
		if class != High && served[class] > 0 {
			require.GreaterOrEqual(t, now.Sub(last[class]), ageing)
		}
		turns.Served(class, now)
		served[class]++
		last[class] = now
	}
	require.InDelta(t, 100, served[Medium], 3)
	require.InDelta(t, 100, served[Low], 3)
	require.Equal(t, 10000, served[High]+served[Medium]+served[Low])
}

func TestAClassThatJustBeganToWaitHasNoTurnYet(t *testing.T) {
	var turns Turns
	now := clock.Time(time.Hour)
	class, _ := turns.Pick(&[Classes]clock.Time{now, never, now}, nil, time.Millisecond, now)
	require.Equal(t, High, class)
}

func TestLowWindowFollowsTheRail(t *testing.T) {
	for _, c := range []struct {
		rate  float64
		delay time.Duration
		calm  bool
		most  uint64
		want  uint64
	}{
		{1e9, 0, false, 4 << 20, 500000},                   // half a millisecond of it
		{1e9, time.Millisecond, false, 4 << 20, 2000000},   // two delays, where that is more
		{5e7, 0, false, 4 << 20, 25000},                    // 400 Mbit/s
		{5e7, 0, true, 4 << 20, 200000},                    // where nobody wants anything else
		{1e9, 3 * time.Millisecond, true, 8 << 20, 6e6},    // two delays, there too
		{1e7, 0, false, 4 << 20, 16 << 10},                 // the least that makes sense
		{5e10, time.Millisecond, false, 4 << 20, 3 << 20},  // a quarter stays free of LOW
		{1e9, time.Millisecond, false, 64 << 10, 48 << 10}, // also of a small window
	} {
		got := LowWindow(c.rate, c.delay, c.calm, c.most)
		require.Equal(t, c.want, got)
		require.Equal(t, got/4, LowSlice(got))
	}
}

// With a turn for each request that waits, ten of them get ten turns in a time-out, and none before its end.
func TestTurnsForEachEntry(t *testing.T) {
	var turns Turns
	const ageing = 10 * time.Millisecond
	begun := clock.Time(time.Second)
	waiting := [Classes]clock.Time{begun, never, begun}
	entries := [Classes]int{1, 1, 10}
	served := 0
	for now := begun; now < begun.Add(time.Second); now = now.Add(100 * time.Microsecond) {
		class, aged := turns.Pick(&waiting, &entries, ageing, now)
		if aged {
			require.Equal(t, Low, class)
			require.GreaterOrEqual(t, now.Sub(begun), ageing)
			turns.Served(class, now)
			served++
		}
	}
	require.InDelta(t, 990, served, 10)
}
