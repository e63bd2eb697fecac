package qos

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// Neighbours is the knowledge that the processes of one host share of one local NIC. The core calls it under the
// engine's mutex, once a slice at most, so nothing in it waits, locks or enters the kernel. Times are CLOCK_MONOTONIC,
// the same for all.
type Neighbours interface {
	// Wants says that this process has work of a class for the NIC, waiting or in flight.
	Wants(class int, now clock.Time)
	// Wanted is when any process, this one too, last had work of a class; 0 if none ever had, and never later than now.
	Wanted(class int, now clock.Time) clock.Time
	// Carries says how many bytes this process has in flight there.
	Carries(bytes uint64, now clock.Time)
	// Others is the number of bytes that the other processes that are alive have in flight there.
	Others(now clock.Time) uint64
}

// Slots divide time between the processes of a host, without a word between them. Slot 0 is for HIGH, slot 1 for HIGH
// and MEDIUM, slot 2 for all, and so on in a circle. The zero value is off.
type Slots struct {
	Interval time.Duration // of one slot
	Borrow   bool          // a slot that no more urgent class has wanted for one interval may be used by the others
}

// Current is the slot of a moment: 0, 1 or 2.
func (s Slots) Current(now clock.Time) int { return int(now / clock.Time(s.Interval) % Classes) }

// May reports whether a class may begin a slice now, else when to ask again.
func (s Slots) May(class int, n Neighbours, now clock.Time) (ok bool, again clock.Time) {
	if s.Interval <= 0 || n == nil || class == High {
		return true, 0
	}
	interval, quiet := clock.Time(s.Interval), clock.Never
	if s.Borrow { // asked first: it is the usual answer, and dividing by the interval costs more than all the rest
		quiet = 0
		for urgent := range class {
			if last := n.Wanted(urgent, now); last != 0 {
				quiet = max(quiet, last+interval)
			}
		}
		if now >= quiet {
			return true, 0
		}
	}
	turn := now / interval
	slot := turn % Classes
	if clock.Time(class) <= slot {
		return true, 0
	}
	return false, min((turn+clock.Time(class)-slot)*interval, quiet)
}
