package rail

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// rampStart is what a rail may have in flight when it comes back, in bytes: enough for a slice and the next one.
const rampStart = 128 << 10

// Return is the way back of a rail that was out.
//
//	out --probe, probe, ...: as many good ones in a row as Monitor.Trust says--> ramp --window reached--> as before
//	     ^                  |                                                    |
//	     +---a bad one------+                                                    +--failure: out, or the ramp anew
//
// While it ramps, the bytes that it may have in flight grow by all that it delivers, so they double with each round trip:
// a rail that is good is back within a few of them, and one that is not has lost little.
type Return struct {
	asked  clock.Time // when the last probe was sent
	good   int        // answered in a row
	out    bool       // a probe is under way
	window uint64     // of the ramp; 0: none is on
}

// Ask reports whether a probe is due, and notes that it is sent; else it says when to look again.
func (r *Return) Ask(every time.Duration, now clock.Time) (due bool, next clock.Time) {
	switch {
	case r.out: // its answer, or that there is none, comes within a second
		return false, now.Add(every)
	case r.asked != 0 && now < r.asked.Add(every):
		return false, r.asked.Add(every)
	}
	r.asked, r.out = now, true
	return true, now.Add(every)
}

// Answered notes the answer to a probe and returns how many good ones came in a row.
func (r *Return) Answered(good bool) int {
	r.out = false
	if !good {
		r.good = 0
		return 0
	}
	r.good++
	return r.good
}

// Begin starts the ramp of a rail that is in use again.
func (r *Return) Begin() { *r = Return{asked: r.asked, out: r.out, window: rampStart} }

// Ramping reports whether the rail may not use its whole window yet.
func (r *Return) Ramping() bool { return r.window != 0 }

// Delivered widens the ramp.
func (r *Return) Delivered(bytes uint64) { r.window += bytes }

// Window is what may be in flight of a whole window of so many bytes. It ends the ramp when that is reached.
func (r *Return) Window(whole uint64) uint64 {
	if r.window == 0 || r.window >= whole {
		r.window = 0
		return whole
	}
	return r.window
}
