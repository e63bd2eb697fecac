package main

import (
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
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

// slowest is the longest that a small request took to its end, from its begin or from when on, whichever is later.
func (t *Trace) slowest(when clock.Time) (longest time.Duration) {
	for _, s := range t.Small {
		if s.End > when {
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

func (t *Trace) count(kind string) (n int) {
	for _, e := range t.Events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// quantile of a list, which it sorts; 0 of an empty one.
func quantile[T ~int64 | ~float64](list []T, q float64) (v T) {
	if len(list) == 0 {
		return v
	}
	slices.Sort(list)
	return list[min(len(list)-1, int(q*float64(len(list))))]
}
