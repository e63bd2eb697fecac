// Package qos is the policy between classes: strict order, and turns against starvation (Turns). LowWindow bounds the
// LOW bytes in flight where HIGH must not wait, Filter says which classes may use which NIC, and Slots which class may
// begin when in the processes of a host. It is pure; gocore/dispatch asks it, and gocore/share knows the Neighbours.
//
// # Bounds
//
// A HIGH slice waits for at most one LowWindow of LOW bytes of its NIC. Each rail of the NIC on which LOW gets its turn
// meanwhile adds one LOW slice, a quarter of that. While the meter of a rail reaches for a higher rate
// (rail.Meter.ProbeBandwidth), for some milliseconds now and then, the window is twice as large.
//
// A class that waits is served on each rail that it may use at least once in a time-out (Turns). Its slice begins when
// the rail has room for it. More urgent classes, on other links of the NIC too, cannot prevent that. With slots the
// turn must fall into a slot that admits the class, so it is once in a time-out plus two slots for MEDIUM and three for
// LOW: with the standard settings LOW moves at least one slice in 10 + 3*2 ms. With the filter it may have to wait
// until it is its turn on the NIC, at most n-1 rotations of n NICs, and other NICs of the link admit it meanwhile.
//
// Turns are for the head of a class, so the order inside a class is never changed. A LOW request beside HIGH does not
// become HIGH because it is large: it gets one slice in a time-out, however long it is.
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

// Pick returns the class that is next and whether this is a turn granted by ageing. waiting is the time since when
// each class has had work, clock.Never where it has none. It returns -1 when nothing waits.
//
// entries is by how much the turns of each class come sooner, nil where they do not: as many as requests of it wait
// gives each of them a turn in a time-out: this is the meaning of priority_promotion_per_entry here.
func (t *Turns) Pick(waiting *[Classes]clock.Time, entries *[Classes]int, ageing time.Duration,
	now clock.Time) (class int, aged bool) {
	first := -1
	for c := range Classes {
		if waiting[c] == clock.Never {
			continue
		}
		if first < 0 {
			first = c
			continue
		}
		sooner := 1
		if entries != nil {
			sooner = entries[c]
		}
		if now >= t.Due(c, waiting[c], ageing, sooner) {
			return c, true
		}
	}
	return first, false
}

// Due is when a class that has had work since waiting gets its turn, beside any other work. It is after the time-out,
// and from then on once in each part of it, as many parts as entries.
func (t *Turns) Due(class int, waiting clock.Time, ageing time.Duration, entries int) clock.Time {
	return max(waiting.Add(ageing), t.served[class].Add(ageing/time.Duration(entries)))
}

// Served notes that the class got a slice on the rail.
func (t *Turns) Served(class int, now clock.Time) { t.served[class] = now }
