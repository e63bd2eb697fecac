package qos

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// Neighbours is the knowledge that the processes of one host share of one local NIC. The core calls it under the
// engine's mutex, once a slice at most, so nothing in it waits, locks or enters the kernel. Times are CLOCK_MONOTONIC,
// the same for all.
type Neighbours interface {
	// Claim says that this process has work of a class for the NIC. It keeps slots from less urgent classes until then.
	Claim(class int, until, now clock.Time)
	// Claimed is until when any process, this one too, has claimed slots for a class; 0 if none ever did.
	Claimed(class int, now clock.Time) clock.Time
	// Carries says how many bytes this process has in flight there.
	Carries(bytes uint64, now clock.Time)
	// Others is the number of bytes that the other processes that are alive have in flight there.
	Others(now clock.Time) uint64
}

// Slots divide time between the processes of a host, without a word between them. Slot 0 is for HIGH, slot 1 for HIGH
// and MEDIUM, slot 2 for all, and so on in a circle. The zero value is off.
//
// With Borrow, a class may also begin while no more urgent one claims slots. A claim lasts as long again as its work
// has (Hold), so a short request now and then does not keep the others out for whole slots.
type Slots struct {
	Interval time.Duration // of one slot
	Borrow   bool
}

// Current is the slot of a moment: 0, 1 or 2.
func (s Slots) Current(now clock.Time) int { return int(now / clock.Time(s.Interval) % Classes) }

// Hold is how long a claim lasts that is made now for work of some age: as long again. It is an eighth of an interval
// at least and one at most. So claims are renewed ever more rarely, and end soon after short work.
func (s Slots) Hold(age time.Duration) time.Duration { return min(max(age, s.Interval/8), s.Interval) }

// Pause is how long a class must have had no work for its next work to be new. Requests one behind the other are one
// work.
func (s Slots) Pause() time.Duration { return s.Interval / 16 }

// May reports whether a class may begin a slice now, else when to ask again.
func (s Slots) May(class int, n Neighbours, now clock.Time) (ok bool, again clock.Time) {
	if s.Interval <= 0 || n == nil || class == High {
		return true, 0
	}
	quiet := clock.Never
	if s.Borrow { // asked first: it is the usual answer, and dividing by the interval costs more than all the rest
		quiet = 0
		for urgent := range class {
			quiet = max(quiet, n.Claimed(urgent, now))
		}
		if now >= quiet {
			return true, 0
		}
	}
	interval := clock.Time(s.Interval)
	turn := now / interval
	slot := turn % Classes
	if clock.Time(class) <= slot {
		return true, 0
	}
	return false, min((turn+clock.Time(class)-slot)*interval, quiet)
}
