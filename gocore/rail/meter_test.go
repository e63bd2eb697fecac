package rail

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

// deliver shows the meter slices of a rail of that rate for a while; full means that more waited.
func deliver(m *Meter, rate float64, slice uint64, n int, full bool, now clock.Time) clock.Time {
	each := time.Duration(float64(slice) / rate * 1e9)
	m.Begin(now)
	for range n {
		if full {
			m.Full(false)
		}
		now = now.Add(each)
		m.Delivered(slice, slice, each, false, now)
		m.Settle()
	}
	return now
}

// Slices of one chain come back at one moment, and the rail may be empty behind it.
func TestSlicesThatArriveAtOnceAreOneSample(t *testing.T) {
	for _, drained := range []bool{false, true} {
		var m Meter
		m.Reset(1e9)
		now := clock.Time(time.Second)
		m.Begin(now)
		for range 50 {
			m.Full(true)
			now = now.Add(8 * time.Millisecond)
			for i := range 8 {
				m.Delivered(64<<10, 8*64<<10, 8*time.Millisecond, drained && i == 7, now)
			}
			m.Settle()
			if drained {
				m.Begin(now)
			}
		}
		require.InEpsilon(t, 64<<10*1e3, m.Rate(), 0.01, "drained %v", drained)
	}
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
		m.SampleRTT(4096, 0, 2*time.Millisecond, now)
		m.Delivered(4096, 4096, 2*time.Millisecond, true, now.Add(2*time.Millisecond))
		now = now.Add(10 * time.Millisecond)
	}
	require.EqualValues(t, 1e9, m.Rate())
	require.Zero(t, m.Delay(), "which needs the rate")
}

func TestDelayIsThatOfAnEmptyRail(t *testing.T) {
	var m Meter
	m.Reset(0)
	m.SampleRTT(1000, 0, 5*time.Millisecond, 1)
	require.Zero(t, m.Delay(), "the rate is not known")
	deliver(&m, 1e9, 1<<20, 100, true, 1)
	m.Begin(1)
	m.SampleRTT(1000, 0, 5*time.Millisecond, 1)
	require.InDelta(t, 5e6, float64(m.Delay()), 1e4)
	for range 20 {
		m.SampleRTT(1000, 0, time.Millisecond, 1)
	}
	require.InDelta(t, 1e6, float64(m.Delay()), 1e4, "shorter is believed soon")
	for range 1000 {
		m.Delivered(1000, 64000, 9*time.Millisecond, false, 1)
	}
	require.InDelta(t, 1e6, float64(m.Delay()), 1e4, "what waits behind others says nothing")
	m.SampleRTT(1000, 0, time.Second, 1)
	require.Less(t, m.Delay(), 1200*time.Microsecond, "nor does a slice that the machine forgot")
	for range 100 {
		m.SampleRTT(1000, 0, 9*time.Millisecond, 1)
	}
	require.InDelta(t, 9e6, float64(m.Delay()), 1e5, "a path that became longer is believed in the end")
}

// READ payload of slices that were sent behind the first one may have the wire before it.
func TestBytesBehindASliceDoNotLengthenTheDelay(t *testing.T) {
	var m Meter
	m.Reset(0)
	now := deliver(&m, 1e9, 1<<20, 100, true, clock.Time(time.Second))
	m.SampleRTT(1000, 5e6, 5*time.Millisecond, now)
	require.InDelta(t, 5e6, float64(m.Delay()), 1e4, "the first bound is better than none")
	m.SampleRTT(1000, 5e6, time.Millisecond, now)
	require.InDelta(t, 3e6, float64(m.Delay()), 1e4, "a lower one is believed")
	for range 100 {
		m.SampleRTT(1000, 5e6, 9*time.Millisecond, now)
	}
	require.InDelta(t, 3e6, float64(m.Delay()), 1e4, "the bytes may have taken it all")
	m.SampleRTT(1000, 0, 3*time.Millisecond, now)
	now += 256*clock.Time(m.Delay()) - 1
	require.False(t, m.ProbeRTT(now))
	m.SampleRTT(1000, 1, 3*time.Millisecond, now)
	require.True(t, m.ProbeRTT(now+1), "the rail has not been drained since")
}

// A drain gives up before the first slice comes back over a path that has become much longer.
func TestAPathThatBecameMuchLongerIsBelievedWithBytesBehind(t *testing.T) {
	var m Meter
	m.Reset(0)
	now := deliver(&m, 1e9, 1<<20, 100, true, clock.Time(time.Second))
	m.SampleRTT(1000, 0, 50*time.Microsecond, now)
	for range 100 {
		m.SampleRTT(4096, 64<<10, 100*time.Millisecond, now)
	}
	require.InDelta(t, 1e8, float64(m.Delay()), 1e6)
}

// A window empties the rail within a third of a millisecond. Now and then the machine forgets one for milliseconds:
// those alone would be long enough for a sample.
func TestShortTimesOfAFullRailCountTogether(t *testing.T) {
	const rate, window = 48e6, 16 << 10
	var m Meter
	m.Reset(0)
	now := clock.Time(time.Second)
	for i := range 2000 {
		took := 341 * time.Microsecond
		if i%20 == 10 {
			took += 3 * time.Millisecond
		}
		m.Begin(now)
		m.Full(false)
		now = now.Add(took)
		m.Delivered(window, window, took, true, now)
		if i > 100 && i%20 == 0 { // nothing was forgotten for ten windows
			require.InEpsilon(t, rate, m.Rate(), 0.35, "window %d", i)
		}
		now = now.Add(10 * time.Microsecond)
	}
}

// Bytes of a rail that was not full do not count with those of the time when it is.
func TestTimesOfARailThatWasNotFullAreDropped(t *testing.T) {
	var m Meter
	m.Reset(0)
	now := deliver(&m, 1e8, 1<<20, 100, true, clock.Time(time.Second))
	for range 1003 {
		m.Begin(now)
		m.Delivered(1000, 1000, 300*time.Microsecond, true, now.Add(300*time.Microsecond))
		now = now.Add(time.Millisecond)
	}
	deliver(&m, 1e8, 128<<10, 1, true, now)
	require.InEpsilon(t, 1e8, m.Rate(), 0.01)
}

// The caller may not have begun when the rail was first full.
func TestNoTimeBeforeTheBeginIsKept(t *testing.T) {
	var m Meter
	m.Reset(1e8)
	now := clock.Time(time.Hour)
	m.Full(false)
	m.Carried(1<<20, true, now)
	deliver(&m, 1e8, 1<<20, 1, true, now.Add(time.Millisecond))
	require.InEpsilon(t, 1e8, m.Rate(), 0.01)
}

// A rail that is never empty is let run empty now and then, and given up on if it does not.
func TestABusyRailIsLetRunEmpty(t *testing.T) {
	var m Meter
	m.Reset(0)
	now := deliver(&m, 1e9, 1<<20, 100, true, clock.Time(time.Second))
	m.Begin(now)
	m.SampleRTT(1000, 0, time.Millisecond, now)
	step := func(d time.Duration) bool { now = now.Add(d); return m.ProbeRTT(now) }
	require.False(t, step(200*time.Millisecond))
	require.True(t, step(60*time.Millisecond))
	m.SampleRTT(1000, 0, time.Millisecond, now)
	require.False(t, step(0), "it was empty")
	require.True(t, step(256*time.Millisecond))
	require.False(t, step(20*time.Millisecond), "it does not run empty")
	require.False(t, step(200*time.Millisecond))
	require.True(t, step(200*time.Millisecond), "another try, later")
	require.True(t, step(15*time.Millisecond), "and with more patience")
	m.SampleRTT(1000, 0, time.Millisecond, now)
	require.False(t, step(time.Hour), "nobody asked, so nobody drained it in vain")
	require.True(t, step(256*time.Millisecond))
}

func TestASlowRailIsBelievedWithinAFewCompletions(t *testing.T) {
	var m Meter
	m.Reset(0)
	now := deliver(&m, 1e9, 64<<10, 1000, true, clock.Time(time.Second))
	deliver(&m, 5e6, 64<<10, 4, true, now)
	require.Less(t, m.Rate(), 1e7, "four slices of 13 ms")
}

func TestFinishKnowsASlowRailThatIsNeverFull(t *testing.T) {
	var slow, fast Meter
	for m, took := range map[*Meter]time.Duration{&slow: 13 * time.Millisecond, &fast: 1300 * time.Microsecond} {
		m.Reset(0)
		now := clock.Time(time.Second)
		for range 20 { // one request at a time
			m.Begin(now)
			now = now.Add(took)
			m.Delivered(64<<10, 64<<10, took, true, now)
		}
		require.InEpsilon(t, float64(took), m.Finish(64<<10, true, now), 0.01)
		require.InDelta(t, float64(took)+65536, m.Finish(128<<10, true, now), 1000, "the next one comes behind it")
	}
	later := slow.heard.Add(2 * time.Second)
	require.Less(t, slow.Finish(64<<10, true, later), float64(time.Millisecond), "after a while it is tried")
	require.Greater(t, slow.Finish(64<<10, false, later), float64(time.Millisecond), "by one slice")
}

func TestSilenceIsUnknownBeforeTheFirstSlice(t *testing.T) {
	var m Meter
	m.Reset(1e9)
	require.Zero(t, m.Silence(1<<20))
}

func TestSilenceCoversWhatWasSeenAndFades(t *testing.T) {
	var m Meter
	m.Reset(0)
	now := deliver(&m, 50e6, 64<<10, 1000, true, clock.Time(time.Second))
	each := time.Duration(64 << 10 * 1e9 / 50e6)
	require.InDelta(t, float64(each), float64(m.Silence(64<<10)), float64(silencePrior))
	require.InDelta(t, float64(16*each), float64(m.Silence(1<<20)), float64(silencePrior),
		"a larger slice takes longer")
	m.Spoke(now.Add(30 * time.Millisecond))
	require.InDelta(t, float64(30*time.Millisecond+each), float64(m.Silence(64<<10)), 1e5, "it was that long once")
	goOn(&m, now.Add(30*time.Millisecond), each, 300)
	require.Less(t, m.Silence(64<<10), 25*time.Millisecond)
	require.Greater(t, m.Silence(64<<10), 15*time.Millisecond, "and may be again")
}

func TestSilenceWhileThisProcessWasStoppedTeachesNothing(t *testing.T) {
	var m Meter
	m.Reset(0)
	var stopped clock.Time
	m.Except(&stopped, nil)
	now := deliver(&m, 50e6, 64<<10, 1000, true, clock.Time(time.Second))
	usual := m.Silence(64 << 10)
	const stop, own = 40 * time.Millisecond, 9 * time.Millisecond
	stopped = clock.Time(stop)
	now = now.Add(stop)
	m.Spoke(now)
	require.LessOrEqual(t, m.Silence(64<<10), usual, "nobody was there to hear the rail")

	stopped = 2 * clock.Time(stop)
	now = now.Add(stop + own)
	m.Spoke(now)
	require.InDelta(t, float64(usual+own), float64(m.Silence(64<<10)), float64(silencePrior), "the rest was the rail's")

	stopped = 5 * clock.Time(stop) // while the rail was idle
	m.Begin(now.Add(time.Second))
	m.Spoke(now.Add(time.Second + 2*own))
	require.GreaterOrEqual(t, m.Silence(64<<10), 2*own, "stops of before take nothing from a later silence")
}

func TestSilenceGrowsWithTheSliceWhileTheRateIsUnknown(t *testing.T) {
	var m Meter
	m.Reset(0)
	now := clock.Time(time.Second)
	m.Begin(now)
	m.Delivered(4096, 4096, 100*time.Microsecond, true, now.Add(100*time.Microsecond))
	require.Equal(t, 25600*time.Microsecond, m.Silence(1<<20), "nobody knows that it is quicker")
}

// goOn goes on with a slice each so often.
func goOn(m *Meter, now clock.Time, each time.Duration, n int) {
	for range n {
		now = now.Add(each)
		m.Delivered(64<<10, 64<<10, each, false, now)
	}
}

func TestASliceIsAtMostWhatTheRailCarriesInTwoMilliseconds(t *testing.T) {
	var m Meter
	for rate, want := range map[float64]uint64{1e6: 64 << 10, 50e6: 64 << 10, 100e6: 192 << 10,
		1e9: 1984896 / (64 << 10) * (64 << 10), 1e10: 19988480} {
		m.Reset(rate)
		require.LessOrEqual(t, m.Quantum(), max(uint64(rate*0.002), 64<<10))
		require.Zero(t, m.Quantum()%(64<<10))
		require.InDelta(t, want, m.Quantum(), 64<<10, "at %v", rate)
	}
}

func TestARailThatAnswersAndCarriesNothingIsBelievedToBeSlower(t *testing.T) {
	var m Meter
	m.Reset(1e9)
	m.HalveRate()
	require.EqualValues(t, 5e8, m.Rate())
	for range 100 {
		m.HalveRate()
	}
	require.EqualValues(t, rateLeast, m.Rate())
	require.EqualValues(t, 64<<10, m.Quantum())
}

func TestAWrongSuspicionIsRemembered(t *testing.T) {
	var m Meter
	m.Reset(1e9)
	now := deliver(&m, 1e9, 64<<10, 100, true, clock.Time(time.Second))
	m.Misjudged(10 * time.Millisecond)
	require.GreaterOrEqual(t, m.Silence(64<<10), 10*time.Millisecond)
	goOn(&m, now, time.Millisecond, 5000)
	require.Less(t, m.Silence(64<<10), 2*time.Millisecond, "not for ever")
}

func TestTheBestRateIsThatOfAFullRailWithLongSlices(t *testing.T) {
	feed := func(m *Meter, now clock.Time, slices int, bytes uint64, every time.Duration, full bool) clock.Time {
		for range slices {
			if full {
				m.Full(false)
			}
			now = now.Add(every)
			m.Delivered(bytes, bytes, every, false, now)
			m.Settle()
		}
		return now
	}
	var m Meter
	m.Reset(1e9)
	m.Begin(1e9)
	now := feed(&m, 1e9, 1000, 64<<10, time.Millisecond, false)
	require.Zero(t, m.MaxBandwidth(), "it had nothing to do")
	now = feed(&m, now, 1000, 512, time.Millisecond, true)
	require.Zero(t, m.MaxBandwidth(), "small slices say nothing about bytes")
	now = feed(&m, now, 19, 64<<10, time.Millisecond, true)
	require.Zero(t, m.MaxBandwidth(), "too short")
	now = feed(&m, now, 100, 64<<10, time.Millisecond, true)
	rate := m.MaxBandwidth()
	require.InEpsilon(t, 64<<10*1e3, rate, 0.01)
	now = feed(&m, now, 1000, 512, time.Millisecond, true)
	require.Equal(t, rate, m.MaxBandwidth(), "small slices do not count against it")
	now = feed(&m, now, 500, 64<<10, 2*time.Millisecond, true)
	require.InDelta(t, 0.95*rate, m.MaxBandwidth(), 0.03*rate, "a second of half the rate is not believed at once")
	now = feed(&m, now, 30000, 64<<10, 2*time.Millisecond, true)
	require.InEpsilon(t, rate/2, m.MaxBandwidth(), 0.01, "a minute is")
	require.Positive(t, now)
}

// A rail that has become slow keeps half the window that it has shown to need, for seconds and not for ever.
func TestHoldsFallsSlowerThanTheRate(t *testing.T) {
	var m Meter
	m.Reset(0)
	now := deliver(&m, 4e9, 1<<20, 1000, true, clock.Time(time.Second))
	require.InEpsilon(t, 4e9, m.WindowRate(), 0.05)
	now = deliver(&m, 4e8, 1<<20, 50, true, now)
	require.InEpsilon(t, 4e8, m.Rate(), 0.05)
	require.InEpsilon(t, 2e9, m.WindowRate(), 0.1)
	deliver(&m, 4e8, 1<<20, 30000, true, now)
	require.InEpsilon(t, 4e8, m.WindowRate(), 0.1)
}

// pipe lets a window of half a millisecond follow a rail that takes a fixed time for each window beside that for its
// bytes. It returns the share of windows that were larger than the rate alone would have had them.
func pipe(m *Meter, rate float64, each time.Duration, long time.Duration) (reached float64) {
	now := clock.Time(time.Second)
	m.Begin(now)
	n := 0
	for end := now.Add(long); now < end; n++ {
		m.Full(false)
		m.ProbeBandwidth(now)
		window := uint64(m.WindowRate() * 0.0005)
		if m.WindowRate() > m.Rate()*1.5 {
			reached++
		}
		now = now.Add(each + time.Duration(float64(window)/rate*1e9))
		m.Delivered(window, window, 0, false, now)
	}
	return reached / float64(n)
}

// A pipeline of wake-ups that takes as long as the window lasts is filled all the same.
func TestAWindowThatIsTooSmallGrows(t *testing.T) {
	var m Meter
	m.Reset(2e8)
	pipe(&m, 5e9, 450*time.Microsecond, time.Second)
	require.Greater(t, m.Rate(), 5e8)
	m.Reset(2e8)
	pipe(&m, 5e9, 300*time.Microsecond, time.Second)
	require.Greater(t, m.Rate(), 1.9e9)
}

// A rail that has no more to give is hardly disturbed.
func TestBandwidthProbesBecomeRare(t *testing.T) {
	var m Meter
	m.Reset(5e7)
	pipe(&m, 5e7, 0, time.Second)
	require.Less(t, pipe(&m, 5e7, 0, 20*time.Second), 0.005)
	require.InEpsilon(t, 5e7, m.Rate(), 0.05)
}

// A pause of the peer is in no sample of the rate. A full rail would be thought as slow as one that trickles.
func TestAPauseOfThePeerIsInNoSample(t *testing.T) {
	var m Meter
	m.Reset(0)
	now := clock.Time(time.Second)
	m.Begin(now)
	deliver := func(n int) {
		for range n {
			m.Full(false)
			now = now.Add(100 * time.Microsecond)
			m.Delivered(100_000, 400_000, 400*time.Microsecond, false, now)
		}
	}
	deliver(400)
	require.InEpsilon(t, 1e9, m.Rate(), 0.05)
	deliver(5) // in the middle of a sample
	now = now.Add(500 * time.Millisecond)
	m.Resume(now)
	m.Delivered(100_000, 400_000, 500*time.Millisecond, false, now)
	deliver(20)
	require.InEpsilon(t, 1e9, m.Rate(), 0.2)
}

// One sample does not make a rate known, however long it took. A pause of the peer that was too short to be noticed may
// be in it, and requests with deadlines would be dropped as hopeless.
func TestOneLongSampleIsNoHighestRate(t *testing.T) {
	var m Meter
	m.Reset(0)
	now := clock.Time(time.Second)
	m.Begin(now)
	deliver := func(took time.Duration) {
		m.Full(false)
		now = now.Add(took)
		m.Delivered(100_000, 400_000, 4*took, false, now)
		m.Settle()
	}
	deliver(60 * time.Millisecond)
	require.Zero(t, m.MaxBandwidth())
	for range 400 {
		deliver(100 * time.Microsecond)
	}
	require.InEpsilon(t, 1e9, m.MaxBandwidth(), 0.1)

	m.Reset(0) // a slow rail is known after a few
	m.Begin(now)
	for range 5 {
		deliver(60 * time.Millisecond)
	}
	require.InEpsilon(t, 100_000/0.06, m.MaxBandwidth(), 0.1)
}
