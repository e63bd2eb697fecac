package rail

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

const (
	// A sample of the rate needs this much time, or the noise of a single completion would be taken for bandwidth.
	sampleTime = clock.Time(time.Millisecond)
	// A sample that took so long counts as much as all before it: a rail that has become slow is believed within a few of
	// its completions, however slow they are.
	sampleHalf = float64(4 * time.Millisecond)
	// forget is the time of traffic in which the longest silence counts less and less.
	forget = 1e9
	// bestMemory is the time of traffic in which the highest rate counts less and less.
	bestMemory = 10e9
	bestLeast  = 20e6    // ns of a full rail before the highest rate is told
	wholeSlice = 8 << 10 // bytes; a sample of shorter slices is one of their number
	// silencePrior is assumed of a rail whose rate has just become known, in ns: it has had no time to be silent yet.
	silencePrior = 2e6
	// drainEvery is how often a rail that is never empty is let run empty, or less often where the delay is long; drainLimit
	// is how long that may take.
	drainEvery = clock.Time(250 * time.Millisecond)
	drainLimit = clock.Time(10 * time.Millisecond)
	// reachFor is how long Reach lasts or eight delays, reachLeast and reachMost are the bounds of the pause before the next
	// one, and reachGain is by how much the rate must be higher for it to have been worth it.
	reachFor   = clock.Time(8 * time.Millisecond)
	reachLeast = clock.Time(20 * time.Millisecond)
	reachMost  = clock.Time(4 * time.Second)
	reachGain  = 1.25
	// stale is the time after which an idle rail may be quite different: it is tried with one slice.
	stale = time.Second
)

// slowest is the least rate that Slower believes in, in bytes/s.
const slowest = 1e6

// Bounds of a slice by the rate.
const (
	quantumTime  = 0.002    // s
	quantumLeast = 64 << 10 // bytes
)

// startRate is assumed of a rail that says nothing about itself, in bytes/s.
const startRate = 1e9

// Meter estimates a rail's rate, its delay, how long a slice will take and how long the rail may be silent, from
// completions. Small transfers that leave the rail idle in between say how long a byte takes to get there, not how many
// fit, so a sample of the rate that is below the estimate counts only if the rail was kept full while it was taken.
type Meter struct {
	rate     float64 // bytes/s; from it follow
	perByte  float64 // ns
	quantum  uint64
	lately   peak          // of a rail that was full
	whole    peak          // of one whose window was whole when it was full
	measured bool          // rate is not only what was configured or assumed
	full     bool          // the rail had no room at some time during the sample, and work was waiting
	capped   bool          // and that was because less may be in flight than the rail can hold
	delay    time.Duration // of an empty rail, smoothed
	drained  clock.Time    // when a slice was last alone on the rail

	reaching   bool       // Holds says twice as much
	reachAt    clock.Time // when that ends, or begins next
	reachEvery clock.Time
	before     float64 // rate when it began

	usual   time.Duration // time of a slice, smoothed
	ahead   float64       // bytes in flight when it was posted, itself among them, smoothed
	silence float64       // ns; the longest between two signs of life while busy that the rate does not explain, fading
	heard   clock.Time    // last sign of life
	since   clock.Time    // start of the sample; 0 while idle
	bytes   uint64        // delivered in the sample
	slices  uint64        // that brought them
}

// Reset starts anew with a configured rate in bytes/s, 0 if it is not known.
func (m *Meter) Reset(rate float64) {
	*m = Meter{}
	if rate <= 0 {
		rate = startRate
	}
	m.setRate(rate)
	m.reachEvery = reachLeast
}

// Begin is called when the idle rail gets its first slice.
func (m *Meter) Begin(now clock.Time) {
	m.since, m.heard, m.bytes, m.slices, m.full, m.capped = now, now, 0, 0, false, false
}

// Full notes that work waits for room on the rail; capped says that more would be in flight but for a smaller window, of LOW
// or of a rail that comes back. What such a rail carries may be the window's rate.
func (m *Meter) Full(capped bool) { m.full, m.capped = true, m.capped || capped }

// Delivered notes n bytes of a slice that took the given time; ahead is what was in flight when it was posted, itself
// among it, and idle says that nothing is left on the rail.
func (m *Meter) Delivered(n, ahead uint64, took time.Duration, idle bool, now clock.Time) {
	if m.usual == 0 {
		m.usual, m.ahead = took, float64(ahead)
	} else {
		m.usual += (took - m.usual) / 8
		m.ahead += (float64(ahead) - m.ahead) / 8
	}
	m.spoke(n, now)
	m.Carried(n, idle, now)
}

// Carried notes bytes that were delivered, where only the rate is of interest: Begin, Full and Carried are enough for that.
func (m *Meter) Carried(n uint64, idle bool, now clock.Time) {
	m.bytes += n
	m.slices++
	if now-m.since >= sampleTime {
		m.sample(now)
	}
	if idle {
		m.since = 0
	}
}

// Alone notes how long a slice took that had the wire for itself when it was sent: only such a one tells the delay without
// what waits there, which is as much as we put there. One that took very long was hardly held up by the path, so it counts
// as twice the usual.
func (m *Meter) Alone(n uint64, took time.Duration, now clock.Time) {
	m.drained = now
	if !m.measured { // a rate that is only assumed makes nonsense of the delay
		return
	}
	wire := time.Duration(float64(n) * m.perByte)
	delay := max(took-wire, 1)
	if wire > took/2 && delay > m.delay { // the difference of two large numbers that are not exact tells little
		return
	}
	switch {
	case m.delay == 0:
		m.delay = delay
	case delay < m.delay:
		m.delay -= (m.delay - delay) / 2
	default:
		m.delay += min(delay-m.delay, m.delay) / 8
	}
}

// Drain reports whether it is time to let the rail run empty, so that the next slice is alone there and tells the delay. The
// caller gives no slices that can wait until then; it costs one delay in drainEvery. Where the rail does not run empty
// within drainLimit, it goes on.
func (m *Meter) Drain(now clock.Time) bool {
	since := now - m.drained
	every := max(drainEvery, 256*clock.Time(m.delay))
	if since < every {
		return false
	}
	if since > every+max(drainLimit, 16*clock.Time(m.delay)) {
		m.drained = now
		return false
	}
	return true
}

// Heard notes a sign of life while something is in flight.
func (m *Meter) Heard(now clock.Time) { m.spoke(0, now) }

// Misjudged notes that the rail was suspected and alive: it may be silent for so long.
func (m *Meter) Misjudged(silent time.Duration) { m.silence = max(m.silence, float64(silent)) }

// spoke notes a sign of life that came with n bytes: the time for which these explain the silence before it is not strange.
func (m *Meter) spoke(n uint64, now clock.Time) {
	if now <= m.heard {
		return
	}
	gap := float64(now - m.heard)
	m.heard = now
	if gap < forget {
		m.silence -= m.silence * gap / forget
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
	case m.full && !m.measured: // all that was known was said or assumed; silence was judged by that
		m.setRate(sample)
		m.measured, m.silence = true, silencePrior
	case sample > m.rate || m.full:
		m.setRate(m.rate + (sample-m.rate)*took/(took+sampleHalf))
		m.measured = true
	}
	if m.full && m.bytes >= m.slices*wholeSlice {
		m.lately.see(m.rate, took)
		if !m.capped {
			m.whole.see(m.rate, took)
		}
	}
	m.since, m.bytes, m.slices, m.full, m.capped = now, 0, 0, false, false
}

// Slower notes that the rail works, and that what it holds does not arrive: it is slower than it was.
func (m *Meter) Slower() { m.setRate(max(m.rate/2, slowest)) }

// Quantum is the most bytes that make sense in one slice here: what the rail carries in quantumTime, so that a rail that
// fails or becomes slow holds no more than that at once, and silence tells early. At most as many as need no bound are.
func (m *Meter) Quantum() uint64 { return m.quantum }

func (m *Meter) setRate(rate float64) {
	m.rate, m.perByte = rate, 1e9/rate
	m.quantum = max(uint64(rate*quantumTime), quantumLeast) / quantumLeast * quantumLeast
}

// Rate is the estimate in bytes/s, never 0.
func (m *Meter) Rate() float64 { return m.rate }

// peak is the highest rate of some samples, which counts less and less.
type peak struct {
	rate float64 // bytes/s
	time float64 // ns of samples
}

func (p *peak) see(rate, took float64) {
	p.time += took
	p.rate = max(rate, p.rate-(p.rate-rate)*min(1, took/bestMemory))
}

// value is 0 until there were samples for long enough: a short one says little.
func (p *peak) value() float64 {
	if p.time < bestLeast {
		return 0
	}
	return p.rate
}

// Measured reports whether Rate comes from traffic, not only from what was configured or assumed.
func (m *Meter) Measured() bool { return m.measured }

// Best is what the rail has shown that it can carry in the last seconds of traffic, in bytes/s; 0 until it has been full for
// some time with its whole window in flight, of slices that are not small: small ones say what slices cost.
func (m *Meter) Best() float64 { return m.whole.value() }

// Holds is the rate by which a window of time is kept, in bytes/s: what the rail carries now, and at least half of the best
// that it has shown lately. A window that is too small makes the rail slow, and a slow rail the window small; without the
// second term a machine that gave us no processor for some time would leave us there.
func (m *Meter) Holds() float64 {
	holds := max(m.rate, m.lately.value()/2)
	if m.reaching {
		return 2 * holds
	}
	return holds
}

// Reach has Holds say twice as much for a moment now and then, while something waits for room in a window of time. What is
// measured in a window that is too small is the window's rate, not the rail's; only a larger one can show that there is
// more. When it does, the next try comes soon, else later and later. The extra bytes wait no longer than reachFor, a share of
// the time that is too small to be seen among the delays of others.
func (m *Meter) Reach(now clock.Time) {
	switch {
	case m.reachAt == 0:
		m.reachAt = now + m.reachEvery
	case m.reaching && now >= m.reachAt:
		m.reaching = false
		if m.rate > m.before*reachGain {
			m.reachEvery = reachLeast
		} else {
			m.reachEvery = min(2*m.reachEvery, reachMost)
		}
		m.before, m.reachAt = m.rate, now+m.reachEvery
	case m.reaching:
	case now >= m.reachAt:
		m.reaching, m.before = true, m.rate
		m.reachAt = now + max(reachFor, 8*clock.Time(m.delay))
	case m.rate < m.before/reachGain && m.reachAt > now+reachLeast: // it fell: was that the rail, or us?
		m.reachEvery, m.reachAt, m.before = reachLeast, now+reachLeast, m.rate
	}
}

// Delay is what a slice took lately on the empty rail beyond its bytes at the rail's rate, 0 before the first. It does not
// grow with what is in flight.
func (m *Meter) Delay() time.Duration { return m.delay }

// Finish predicts in ns how long it takes until n bytes in flight are there: by the rate, and by how long slices took
// lately with what was ahead of them. A rail that has been idle for long may be different by now: it is said to be quick, so
// that it is tried with one slice.
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

// Silence is how long the rail is expected to say nothing at most while a slice of so many bytes is next to complete. It is
// 0 before the first completion, when nothing can be said.
func (m *Meter) Silence(slice uint64) time.Duration {
	switch {
	case m.usual == 0:
		return 0
	case m.measured:
		return time.Duration(m.silence + float64(slice)*m.perByte)
	}
	return time.Duration(max(m.silence, float64(m.usual)*max(1, float64(slice)/max(m.ahead, 1))))
}
