// Package qos is the policy between classes: strict order, turns against starvation, and how much of LOW may be in flight
// where HIGH must not wait. It is pure; gocore/dispatch is its only caller.
package qos

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// Classes of priority, with upstream's numbers.
const (
	High = iota
	Medium
	Low
	Classes
)

// Turns remembers when each class was last served on one rail.
//
// Ageing grants turns, it does not move queues: a class that waits and was not served here for as long as the time-out
// gets one slice. Promotion by the waiting time of a request, as upstream has it, would put a large LOW request, 10 ms
// after its start, in front of every new HIGH one.
type Turns struct{ served [Classes]clock.Time }

// Pick returns the class whose head is next and whether this is a turn granted by ageing. waiting is the time since when
// each class has had work, clock.Never where it has none. It returns -1 when nothing waits.
func (t *Turns) Pick(waiting *[Classes]clock.Time, ageing time.Duration, now clock.Time) (class int, aged bool) {
	first := -1
	for c := range Classes {
		if waiting[c] == clock.Never {
			continue
		}
		if first < 0 {
			first = c
			continue
		}
		if now.Sub(max(t.served[c], waiting[c])) >= ageing {
			return c, true
		}
	}
	return first, false
}

// Served notes that the class got a slice on the rail.
func (t *Turns) Served(class int, now clock.Time) { t.served[class] = now }

// Bounds of LOW bytes in flight on one rail.
const (
	lowTime  = 500 * time.Microsecond // of the rail's rate
	lowLeast = 64 << 10               // bytes; less would cost more in headers and wake-ups than it saves in waiting
)

// LowWindow is the number of LOW bytes that may be in flight on a rail: what the rail carries in half a millisecond, or in
// twice its delay where that is more, since a window below one round trip would leave the rail idle; the factor lets the
// window grow while the rate that was measured is still the window's own. most is the rail's window; a quarter of it
// stays free of LOW.
func LowWindow(rate float64, delay time.Duration, most uint64) uint64 {
	n := uint64(rate * max(lowTime, 2*delay).Seconds())
	return min(max(n, lowLeast), most-most/4)
}
