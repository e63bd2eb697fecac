package main

import (
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/clock"

	"github.com/tent-engine/tent/tests/bench/report"
)

// stall is the longest time within [from, to] in which no byte was acknowledged.
func (t *Trace) stall(from, to clock.Time) (longest time.Duration) {
	last, since := uint64(0), from
	for _, s := range t.Samples {
		if s.At < from || s.At > to {
			continue
		}
		if s.Bytes != last {
			longest = max(longest, s.At.Sub(since))
			last, since = s.Bytes, s.At
		}
	}
	return max(longest, to.Sub(since))
}

// bytes acknowledged within [from, to].
func (t *Trace) bytes(from, to clock.Time) uint64 { return t.at(to) - t.at(from) }

func (t *Trace) at(when clock.Time) (bytes uint64) {
	for _, s := range t.Samples {
		if s.At > when {
			break
		}
		bytes = s.Bytes
	}
	return bytes
}

// hit is how long after a fault small requests are still sent over the rail that it broke.
const hit = 30 * time.Millisecond

// slowest is the longest that a small request took to its end. It looks at those that were under way at a time or began
// soon after it, and counts from their begin or that time on, whichever is later. moved counts only those that were
// sent a second time, over another rail; 0 if there are none.
func (t *Trace) slowest(when clock.Time, moved bool) (longest time.Duration) {
	for _, s := range t.Small {
		if s.End > when && s.Begin < when.Add(hit) && (s.Moved || !moved) {
			longest = max(longest, s.End.Sub(max(s.Begin, when)))
		}
	}
	return longest
}

// latencies of all small requests.
func (t *Trace) latencies() []time.Duration {
	list := make([]time.Duration, len(t.Small))
	for i, s := range t.Small {
		list[i] = s.End.Sub(s.Begin)
	}
	return list
}

// tell prints the events of a run.
func (t *Trace) tell(name string, at faultTimes) {
	since := func(when clock.Time) float64 { return float64(when.Sub(at.began)) / 1e6 }
	report.Progress("%s: there %.1f, mended %.1f, end %.1f", name, since(at.there), since(at.mended), since(t.End))
	for _, e := range t.Events {
		if e.At < t.Begin {
			continue
		}
		report.Progress("  %8.1f %s %s", since(e.At), e.Kind, e.Rail)
	}
	for _, s := range t.Small {
		if s.Moved {
			report.Progress("  %8.1f to %.1f a small request that was sent again", since(s.Begin), since(s.End))
		}
	}
}

// first is when the first event of one of the kinds happened from a time on; 0: none did.
func (t *Trace) first(from clock.Time, kinds ...string) clock.Time {
	for _, e := range t.Events {
		if e.At >= from && slices.Contains(kinds, e.Kind) {
			return e.At
		}
	}
	return 0
}

// count is the number of events of a kind in the run; a follower also gets those that were before it.
func (t *Trace) count(kind string) (n int) {
	for _, e := range t.Events {
		if e.Kind == kind && e.At >= t.Begin {
			n++
		}
	}
	return n
}
