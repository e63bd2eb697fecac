package copying

import (
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/clock"
)

// way is how a chunk of a large transfer is copied.
type way uint8

const (
	kept     way = iota // by memmove: the destination stays in the caches
	streamed            // by non-temporal stores
)

// learner compares the two ways by the times that they took. All goroutines of a copier share one; an update that
// another one overwrites is a measurement less, no more.
type learner struct {
	turns atomic.Uint32
	pace  [2]atomic.Uint64 // of each way: ns per MiB, a moving mean; 0 is unknown
}

const (
	// chunks that go the same way while both are tried: each finds the caches as its own kind left them
	runTurns   = 4
	firstTurns = 32  // at first, both ways by turns
	retryTurns = 512 // later, a run of the slower way among this number of chunks: less than one in a hundred
)

// next says which way the next chunk goes.
func (l *learner) next() way {
	turn := l.turns.Add(1) - 1
	if turn < firstTurns {
		return way(turn / runTurns % 2)
	}
	best := streamed
	// a little slower is still better for the others in the caches
	if l.pace[kept].Load()*20 < l.pace[streamed].Load()*19 {
		best = kept
	}
	if turn%retryTurns < runTurns {
		return 1 - best
	}
	return best
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

// large copies a part of a transfer that does not stay in the caches.
func (c *Copier) large(dst, src uintptr, bytes uint64) {
	for bytes > 0 {
		n := min(bytes, chunkBytes)
		w, begin := c.learned.next(), clock.Now()
		if w == streamed {
			stream(dst, src, n)
		} else {
			chunks(dst, src, n)
		}
		c.learned.took(w, n, int64(clock.Now()-begin))
		dst, src, bytes = dst+uintptr(n), src+uintptr(n), bytes-n
	}
}
