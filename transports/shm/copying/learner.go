package copying

import (
	"math/bits"
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
	// run is the number of bytes of a trial, once it has its full length. Those of its second half find the caches as
	// their own kind left them, and only these count: the first memmove behind non-temporal stores is slow.
	run uint64
	// lead is by how many percent non-temporal stores must be the faster way: memmove leaves bytes where they are read
	// next.
	lead uint64

	copied atomic.Uint64    // bytes
	pace   [2]atomic.Uint64 // of each way: ns per MiB, a moving mean; 0 is unknown
}

const (
	firstTrial = 64 << 20 // bytes behind which the other way is tried first, unless runs are shorter than its trial
	// Each time that the bytes have doubled it is tried for an eighth of them, until that is a run. The first trials
	// are short: they can be wrong about buffers that come again late, and cost little where the other way is slow.
	trialShare = 8
	retryRuns  = 128 // later, one run among this number: less than one byte in a hundred
)

// next says which way the next bytes go, and whether their time counts.
func (l *learner) next(bytes uint64) (w way, counts bool) {
	at := l.copied.Add(bytes) - bytes
	trial, due := min(firstTrial/trialShare, l.run), false
	switch period := l.run * retryRuns; {
	case at >= period:
		at, trial, due = at%period, l.run, true
	case at >= trialShare*trial:
		doubled := uint64(1) << (bits.Len64(at) - 1)
		at, trial, due = at-doubled, min(doubled/trialShare, l.run), true
	}
	if w = l.best(); due && at < trial {
		w = 1 - w
	}
	return w, at%trial >= trial/2
}

// best is the way that was faster: memmove until both are known.
func (l *learner) best() way {
	plain, passing := l.pace[kept].Load(), l.pace[streamed].Load()
	if passing == 0 || plain*100 < passing*(100+l.lead) {
		return kept
	}
	return streamed
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
