package engine

import (
	"context"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
)

// The goroutine that has work for the core runs the step itself.
//
//	push to inbox -> TryLock(engine.mu) -> step -> unlock -> drain outboxes, write eventfd, start notifications
//	                  |                              |
//	                  held: the holder reads the     read the inbox again, at most stepsMax times,
//	                  inbox again after unlocking    then wake the progress goroutine
//
// Nothing is stranded: a push happens before the TryLock that fails, the holder's second look after its unlock.

// stepsMax bounds the steps that one caller runs for others before the progress goroutine takes over.
const stepsMax = 8

// deferredWork collects the work of a step that must wait until the mutex is released.
type deferredWork struct {
	boxes   [16]*outbox // with new orders; all is set when there were more
	n       int
	all     bool
	ring    bool // the completion ring has grown: write the eventfd
	notes   bool // a notification can be sent
	syncs   []syncOrder
	rearm   bool // the progress goroutine must adopt a nearer deadline
	asks    []question
	stale   []uint32           // peers to ask for their descriptions
	retired []dispatch.Retired // keys to forget
	astray  []dispatch.Astray  // tasks to be given other regions
	logged  bool
	events  bool // followers must be woken
}

// empty looks at every field: most holders of the mutex leave no work behind.
func (d *deferredWork) empty() bool {
	return d.n == 0 && !d.all && !d.ring && !d.notes && len(d.syncs) == 0 && !d.rearm && len(d.asks) == 0 &&
		len(d.stale)+len(d.retired)+len(d.astray) == 0 && !d.logged && !d.events
}

// runSteps runs steps while the inbox has something and the mutex is free. The caller holds no lock.
func (e *Engine) runSteps() {
	for range stepsMax {
		if !e.stepDue() || !e.mu.TryLock() {
			return
		}
		e.step()
		e.unlock()
	}
	if e.stepDue() {
		e.wakeProgress()
	}
}

// notice leaves a notice for the core, and runs a step. The caller holds no lock.
func (e *Engine) notice(n notice) {
	e.inbox.notice(n)
	e.runSteps()
}

// stepDue reports whether a step would find work at once.
func (e *Engine) stepDue() bool { return e.inbox.filled.Load() || e.again.Load() }

// step feeds the inbox to the core and queues the effects that the core returns. The caller holds e.mu.
func (e *Engine) step() { e.stepAt(clock.Now()) }

// stepAt is step for a caller that has read the time under e.mu.
func (e *Engine) stepAt(now clock.Time) {
	defer endOnPanic()
	if e.inbox.filled.Load() {
		e.inbox.swap(&e.taken)
		e.core.Refuse(e.taken.refused, now)
		e.core.WithdrawalSent(e.taken.asked)
		e.complete(now)
		for i := range e.taken.notices {
			e.deliver(&e.taken.notices[i], now)
		}
		if len(e.taken.fences) > 0 {
			e.core.Fenced(e.taken.fences, now)
			clear(e.taken.fences)
		}
		clear(e.taken.completions)
		clear(e.taken.refused)
		clear(e.taken.asked)
		clear(e.taken.notices)
	}
	effects := e.core.Step(now)
	for i := range effects.Submit {
		e.post(orderSubmit, &effects.Submit[i])
	}
	for i := range effects.Withdraw {
		e.post(orderWithdraw, &effects.Withdraw[i])
	}
	for i := range effects.Fence {
		e.post(orderFence, &effects.Fence[i])
	}
	if len(effects.Stale)+len(effects.Retired)+len(effects.Astray) > 0 {
		e.keepStale(effects)
	}
	if len(effects.AskLiveness)+len(effects.Probe) > 0 {
		e.keepQuestions(effects)
	}
	for _, b := range effects.Changed {
		e.mirror(b, now)
	}
	for _, b := range effects.Ended {
		e.mirror(b, now)
	}
	if len(effects.Deserted) > 0 {
		e.gates.desert(effects.Deserted)
	}
	for i := range effects.Events {
		e.record(&effects.Events[i])
	}
	if len(e.links.leaving) > 0 {
		e.links.forget(e.core)
	}
	if len(e.tails.lingering) > 0 {
		e.letGo()
	}
	e.lateTails(now)
	next := e.core.Deadline()
	if again := next <= now; again != e.again.Load() {
		e.again.Store(again) // the core has more to cut: the caller sends these slices first, then runs another step
	}
	if next = min(next, e.tails.limit()); next > now {
		e.rearm(next)
	}
}

// rearm makes the progress goroutine run a step at a time, or before. The caller holds e.mu.
func (e *Engine) rearm(at clock.Time) {
	if at < e.armed {
		e.armed, e.deferred.rearm = at, true
	}
}

// complete hands the completions that were taken to the core, those of each transport together. The caller holds e.mu.
func (e *Engine) complete(now clock.Time) {
	list := e.taken.completions
	for _, o := range e.taken.origins {
		e.core.Complete(o.transport, list[:o.n], now)
		list = list[o.n:]
	}
}

// deliver hands a notice to the core. The caller holds e.mu.
func (e *Engine) deliver(n *notice, now clock.Time) {
	switch n.kind {
	case noticeReady:
		e.core.Ready(n.link, n.rail)
	case noticeProgress:
		e.core.Progress(n.link, n.rail, now)
	case noticeRailUp:
		e.core.RailUp(n.link, n.info, now)
		if port := e.links.port(n.link); port != nil && port.matcher != nil { // keys may work there
			e.planEpoch.Add(1)
		}
	case noticeRailDown:
		e.core.RailDown(n.link, n.rail, n.cause, now)
	case noticeLinkDown:
		e.core.DropLink(n.link, n.cause, now)
	case noticeHeard:
		e.core.Liveness(dispatch.Question{Transport: n.transport, Link: n.link, Rail: n.rail}, n.signs, now)
	case noticeAnswered:
		e.core.Answered(n.peer, now)
	case noticeProbed:
		e.core.Probed(n.link, n.rail, n.at, n.cause, now)
	case noticeRefreshed:
		e.core.Refreshed(n.peer, now)
	case noticePeerGone:
		e.core.PeerGone(n.peer, n.cause, now)
	case noticeGate:
		e.core.OpenGate(n.gate, n.cause, now)
	case noticeNotified:
		e.notified(n.batch, n.cause, now)
	case noticeSynced:
		e.synced(n.batch, n.ticket, n.cause, now)
	}
}

// post moves a posting into the outbox of its rail. The caller holds e.mu.
func (e *Engine) post(kind orderKind, p *dispatch.Posting) {
	o := e.links.outbox(p.Link, p.Rail.Index)
	o.add(kind, p.Rail, p.Slices)
	for i := 0; i < e.deferred.n; i++ {
		if e.deferred.boxes[i] == o {
			return
		}
	}
	if e.deferred.n == len(e.deferred.boxes) {
		e.deferred.all = true
		return
	}
	e.deferred.boxes[e.deferred.n] = o
	e.deferred.n++
}

// unlock releases e.mu and carries out the deferred work of the steps that ran under it.
func (e *Engine) unlock() {
	if e.deferred.empty() {
		e.mu.Unlock()
		return
	}
	work := e.deferred
	e.deferred = deferredWork{}
	var every []*outbox
	if work.all {
		every = e.links.everyOutbox()
	}
	e.mu.Unlock()

	for i := 0; i < work.n; i++ {
		work.boxes[i].drain()
	}
	for _, o := range every {
		o.drain()
	}
	if len(work.asks) > 0 {
		e.ask(work.asks)
	}
	if len(work.stale)+len(work.retired) > 0 {
		e.renewStale(work.stale, work.retired)
	}
	if len(work.astray) > 0 {
		e.seek(work.astray)
	}
	if work.ring || work.logged {
		e.signal.raise()
	}
	for _, order := range work.syncs {
		order.carryOut(e, 0, false)
	}
	if work.events {
		e.history.wake()
	}
	if work.notes {
		e.notifier.pump()
	}
	if work.rearm {
		e.wakeProgress()
	}
}

// unlockAndDrain releases e.mu, then processes the inbox. A goroutine that failed in TryLock meanwhile relies on this
// second look, so holders release the mutex by this call. The only others are runSteps and peer.attachTo.
func (e *Engine) unlockAndDrain() {
	e.unlock()
	e.runSteps()
}

// wakeProgress wakes the progress goroutine.
func (e *Engine) wakeProgress() { wake(e.progressWake) }

// progress is the fallback: it keeps deadlines and takes over steps that callers left. It sleeps while there is no
// work, so an idle engine uses no CPU.
func (e *Engine) progress(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		e.mu.Lock()
		e.step()
		e.armed = min(e.core.Deadline(), e.tails.limit())
		wait := time.Hour
		if e.armed != clock.Never {
			wait = max(0, e.armed.Sub(clock.Now()))
		}
		e.deferred.rearm = false
		e.unlockAndDrain()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-e.progressWake:
		case <-timer.C:
		}
	}
}
