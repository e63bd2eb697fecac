package copying

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// run lets a learner copy chunks by two ways that take the given times, and counts the ways it goes.
func run(l *learner, chunks int, took [2]int64) (went [2]int) {
	for range chunks {
		w := l.next()
		l.took(w, chunkBytes, took[w])
		went[w]++
	}
	return went
}

func TestFasterWayIsTaken(t *testing.T) {
	for _, faster := range []way{kept, streamed} {
		took := [2]int64{100_000, 100_000}
		took[faster] = 70_000
		var l learner
		run(&l, firstTurns, took)
		went := run(&l, 10_000, took)
		require.GreaterOrEqual(t, went[faster], 9_900, "faster %d", faster)
		require.NotZero(t, went[1-faster], "the other is tried again")
		took[faster] = 150_000 // the machine has become another
		run(&l, 2*retryTurns, took)
		require.GreaterOrEqual(t, run(&l, 10_000, took)[1-faster], 9_900, "faster was %d", faster)
	}
}

func TestInterruptedChunkDoesNotChangeTheWay(t *testing.T) {
	var l learner
	took := [2]int64{kept: 60_000, streamed: 100_000}
	run(&l, firstTurns, took)
	l.took(kept, chunkBytes, 20e6) // a time slice of somebody else
	require.GreaterOrEqual(t, run(&l, 1000, took)[kept], 980)
}
