package rail

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

const (
	// A sample of the rate needs this much time: the noise of a single completion would look like bandwidth.
	sampleTime = clock.Time(time.Millisecond)
	// A sample of this length counts as much as all before it. The meter believes within a few completions that a rail
	// has become slow, however slow they are.
	sampleHalf = float64(4 * time.Millisecond)
	// silenceMemory is the time of traffic over which the longest silence fades.
	silenceMemory = time.Second
	// maxMemory is the time of traffic over which the highest rate fades, as BBR's max filter forgets after ten round
	// trips.
	maxMemory = 10 * time.Second
	// maxLeast is the time on a full rail before the highest rate is reported. A sample counts for maxShare of it at
	// most: a single long one may be a pause of the peer.
	maxLeast = 20 * time.Millisecond
	maxShare = maxLeast / 5
	// Samples of shorter slices, in bytes, measure the number of slices and not the rate.
	wholeSlice = 8 << 10
	// silencePrior is assumed of a rail just after its rate became known: it has had no time to be silent yet.
	silencePrior = 2 * time.Millisecond
	// rttProbeEvery is the pause between two drains of a rail that is never empty; it is longer where the delay is
	// long. A drain lasts rttProbeLimit at most. Each one that is given up doubles the limit of the next, up to
	// rttProbeMost: the path may have become longer. A drain takes a share of 1/rttProbeShare at most.
	rttProbeEvery = clock.Time(250 * time.Millisecond)
	rttProbeLimit = clock.Time(10 * time.Millisecond)
	rttProbeMost  = clock.Time(250 * time.Millisecond)
	rttProbeShare = 12
	// A bandwidth probe lasts bandwidthProbeFor or eight delays. The pause before the next one lies between
	// bandwidthPauseLeast and bandwidthPauseMost. A probe was worth it if the rate has grown by bandwidthGain.
	bandwidthProbeFor   = clock.Time(8 * time.Millisecond)
	bandwidthPauseLeast = clock.Time(20 * time.Millisecond)
	bandwidthPauseMost  = clock.Time(4 * time.Second)
	bandwidthGain       = 1.25
	// An idle rail may be quite different after stale: it is tried with one slice.
	stale = time.Second
)

// rateLeast is the least rate that HalveRate believes in, in bytes/s.
const rateLeast = 1e6

// Bounds of a slice by the rate.
const (
	quantumTime  = 2 * time.Millisecond
	quantumLeast = 64 << 10 // bytes
)

// startRate is assumed of a rail that reports no bandwidth, in bytes/s.
const startRate = 1e9

// Meter estimates a rail's rate, its delay, how long a slice will take and how long the rail may be silent. It learns
// from completions alone, by the ideas of BBR (Cardwell et al. 2016): the rate comes from deliveries, the delay from an
// empty path, and windows are their product, the bandwidth-delay product. Both are probed now and then: ProbeBandwidth,
// ProbeRTT. Averages are EWMAs, exponentially weighted moving averages.
//
// Small transfers that leave the rail idle in between measure how long a byte takes to get there, not how many fit. So
// a sample of the rate that is below the estimate counts only if the rail was kept full while it was taken.
type Meter struct {
	rate     float64 // bytes/s; from it follow
	perByte  float64 // ns
	quantum  uint64
	lately   maxFilter     // of a rail that was full
	whole    maxFilter     // of a rail that was full with its whole window
	measured bool          // the rate comes from traffic, not only from configuration
	full     bool          // the rail had no room at some time during the sample, and work was waiting
	capped   bool          // the rail was full because less may be in flight than it can hold
	delay    time.Duration // of an empty rail, EWMA
	drained  clock.Time    // when a slice was last alone on the rail
	draining bool          // it is let run empty
	patience clock.Time    // limit of the next drain behind one that was given up, else 0

	probing    bool       // a bandwidth probe is on: WindowRate is doubled
	probeAt    clock.Time // when it ends, or begins next
	probePause clock.Time
	before     float64 // rate when it began

	usual   time.Duration  // time of a slice, EWMA
	ahead   float64        // bytes in flight when it was posted, its own included, EWMA
	silence float64        // ns; the longest while busy that the rate does not explain, fading
	heard   clock.Time     // last sign of life
	spoke   clock.Time     // the same in awake time
	stopped [2]*clock.Time // see Except; nil: never
	since   clock.Time     // start of the sample; 0 while idle
	until   clock.Time     // its latest delivery
	kept    clock.Time     // of the idle rail: the time that it was full, too short for a sample; counts with the next
	bytes   uint64         // delivered in the sample
	slices  uint64         // that brought them

	fullBytes uint64 // of samples for TakeFull
	fullTime  time.Duration
}

// Reset starts anew with a configured rate in bytes/s, 0 if it is not known.
func (m *Meter) Reset(rate float64) {
	*m = Meter{stopped: m.stopped}
	if rate <= 0 {
		rate = startRate
	}
	m.setRate(rate)
	m.probePause = bandwidthPauseLeast
}

// Except names the times, in all, for which this process and the peer's were not let run; nil: not known. The caller
// lets them grow. Silence of these times is nobody's and teaches nothing.
func (m *Meter) Except(here, there *clock.Time) { m.stopped = [2]*clock.Time{here, there} }

func (m *Meter) awake(now clock.Time) clock.Time {
	for _, stopped := range m.stopped {
		if stopped != nil {
			now -= *stopped
		}
	}
	return now
}

// Begin is called when the idle rail gets its first slice.
func (m *Meter) Begin(now clock.Time) {
	m.spoke = m.awake(now)
	if m.kept == 0 {
		m.bytes, m.slices, m.full, m.capped = 0, 0, false, false
	}
	m.since, m.until, m.heard = now-m.kept, now, now
	m.kept = 0
}

// Full notes that work waits for room on the rail. capped means that a smaller window, of LOW or of slow start, keeps
// more from being in flight: the rate of such a rail may be the window's and not its own.
func (m *Meter) Full(capped bool) {
	m.Settle()
	m.full, m.capped = true, m.capped || capped
}

// Delivered notes n bytes of a slice that took the given time. ahead is the bytes in flight when it was posted, its own
// included; idle means that nothing is left on the rail.
func (m *Meter) Delivered(n, ahead uint64, took time.Duration, idle bool, now clock.Time) {
	if m.usual == 0 {
		m.usual, m.ahead = took, float64(ahead)
	} else {
		m.usual += (took - m.usual) / 8
		m.ahead += (float64(ahead) - m.ahead) / 8
	}
	m.signOfLife(n, now)
	m.Carried(n, idle, now)
}

// Carried notes bytes that were delivered. A caller that wants the rate alone needs Begin, Full, Carried and Settle.
func (m *Meter) Carried(n uint64, idle bool, now clock.Time) {
	if now > m.until {
		m.Settle()
	}
	m.bytes += n
	m.slices++
	m.until = now
	if idle {
		m.Settle()
		// A small window may empty the rail within sampleTime each time. Alone, only the slowest of such times would be
		// long enough for a sample.
		if m.full && m.since != 0 {
			m.kept = m.until - m.since
		}
		m.since = 0
	}
}

// Settle ends a sample that is long enough. The caller has noted all that was delivered until now: slices of one chain
// arrive at one moment, and a sample that ended at the first would be taken for a slow rail.
func (m *Meter) Settle() {
	if m.since != 0 && m.until-m.since >= sampleTime {
		m.sample(m.until)
	}
}

// SampleRTT notes how long a slice of n bytes took that was sent on the empty rail. Only it measures the delay without
// our own queue, as BBR's RTprop. behind is the number of bytes that were sent while it was in flight. They may have
// had the wire before it, as READ payload of another connection has. So the delay lies between two bounds: with the
// upper one the window would grow, and the bound with the window, for ever. A very long time was hardly the path's
// fault, so it counts as twice the usual.
func (m *Meter) SampleRTT(n, behind uint64, took time.Duration, now clock.Time) {
	if behind == 0 {
		m.drained, m.draining, m.patience = now, false, 0
	}
	if !m.measured { // an assumed rate makes nonsense of the delay
		return
	}
	wire := time.Duration(float64(n) * m.perByte)
	most := max(took-wire, 1)
	if wire > took/2 && most > m.delay { // the difference of two large, inexact numbers means little
		return
	}
	least := most
	if behind > 0 { // the rate may be half of the estimate
		least = took - time.Duration(2*float64(n+behind)*m.perByte)
	}
	switch {
	case m.delay == 0:
		m.delay = most
	case most < m.delay:
		m.delay -= (m.delay - most) / 2
	case least > m.delay:
		m.delay += min(least-m.delay, m.delay) / 8
	}
}

// ProbeRTT reports whether it is time to drain the rail, so that the next slice is alone there and samples the delay,
// as BBR's ProbeRTT. The caller then holds back slices that can wait; that costs one delay in rttProbeEvery. A rail
// that does not run empty within rttProbeLimit goes on, and has longer for the next time.
func (m *Meter) ProbeRTT(now clock.Time) bool {
	since := now - m.drained
	limit := max(rttProbeLimit, m.patience, 16*clock.Time(m.delay))
	every := max(rttProbeEvery, rttProbeShare*m.patience, 256*clock.Time(m.delay))
	switch {
	case since < every:
		return false
	case since <= every+limit:
		m.draining = true
		return true
	case m.draining: // in vain
		m.patience = min(2*limit, rttProbeMost)
	}
	m.drained, m.draining = now, false
	return false
}

// Spoke notes a sign of life while something is in flight.
func (m *Meter) Spoke(now clock.Time) { m.signOfLife(0, now) }

// Resume notes that the silence until now was not the rail's: its peer as a whole was silent. It teaches nothing, so
// the sample begins anew. With the silence in it, a rail that was full would be thought as slow as one that trickles.
func (m *Meter) Resume(now clock.Time) {
	m.heard, m.spoke = now, m.awake(now)
	if m.since != 0 {
		m.since, m.bytes, m.slices, m.full, m.capped = now, 0, 0, false, false
	}
}

// Misjudged notes that the rail was suspected and alive: silence of this length is usual there.
func (m *Meter) Misjudged(silent time.Duration) { m.silence = max(m.silence, float64(silent)) }

// signOfLife notes one that came with n bytes. The time that these bytes need explains that much of the silence before.
func (m *Meter) signOfLife(n uint64, now clock.Time) {
	if now <= m.heard {
		return
	}
	awake := m.awake(now)
	gap := float64(max(0, awake-m.spoke))
	m.heard, m.spoke = now, awake
	if gap < float64(silenceMemory) {
		m.silence -= m.silence * gap / float64(silenceMemory)
	} else {
		m.silence = 0
	}
	if strange := gap - float64(n)*m.perByte; strange > m.silence {
		m.silence = strange
	}
}

func (m *Meter) sample(now clock.Time) {
	took := float64(now - m.since)
	sample := float64(m.bytes) / took * 1e9
	switch {
	case m.full && !m.measured: // until now the rate was assumed, and silence was judged by it
		m.setRate(sample)
		m.measured, m.silence = true, float64(silencePrior)
	case sample > m.rate || m.full:
		m.setRate(m.rate + (sample-m.rate)*took/(took+sampleHalf))
		m.measured = true
	}
	if m.full && m.bytes >= m.slices*wholeSlice {
		m.lately.see(m.rate, took)
		if !m.capped {
			m.whole.see(m.rate, took)
			m.fullBytes += m.bytes
			m.fullTime += time.Duration(took)
		}
	}
	m.since, m.bytes, m.slices, m.full, m.capped = now, 0, 0, false, false
}

// TakeFull returns the bytes and the time of the samples since the last call in which the rail was full. Then its whole
// window is in flight, of slices that are not small.
func (m *Meter) TakeFull() (bytes uint64, took time.Duration) {
	bytes, took = m.fullBytes, m.fullTime
	m.fullBytes, m.fullTime = 0, 0
	return bytes, took
}

// HalveRate halves the estimate, to 1 MB/s at least: the rail answers probes, but its slices in flight do not arrive.
func (m *Meter) HalveRate() { m.setRate(max(m.rate/2, rateLeast)) }

// Quantum is the most bytes that make sense in one slice here: the bandwidth-delay product for quantumTime. A rail that
// fails or becomes slow then holds no more than that at once, and silence is noticed early.
func (m *Meter) Quantum() uint64 { return m.quantum }

func (m *Meter) setRate(rate float64) {
	m.rate, m.perByte = rate, 1e9/rate
	m.quantum = max(uint64(rate*quantumTime.Seconds()), quantumLeast) / quantumLeast * quantumLeast
}

// Rate is the estimate in bytes/s, never 0.
func (m *Meter) Rate() float64 { return m.rate }

// maxFilter keeps the highest rate of some samples, which fades as BBR's windowed maximum does.
type maxFilter struct {
	rate float64 // bytes/s
	time float64 // ns of samples, maxShare of each at most
}

func (f *maxFilter) see(rate, took float64) {
	f.time += min(took, float64(maxShare))
	f.rate = max(rate, f.rate-(f.rate-rate)*min(1, took/float64(maxMemory)))
}

// value is 0 until the samples are long enough, and several: a short one means little, and so does one alone.
func (f *maxFilter) value() float64 {
	if f.time < float64(maxLeast) {
		return 0
	}
	return f.rate
}

// Measured reports whether Rate comes from traffic, not only from configuration or assumption.
func (m *Meter) Measured() bool { return m.measured }

// MaxBandwidth is the highest rate of the last seconds of traffic, in bytes/s, as BBR's BtlBw. It is 0 until the rail
// has been full for some time with its whole window in flight, of slices that are not small: small ones measure their
// own cost.
func (m *Meter) MaxBandwidth() float64 { return m.whole.value() }

// WindowRate is the rate for sizing a time window, in bytes/s: max(rate, best/2), doubled during a bandwidth probe. A
// window that is too small makes the rail slow, and a slow rail makes the window small. Without the second term a
// machine that withheld the processor for some time would leave us there.
func (m *Meter) WindowRate() float64 {
	rate := max(m.rate, m.lately.value()/2)
	if m.probing {
		return 2 * rate
	}
	return rate
}

// ProbeBandwidth doubles WindowRate for 8 ms or eight delays now and then, like BBR's ProbeBW. The caller calls it
// while work waits for room in a time window. A rate that was measured in a window that is too small is the window's,
// and only a larger window can show that there is more. The next probe comes 20 ms after a gain; each probe without one
// doubles the pause, up to 4 s. The extra bytes wait for a share of the time that is too small to be seen among the
// delays of others.
func (m *Meter) ProbeBandwidth(now clock.Time) {
	switch {
	case m.probeAt == 0:
		m.probeAt = now + m.probePause
	case m.probing && now >= m.probeAt:
		m.probing = false
		if m.rate > m.before*bandwidthGain {
			m.probePause = bandwidthPauseLeast
		} else {
			m.probePause = min(2*m.probePause, bandwidthPauseMost)
		}
		m.before, m.probeAt = m.rate, now+m.probePause
	case m.probing:
	case now >= m.probeAt:
		m.probing, m.before = true, m.rate
		m.probeAt = now + max(bandwidthProbeFor, 8*clock.Time(m.delay))
	case m.rate < m.before/bandwidthGain && m.probeAt > now+bandwidthPauseLeast: // it fell: was that the rail, or us?
		m.probePause, m.probeAt, m.before = bandwidthPauseLeast, now+bandwidthPauseLeast, m.rate
	}
}

// Delay is the time of a slice on the empty rail beyond its bytes at the rail's rate, smoothed; 0 before the first. It
// does not grow with the bytes in flight.
func (m *Meter) Delay() time.Duration { return m.delay }

// Finish predicts in ns how long it takes until n bytes in flight have arrived. It uses the rate, and the recent time
// of slices with the bytes ahead of them. A rail that was idle for long may be different by now: the prediction is a
// quick one, so that it is tried with one slice.
func (m *Meter) Finish(n uint64, idle bool, now clock.Time) float64 {
	byRate := float64(n) * m.perByte
	if idle && now.Sub(m.heard) > stale {
		return min(byRate, float64(n)*(1e9/startRate))
	}
	if lately := float64(m.usual) + (float64(n)-m.ahead)*m.perByte; lately > byRate {
		return lately
	}
	return byRate
}

// Silence is the longest silence that is expected of the rail while a slice of that many bytes is next to complete. It
// is 0 before the first completion.
func (m *Meter) Silence(slice uint64) time.Duration {
	switch {
	case m.usual == 0:
		return 0
	case m.measured:
		return time.Duration(m.silence + float64(slice)*m.perByte)
	}
	return time.Duration(max(m.silence, float64(m.usual)*max(1, float64(slice)/max(m.ahead, 1))))
}
