package rail

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// slowStartWindow is the window of a rail that comes back, in bytes: the restart window of RFC 5681.
const slowStartWindow = 128 << 10

// probeLost is the time after which a probe counts as forgotten by its transport. A rail would never come back from
// probation otherwise.
const probeLost = 10 * time.Second

// SlowStart is the way back of a rail that was out: probes first, then slow start as TCP's (RFC 5681, section 3.1).
//
//	out --probe, probe, ...: as many good ones in a row as Breaker.Trust demands--> ramp --window reached--> as before
//	     ^                  |                                                       |
//	     +---a bad one------+                                                       +--failure: out, or the ramp anew
//
// During the ramp the window grows by all bytes that were delivered, so it doubles with each round trip: a good rail is
// back within a few of them, and a bad one has lost little.
type SlowStart struct {
	asked   clock.Time // when the last probe was sent
	good    int        // probes answered in a row
	bad     int        // probes not answered since the last good one
	probing bool       // a probe is under way
	window  uint64     // of the ramp; 0: none is on
}

// Ask reports whether a probe is due, and notes that it is sent. Otherwise next is the time to ask again.
func (s *SlowStart) Ask(every time.Duration, now clock.Time) (due bool, next clock.Time) {
	switch {
	case s.probing && now < s.asked.Add(probeLost): // its answer, or the lack of one, comes within a second
		return false, now.Add(every)
	case s.asked != 0 && now < s.asked.Add(every):
		return false, s.asked.Add(every)
	}
	if s.probing {
		s.Unanswered()
	}
	s.asked, s.probing = now, true
	return true, now.Add(every)
}

// Probing reports whether a probe is under way.
func (s *SlowStart) Probing() bool { return s.probing }

// Answered notes a good answer to a probe and returns how many came in a row.
func (s *SlowStart) Answered() int {
	s.probing, s.bad = false, 0
	s.good++
	return s.good
}

// Unanswered notes a probe without a good answer and returns how many there were since the last good one.
func (s *SlowStart) Unanswered() int {
	s.probing, s.good = false, 0
	s.bad++
	return s.bad
}

// Begin starts the ramp of a rail that is in use again.
func (s *SlowStart) Begin() { s.good, s.window = 0, slowStartWindow }

// Ramping reports whether the rail may not use its whole window yet.
func (s *SlowStart) Ramping() bool { return s.window != 0 }

// Delivered widens the ramp.
func (s *SlowStart) Delivered(bytes uint64) { s.window += bytes }

// Window is the bytes that may be in flight where whole is allowed without a ramp. It ends the ramp when that is
// reached.
func (s *SlowStart) Window(whole uint64) uint64 {
	if s.window == 0 || s.window >= whole {
		s.window = 0
		return whole
	}
	return s.window
}
