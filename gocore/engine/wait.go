package engine

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/spin"
	"github.com/tent-engine/tent/gocore/transport"
)

// A waiter first polls for its completions itself, for as long as the spinner says. It looks for answers of its batch's
// classes alone: one of HIGH that took LOW's would also send LOW's next slices.
//
// Where a transport has queued copies (Info.Copies), a waiter carries them out one by one, those of other batches too:
// they are in the order of their classes, and its own are among them. It returns as soon as its batch has ended or its
// time is over. While other threads still copy for its batch it stays for spinLast after its last piece.
//
// When it parks, it sleeps on the descriptors of all transports on which such answers are expected, and reads the ready
// ones. A transport without descriptors completes by its own goroutines, and the end of the batch wakes the waiter by
// its signal.

// hint is read by the waiters of a batch, without the engine's mutex.
type hint struct {
	end     atomic.Int64  // clock.Time at which the batch should end
	classes atomic.Uint32 // transport.Classes of its tasks
}

// Wait returns the state of a batch once it has ended, or after timeout. It never fails by time: the state says whether
// the batch has ended. A stale id is Invalid at once.
func (e *Engine) Wait(id dispatch.BatchID, timeout time.Duration) dispatch.State {
	state := e.page.state(id)
	if state.Terminal() {
		return state
	}
	if timeout <= 0 {
		e.Progress()
		return e.page.state(id)
	}
	start := clock.Now()
	end := start.Add(timeout)
	short := e.endsSoon(id, start)
	state, now := e.spin(id, start, start.Add(min(timeout, e.spinner.limit(short))), end)
	e.pollers.armCopies() // before it parks: from now on workers carry out the queued copies
	if state.Terminal() {
		e.pollers.arm()
	} else if state = e.park(id, now, end); short {
		now = clock.Now()
	}
	if short && state.Terminal() {
		e.spinner.learn(now.Sub(start))
	}
	return state
}

// Progress looks once for completions and runs the core, for callers that poll. It returns how much it found.
func (e *Engine) Progress() int {
	found, copied := e.look(transport.AllClasses)
	e.runSteps()
	e.pollers.arm()
	e.pollers.armCopies()
	if found+copied == 0 {
		e.spinner.lookedInVain()
	}
	return found + copied
}

// look polls for completions of some classes and carries out a queued copy. The caller owes Arm to all pollers
// afterwards.
func (e *Engine) look(classes transport.Classes) (found, copied int) {
	found, copied = e.pollers.poll(pollWork, classes), e.pollers.copy(classes)
	return found + e.gates.poll(&e.inbox), copied
}

// predict notes when a batch should end, for tasks from index first on that the core has just taken. The caller holds
// e.mu.
func (e *Engine) predict(id dispatch.BatchID, first int, now clock.Time) {
	at := &e.hints[id.Slot()].end
	end := now.Add(e.core.Predict(id, first, spinMost, now))
	if end < now { // beyond all times
		end = clock.Never
	}
	if int64(end) > at.Load() {
		at.Store(int64(end))
	}
}

// endsSoon reports whether the batch should end within spinMost. One that is late already may end at any moment.
func (e *Engine) endsSoon(id dispatch.BatchID, now clock.Time) bool {
	return clock.Time(e.hints[id.Slot()].end.Load()).Sub(now) <= spinMost
}

// spin polls the transports until the batch has ended, or until passes in which nothing was found, or end has come. It
// returns the latest time that it has read: where it looks only once, that of the start.
func (e *Engine) spin(id dispatch.BatchID, now, until, end clock.Time) (dispatch.State, clock.Time) {
	state, once := e.page.state(id), until <= now
	classes := transport.Classes(e.hints[id.Slot()].classes.Load())
	looks := spin.Looks{Company: &e.spinner.company}
	for !state.Terminal() && !e.pollers.none() {
		found, copied := e.look(classes)
		if found+copied == 0 && once {
			break
		}
		now = clock.Now()
		if found+copied > 0 {
			looks.Found()
			e.runSteps()
		}
		if copied > 0 {
			until, once = max(until, now.Add(spinLast)), false
		}
		state = e.page.state(id)
		if now >= end || (found+copied == 0 && now >= until) {
			break // no Gosched in here: a caller from Python is locked to its thread, which makes yielding cost 70 µs
		}
		if found+copied == 0 && !looks.Vain() && e.spinner.busyPoll == 0 {
			until = now
		}
	}
	return state, now
}

// park sleeps until the batch has ended or until has come. It sleeps in the kernel while answers are expected on
// descriptors of transports, else until the batch's end wakes it. The caller has polled and read the time; all are
// armed on every way out.
func (e *Engine) park(id dispatch.BatchID, now, until clock.Time) dispatch.State {
	e.mu.Lock()
	b, err := e.lookup(id)
	if err != nil || b.ended {
		e.unlockAndDrain()
		e.pollers.arm()
		return e.page.state(id)
	}
	w := e.waiters.get()
	w.classes = b.classes
	b.waiters = append(b.waiters, w)
	e.unlockAndDrain()

	unexpected := e.parkInKernel(id, w, now, until)
	e.pollers.arm()
	if unexpected {
		w.await(max(0, until.Sub(clock.Now())))
	}
	e.releaseWaiter(id, w)
	return e.page.state(id)
}

// parkInKernel returns true when nothing is expected on any descriptor although the batch is pending and there is time
// left.
func (e *Engine) parkInKernel(id dispatch.BatchID, w *waiter, now, until clock.Time) (more bool) {
	if len(e.pollers.parking) == 0 || w.signal == nil {
		return true
	}
	for {
		e.spinner.passScheduler(now)
		w.parked.Store(true) // before the look: from now on the end of the batch writes the signal
		left := until.Sub(now)
		if left <= 0 || e.page.state(id).Terminal() {
			w.parked.Store(false)
			return false
		}
		expected := e.sleep(w, left)
		e.runSteps()
		if ended := e.page.state(id).Terminal(); ended || !expected {
			return !ended
		}
		now = clock.Now()
	}
}

// sleep sleeps once on the descriptors of all parkers and on the waiter's signal, and polls the ready ones. It
// returns false at once when nothing is expected anywhere. The parkers are to be armed again afterwards.
func (e *Engine) sleep(w *waiter, limit time.Duration) (expected bool) {
	w.watches, w.ends = w.watches[:0], w.ends[:0]
	for i, p := range e.pollers.parking {
		begin := len(w.watches)
		w.watches = p.Watch(w.watches, w.classes)
		w.ends = append(w.ends, len(w.watches))
		if r := e.pollers.exclusives[i]; r != nil {
			e.hang(w, r, w.watches[begin:])
		}
	}
	e.pollers.arm()
	if len(w.watches) == 0 {
		w.parked.Store(false)
		return false
	}
	w.sleep(limit)
	w.parked.Store(false) // before it reads: a signal for an end that it finds itself would wake its next sleep
	begin := 0
	for i, p := range e.pollers.parking {
		if end := w.ends[i]; end > begin {
			p.Woken(w.watches[begin:end])
			begin = end
		}
	}
	return true
}

// releaseWaiter takes a waiter out of its batch's list, drains the token that came meanwhile, and gives it back.
func (e *Engine) releaseWaiter(id dispatch.BatchID, w *waiter) {
	e.mu.Lock()
	e.removeWaiter(id, w)
	select {
	case <-w.wake:
	default:
	}
	e.waiters.put(w)
	e.unlockAndDrain()
}

// removeWaiter takes a waiter out of a batch's list. The caller holds e.mu.
func (e *Engine) removeWaiter(id dispatch.BatchID, w *waiter) {
	b, err := e.lookup(id)
	if err != nil {
		return
	}
	if i := slices.Index(b.waiters, w); i >= 0 {
		last := len(b.waiters) - 1
		b.waiters[i], b.waiters[last] = b.waiters[last], nil
		b.waiters = b.waiters[:last]
	}
}

// WaitMany waits until at least need of the batches have ended, or timeout has passed, and returns how many have. A
// stale id counts as ended.
func (e *Engine) WaitMany(ids []dispatch.BatchID, need int, timeout time.Duration) int {
	until := clock.Now().Add(timeout)
	need = min(need, len(ids))
	for {
		ended, pending := 0, dispatch.BatchID(0)
		for _, id := range ids {
			if e.page.state(id).Terminal() {
				ended++
			} else {
				pending = id
			}
		}
		left := until.Sub(clock.Now())
		if ended >= need || left <= 0 {
			return ended
		}
		if need-ended == len(ids)-ended {
			e.Wait(pending, left) // all of them are needed: any order of waiting will do
			continue
		}
		e.parkAny(ids, need, left)
	}
}

// parkAny sleeps until one more of the batches has ended, or returns at once when need of them have.
func (e *Engine) parkAny(ids []dispatch.BatchID, need int, timeout time.Duration) {
	if e.Progress() > 0 {
		return
	}
	ended := 0
	e.mu.Lock()
	w := e.waiters.get()
	for _, id := range ids {
		if b, err := e.lookup(id); err == nil && b.isPending() { // one without tasks counts as ended, as on the page
			b.waiters = append(b.waiters, w)
		} else {
			ended++
		}
	}
	e.unlockAndDrain()
	if ended < need {
		w.await(timeout)
	}
	e.mu.Lock()
	for _, id := range ids {
		e.removeWaiter(id, w)
	}
	e.unlockAndDrain()
	e.releaseWaiter(0, w)
}
