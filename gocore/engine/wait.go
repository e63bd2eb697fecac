package engine

import (
	"runtime"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/spin"
	"github.com/tent-engine/tent/gocore/transport"
)

// A waiter first polls for its completions itself: waking a sleeping thread costs 10 to 80 µs, a small transfer less
// than that. It spins only while that pays: when the core predicts the end soon, on more than one core, and only about
// as long as such waits have lasted lately. Where they last longer, because the cores are busy or the network is far,
// it parks at once, and one wait in spinTry tries again. So it does where other threads want its processor, see spin.
// With the setting busy_poll_us each wait spins for that long before it parks, those without a near end too.
//
// Where a transport has queued copies (Info.Copies), a waiter carries them out one by one, those of other batches too:
// they are in the order of their classes, and its own are among them. It returns as soon as its batch has ended or its
// time is over. While other threads still copy for its batch it stays for spinLast after its last piece.
//
// A waiter looks for answers of its batch's classes alone: one of HIGH that took LOW's would also send LOW's next
// slices. When it parks, it sleeps on the descriptors of all transports on which such answers are expected, and reads
// the ready ones. A transport without descriptors completes by its own goroutines, and the end of the batch wakes the
// waiter by its signal.
const (
	spinMost = 100 * time.Microsecond
	spinLast = 50 * time.Microsecond
	spinTry  = 32
	pollWork = 64 // sockets or queues in one look
	pollCopy = 1  // queued copies in one look, each of some 10 to 50 µs
)

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
	state, now := e.spin(id, start, start.Add(min(timeout, e.spinLimit(short))), end)
	arm(e.copiers) // before it parks: from now on workers carry out the queued copies
	if state.Terminal() {
		arm(e.pollers)
	} else if state = e.park(id, now, end); short {
		now = clock.Now()
	}
	if short && state.Terminal() {
		e.learn(now.Sub(start))
	}
	return state
}

// Progress looks once for completions and runs the core, for callers that poll. It returns how much it found.
func (e *Engine) Progress() int {
	found, copied := e.look(transport.AllClasses)
	e.runSteps()
	e.armAll()
	if found+copied == 0 && e.vain.Add(1)%spin.OfferEvery == 0 && !e.company.Sleeps() {
		e.company.Offer()
	}
	return found + copied
}

// look polls for completions of some classes and carries out a queued copy. The caller owes Arm to all pollers
// afterwards.
func (e *Engine) look(classes transport.Classes) (found, copied int) {
	for _, p := range e.pollers {
		found += p.Poll(pollWork, classes)
	}
	for _, p := range e.copiers {
		copied += p.Poll(pollCopy, classes)
	}
	return found + e.gates.poll(&e.inbox), copied
}

// predict notes when a batch should end, for tasks from index first on that the core has just taken. The caller holds
// e.mu.
func (e *Engine) predict(id dispatch.BatchID, first int, now clock.Time) {
	at := &e.predicted[id.Slot()]
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
	return clock.Time(e.predicted[id.Slot()].Load()).Sub(now) <= spinMost
}

// spinLimit returns the time that a wait may spin; short is one for a batch that should end soon.
func (e *Engine) spinLimit(short bool) time.Duration {
	if e.cores < 2 {
		return 0
	}
	usual := time.Duration(e.usualWait.Load())
	if !short || usual > spinMost && e.waits.Add(1)%spinTry != 0 || e.company.Sleeps() {
		return e.busyPoll
	}
	return max(spinMost, e.busyPoll)
}

// spin polls the transports until the batch has ended, or until passes in which nothing was found, or end has come. It
// returns the latest time that it has read: where it looks only once, that of the start.
func (e *Engine) spin(id dispatch.BatchID, now, until, end clock.Time) (dispatch.State, clock.Time) {
	state, once := e.page.state(id), until <= now
	classes := transport.Classes(e.classes[id.Slot()].Load())
	looks := spin.Looks{Company: &e.company}
	for !state.Terminal() && len(e.pollers)+len(e.copiers) > 0 {
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
		if found+copied == 0 && !looks.Vain() && e.busyPoll == 0 {
			until = now
		}
	}
	return state, now
}

// learn keeps the usual length of short waits, as an EWMA (exponentially weighted moving average) with weight 1/8.
func (e *Engine) learn(took time.Duration) {
	usual := e.usualWait.Load()
	e.usualWait.Store(usual + (min(int64(took), int64(8*spinMost))-usual)/8)
}

// park sleeps until the batch has ended or until has come. It sleeps in the kernel while answers are expected on
// descriptors of transports, else until the batch's end wakes it. The caller has polled and read the time; all are
// armed on every way out.
func (e *Engine) park(id dispatch.BatchID, now, until clock.Time) dispatch.State {
	e.mu.Lock()
	b, err := e.lookup(id)
	if err != nil || b.ended {
		e.unlockAndDrain()
		arm(e.pollers)
		return e.page.state(id)
	}
	w := e.newWaiter()
	w.classes = b.classes
	b.waiters = append(b.waiters, w)
	e.unlockAndDrain()

	unexpected := e.parkInKernel(id, w, now, until)
	arm(e.pollers)
	if unexpected {
		w.await(max(0, until.Sub(clock.Now())))
	}
	e.releaseWaiter(id, w)
	return e.page.state(id)
}

// parkInKernel returns true when nothing is expected on any descriptor although the batch is pending and there is time
// left.
func (e *Engine) parkInKernel(id dispatch.BatchID, w *waiter, now, until clock.Time) (more bool) {
	if len(e.parkers) == 0 || w.signal == nil {
		return true
	}
	for {
		e.passScheduler(now)
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

// passEvery is the time after which a thread that waits passes Go's scheduler. Go's monitor preempts a thread that has
// not done so for twice as long (forcePreemptNS).
const passEvery = 5 * time.Millisecond

// passScheduler makes the calling goroutine pass Go's scheduler now and then, where the process has one processor. One
// that makes nothing but system calls never does. The runtime's monitor then takes its P away in the next call, and
// keeps looking every 20 µs. With a second processor nobody pays for these looks, and yielding costs a caller from
// Python 70 µs.
func (e *Engine) passScheduler(now clock.Time) {
	if last := e.passed.Load(); e.cores < 2 && now.Sub(clock.Time(last)) >= passEvery &&
		e.passed.CompareAndSwap(last, int64(now)) {
		runtime.Gosched()
	}
}

// sleep sleeps once on the descriptors of all parkers and on the waiter's signal, and polls the ready ones. It
// returns false at once when nothing is expected anywhere. The parkers are to be armed again afterwards.
func (e *Engine) sleep(w *waiter, limit time.Duration) (expected bool) {
	w.watches, w.ends = w.watches[:0], w.ends[:0]
	for i, p := range e.parkers {
		begin := len(w.watches)
		w.watches = p.Watch(w.watches, w.classes)
		w.ends = append(w.ends, len(w.watches))
		if r := e.exclusives[i]; r != nil {
			e.hang(w, r, w.watches[begin:])
		}
	}
	arm(e.pollers)
	if len(w.watches) == 0 {
		w.parked.Store(false)
		return false
	}
	w.sleep(limit)
	w.parked.Store(false) // before it reads: a signal for an end that it finds itself would wake its next sleep
	begin := 0
	for i, p := range e.parkers {
		if end := w.ends[i]; end > begin {
			p.Woken(w.watches[begin:end])
			begin = end
		}
	}
	return true
}

func (e *Engine) armAll() {
	arm(e.pollers)
	arm(e.copiers)
}

func arm(list []transport.Poller) {
	for _, p := range list {
		p.Arm()
	}
}

// releaseWaiter takes a waiter out of its batch's list, drains the token that came meanwhile, and gives it back.
func (e *Engine) releaseWaiter(id dispatch.BatchID, w *waiter) {
	e.mu.Lock()
	e.removeWaiter(id, w)
	select {
	case <-w.wake:
	default:
	}
	e.putWaiter(w)
	e.unlockAndDrain()
}

// removeWaiter takes a waiter out of a batch's list. The caller holds e.mu.
func (e *Engine) removeWaiter(id dispatch.BatchID, w *waiter) {
	b, err := e.lookup(id)
	if err != nil {
		return
	}
	for i := range b.waiters {
		if b.waiters[i] == w {
			last := len(b.waiters) - 1
			b.waiters[i], b.waiters[last] = b.waiters[last], nil
			b.waiters = b.waiters[:last]
			return
		}
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
	w := e.newWaiter()
	for _, id := range ids {
		if b, err := e.lookup(id); err == nil && !b.ended {
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

// closedError is the error of every call after Close began.
func closedError() *errs.Error {
	return errs.New(errs.EngineClosed, "engine", "the engine is closed")
}
