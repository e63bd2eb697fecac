package copying

import (
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/clock"
)

// way is how a chunk is copied.
type way uint8

const (
	kept     way = iota // by memmove: the destination stays in the caches
	streamed            // by non-temporal stores
)

// copy copies a chunk that way.
func (w way) copy(dst, src uintptr, bytes uint64) {
	if w == streamed {
		stream(dst, src, bytes)
	} else {
		chunks(dst, src, bytes)
	}
}

// learner compares the two ways by the times that they took. All goroutines of a copier share one; an update that
// another one overwrites is a measurement less, no more.
type learner struct {
	// run is the number of bytes that go the same way. Those of its second half find the caches as their own kind left
	// them, and only these count: the first memmove behind non-temporal stores is slow.
	run uint64
	// lead is by how many percent non-temporal stores must be the faster way: memmove leaves bytes where they are read
	// next.
	lead uint64

	copied atomic.Uint64    // bytes
	pace   [2]atomic.Uint64 // of each way: ns per MiB, a moving mean; 0 is unknown
}

const (
	firstRuns = 8   // at first, both ways by turns
	retryRuns = 128 // later, one of the slower way among this number: less than one in a hundred
)

// next says which way the next bytes go, and whether their time counts.
func (l *learner) next(bytes uint64) (w way, counts bool) {
	before := l.copied.Add(bytes) - bytes
	run := before / l.run
	counts = before%l.run >= l.run/2
	if run < firstRuns {
		return way(run % 2), counts
	}
	best := streamed
	if l.pace[kept].Load()*100 < l.pace[streamed].Load()*(100+l.lead) {
		best = kept
	}
	if run%retryRuns == 0 {
		best = 1 - best
	}
	return best, counts
}

// took notes how long a chunk took. A chunk that the scheduler interrupted counts as twice the mean at most.
func (l *learner) took(w way, bytes uint64, ns int64) {
	pace := uint64(max(ns, 1)) << 20 / bytes
	mean := l.pace[w].Load()
	if mean != 0 {
		pace = (7*mean + min(pace, 2*mean)) / 8
	}
	l.pace[w].Store(max(pace, 1))
}

// copy goes the way that was the faster one.
func (l *learner) copy(dst, src uintptr, bytes uint64) {
	for bytes > 0 {
		n := min(bytes, chunkBytes)
		if w, counts := l.next(n); counts {
			begin := clock.Now()
			w.copy(dst, src, n)
			l.took(w, n, int64(clock.Now()-begin))
		} else {
			w.copy(dst, src, n)
		}
		dst, src, bytes = dst+uintptr(n), src+uintptr(n), bytes-n
	}
}
