package copying

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// run lets a learner copy chunks by two ways that take the given times, and counts the ways it goes.
func run(l *learner, chunks int, took [2]int64) (went [2]int) {
	for range chunks {
		w, counts := l.next(chunkBytes)
		if counts {
			l.took(w, chunkBytes, took[w])
		}
		went[w]++
	}
	return went
}

const (
	firstChunks = 2 * firstTrial / chunkBytes
	retryChunks = retryRuns * largeRun / chunkBytes
)

func TestFasterWayIsTaken(t *testing.T) {
	for _, faster := range []way{kept, streamed} {
		took := [2]int64{100_000, 100_000}
		took[faster] = 70_000
		l := &always().large
		run(l, firstChunks, took)
		went := run(l, 10_000, took)
		require.GreaterOrEqual(t, went[faster], 9_900, "faster %d", faster)
		require.NotZero(t, went[1-faster], "the other is tried again")
		took[faster] = 150_000 // the machine has become another
		run(l, 2*retryChunks, took)
		require.GreaterOrEqual(t, run(l, 10_000, took)[1-faster], 9_900, "faster was %d", faster)
	}
}

func TestInterruptedChunkDoesNotChangeTheWay(t *testing.T) {
	l := &always().large
	took := [2]int64{kept: 60_000, streamed: 100_000}
	run(l, firstChunks, took)
	l.took(kept, chunkBytes, 20e6) // a time slice of somebody else
	require.GreaterOrEqual(t, run(l, 1000, took)[kept], 980)
}

// caches is a destination of some buffers that are written over and over. A buffer that memmove wrote last is in the
// caches, one that non-temporal stores wrote is not. Memmove takes 10 and 50 us, the stores 20.
type caches []bool

func (c caches) copy(l *learner, buffer int) way {
	w, counts := l.next(mediumFrom)
	took := int64(20_000)
	switch {
	case w == kept && c[buffer]:
		took = 10_000
	case w == kept:
		took = 50_000
	}
	c[buffer] = w == kept
	if counts {
		l.took(w, mediumFrom, took)
	}
	return w
}

// Buffers that come again stay in the caches. The ways are compared by the ends of long runs: the first memmove behind
// non-temporal stores is slow each time.
func TestBuffersThatComeAgainStayInTheCaches(t *testing.T) {
	const cached = 10 << 20
	l := &newCopier(cached).medium
	c := make(caches, cached/mediumFrom)
	went := [2]int{}
	for i := range 4 * retryRuns * mediumRun * len(c) {
		went[c.copy(l, i%len(c))]++
	}
	require.Less(t, went[streamed], (went[kept]+went[streamed])/50)
}

// A peer that reads soon finds the bytes in the caches, so a little is no reason to pass them by; much is.
func TestMediumTransfersPassTheCachesByForMuchOnly(t *testing.T) {
	for _, c := range []struct {
		took int64
		best way
	}{{90_000, kept}, {60_000, streamed}} {
		l := &newCopier(0).medium
		took := [2]int64{kept: 100_000, streamed: c.took}
		run(l, retryRuns*mediumRun*mediumFrom/chunkBytes, took)
		require.GreaterOrEqual(t, run(l, 1000, took)[c.best], 980, "%d", c.took)
	}
}

// A large cache makes long runs. The faster way is taken long before the first whole one, and the other costs little.
func TestTheFasterWayIsTakenEarly(t *testing.T) {
	for _, faster := range []way{kept, streamed} {
		took := [2]int64{100_000, 100_000}
		took[faster] = 50_000
		l := &newCopier(1 << 30).medium
		for chunks := run(l, firstTrial/chunkBytes, took)[kept]; chunks < 4*retryChunks; chunks *= 2 {
			went := run(l, chunks, took)
			require.LessOrEqual(t, went[1-faster], chunks/trialShare, "faster %d", faster)
		}
	}
}

// The way depends on the whole transfer, not on the piece: small pieces and small transfers stay in the caches.
func TestSizesThatMayPassTheCachesBy(t *testing.T) {
	c := newCopier(8 << 20)
	require.Nil(t, c.learner(streamBytes-1, 1<<30))
	require.Nil(t, c.learner(streamBytes, mediumFrom-1))
	require.Same(t, &c.medium, c.learner(streamBytes, mediumFrom))
	require.Same(t, &c.medium, c.learner(streamBytes, 8<<20-1))
	require.Same(t, &c.large, c.learner(streamBytes, 8<<20))
}
