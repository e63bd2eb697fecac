package rail

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// A sample of the rate needs this much time, or the noise of a single completion would be taken for bandwidth.
const sampleTime = clock.Time(time.Millisecond)

// startRate is assumed of a rail that says nothing about itself, in bytes/s.
const startRate = 1e9

// Meter estimates a rail's rate and its shortest delay from completions. Small transfers that leave the rail idle in
// between say how long a byte takes to get there, not how many fit, so a sample that is below the estimate counts only if
// the rail was kept full while it was taken.
type Meter struct {
	rate  float64 // bytes/s
	delay time.Duration
	usual time.Duration // time of a slice, smoothed
	vary  time.Duration // how far slices are from it, smoothed
	since clock.Time    // start of the sample; 0 while idle
	bytes uint64        // delivered in the sample
	full  bool          // the rail had no room at some time during the sample, and work was waiting
}

// Reset starts anew with a configured rate in bytes/s, 0 if it is not known.
func (m *Meter) Reset(rate float64) {
	*m = Meter{rate: rate}
	if rate <= 0 {
		m.rate = startRate
	}
}

// Begin is called when the idle rail gets its first slice.
func (m *Meter) Begin(now clock.Time) { m.since, m.bytes, m.full = now, 0, false }

// Full notes that work waits for room on the rail.
func (m *Meter) Full() { m.full = true }

// Delivered notes n bytes of a slice that took the given time; idle says that nothing is left on the rail.
func (m *Meter) Delivered(n uint64, took time.Duration, idle bool, now clock.Time) {
	if m.delay == 0 || took < m.delay {
		m.delay = took
	} else {
		m.delay += (took - m.delay) / 1024 // so that a path that became longer is believed in the end
	}
	if m.usual == 0 {
		m.usual, m.vary = took, took/2
	} else {
		m.vary += ((took - m.usual).Abs() - m.vary) / 4
		m.usual += (took - m.usual) / 8
	}
	m.bytes += n
	if now-m.since >= sampleTime {
		sample := float64(m.bytes) / float64(now-m.since) * 1e9
		if sample > m.rate || m.full {
			m.rate += (sample - m.rate) / 4
		}
		m.since, m.bytes, m.full = now, 0, false
	}
	if idle {
		m.since = 0
	}
}

// Rate is the estimate in bytes/s, never 0.
func (m *Meter) Rate() float64 { return m.rate }

// Delay is the shortest time that a slice took lately, 0 before the first.
func (m *Meter) Delay() time.Duration { return m.delay }

// Expect predicts how long a slice takes at most when n bytes are in flight: by the rate, and by how long slices took
// lately. It is 0 before the first completion, when nothing can be said.
func (m *Meter) Expect(n uint64) time.Duration {
	if m.usual == 0 {
		return 0
	}
	return max(time.Duration(float64(n)/m.rate*1e9), m.usual+4*m.vary)
}
