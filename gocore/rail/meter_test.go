package rail

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

// deliver has the meter see slices of a rail of that rate for a while; full says that more waited.
func deliver(m *Meter, rate float64, slice uint64, n int, full bool, now clock.Time) clock.Time {
	each := time.Duration(float64(slice) / rate * 1e9)
	m.Begin(now)
	for range n {
		if full {
			m.Full()
		}
		now = now.Add(each)
		m.Delivered(slice, each, false, now)
	}
	return now
}

func TestTheRateFollowsABusyRail(t *testing.T) {
	var m Meter
	m.Reset(0)
	now := deliver(&m, 5e9, 1<<20, 1000, false, clock.Time(time.Second))
	require.InEpsilon(t, 5e9, m.Rate(), 0.05)
	deliver(&m, 5e7, 1<<20, 100, true, now)
	require.InEpsilon(t, 5e7, m.Rate(), 0.05, "a rail that has become slow is believed")
}

func TestAnIdleRailSaysNothingAboutItsRate(t *testing.T) {
	var m Meter
	m.Reset(1e9)
	now := clock.Time(time.Second)
	for range 1000 { // 4 KiB each 10 ms
		m.Begin(now)
		m.Delivered(4096, 2*time.Millisecond, true, now.Add(2*time.Millisecond))
		now = now.Add(10 * time.Millisecond)
	}
	require.EqualValues(t, 1e9, m.Rate())
	require.Equal(t, 2*time.Millisecond, m.Delay())
}

func TestDelayIsTheShortestAndForgetsSlowly(t *testing.T) {
	var m Meter
	m.Reset(0)
	m.Begin(1)
	m.Delivered(1, 5*time.Millisecond, false, 1)
	m.Delivered(1, time.Millisecond, false, 1)
	m.Delivered(1, 9*time.Millisecond, false, 1)
	require.Less(t, m.Delay(), 1100*time.Microsecond)
	for range 10000 {
		m.Delivered(1, 9*time.Millisecond, false, 1)
	}
	require.Greater(t, m.Delay(), 8*time.Millisecond)
}

func TestExpectIsUnknownBeforeTheFirstSliceAndCoversTheUsual(t *testing.T) {
	var m Meter
	m.Reset(1e9)
	require.Zero(t, m.Expect(1<<20))
	m.Begin(1)
	for range 100 {
		m.Delivered(1000, 10*time.Millisecond, false, 1)
	}
	require.GreaterOrEqual(t, m.Expect(1000), 10*time.Millisecond, "slices take long whatever the rate says")
	require.Equal(t, time.Second, m.Expect(1e9))
}
