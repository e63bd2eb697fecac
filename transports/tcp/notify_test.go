package tcp

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

// The lane breaks after Notify has entered the message and before the lane has it. The rail's end answers it then, so
// Notify must not refuse it as well: the core would send it twice, and free it twice.
func TestANotificationWhoseLaneBreaksMeanwhileHasOneAnswer(t *testing.T) {
	near, _ := neighbours(t, 1<<20)
	l := near.tr.(*Transport).links.Lookup(near.link)
	lane := l.firstLane()
	var answers atomic.Int32
	taken := make(chan bool)
	lane.mu.Lock() // Notify waits for it
	go func() {
		taken <- near.tr.(*Transport).Notify(near.link, []byte("x"), func(*errs.Error) { answers.Add(1) })
	}()
	for entered := false; !entered; runtime.Gosched() {
		l.mu.Lock()
		entered = len(l.notes) > 0
		l.mu.Unlock()
	}
	lane.life.advance(eventBroke)
	lane.cause = errs.New(errs.Lost, "test", "cut").WithScope(errs.ScopeRail, errs.SidePath)
	l.failNotes(lane.set) // as railDown does
	lane.mu.Unlock()
	require.True(t, <-taken, "it was answered, and so was taken")
	require.EqualValues(t, 1, answers.Load())
	lane.wentDown()
}
