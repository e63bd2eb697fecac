package tcp

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
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
		if l.mu.TryLock() {
			entered = len(l.notes) > 0 || answers.Load() > 0
			l.mu.Unlock()
		} else { // its holder may wait for the lane
			lane.mu.Unlock()
			runtime.Gosched()
			lane.mu.Lock()
		}
	}
	lane.life.advance(eventBroke)
	lane.cause = errs.New(errs.Lost, "test", "cut").WithScope(errs.ScopeRail, errs.SidePath)
	l.failNotes(lane.set) // as railDown does
	lane.mu.Unlock()
	require.True(t, <-taken, "it was answered, and so was taken")
	require.EqualValues(t, 1, answers.Load())
	lane.wentDown()
}

// Answers come after the limits of their questions. A lane that awaits nothing rests, and an alternate can go.
func TestALateAnswerLeavesNoLaneBusy(t *testing.T) {
	near, far := neighbours(t, 1<<20)
	l := near.tr.(*Transport).links.Lookup(near.link)
	lane := l.firstLane()
	probe := func() *errs.Error { // Probe would dial where lanes look stuck
		done := make(chan *errs.Error, 1)
		l.ping(lane.set, func(_ clock.Time, err *errs.Error) { done <- err })
		return <-done
	}
	thaw := freeze(far.tr.(*Transport), isResponder)
	require.NotNil(t, probe(), "the peer does not answer in time")
	noted := make(chan *errs.Error, 1)
	require.True(t, near.tr.(*Transport).Notify(near.link, []byte("x"), func(err *errs.Error) { noted <- err }))
	l.mu.Lock()
	for _, n := range l.notes {
		n.limit = 0
	}
	l.mu.Unlock()
	l.kick()
	require.Equal(t, errs.Timeout, (<-noted).Code)

	lane.writeMu.Lock() // a ping that finds no room does not leave
	lane.mu.Lock()
	waiting := lane.ctl
	lane.ctl = make([]byte, ctlMax)
	lane.mu.Unlock()
	require.NotNil(t, probe())
	lane.mu.Lock()
	lane.ctl = waiting
	lane.mu.Unlock()
	lane.writeMu.Unlock()

	for thaw(); probe() != nil; { // the late answers come before that to this one
	}
	lane.mu.Lock()
	waits := lane.waits
	lane.mu.Unlock()
	require.Zero(t, waits)
}
