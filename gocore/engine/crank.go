package engine

import (
	"context"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/plan"
)

// This file is the crank: whoever has work turns it.
//
//	push to inbox -> TryLock(engine.mu) -> step -> unlock -> drain outboxes, write eventfd, start notifications
//	                  |                              |
//	                  held: its holder looks         look at the inbox again, at most turns times,
//	                  again after unlocking          then wake the progress goroutine
//
// Nothing is stranded: a push happens before the TryLock that fails, the holder's second look after its unlock.

// turns bounds how long a caller carries on for others before the progress goroutine takes over.
const turns = 8

// afterwards is what a step leaves to be done once the mutex is released.
type afterwards struct {
	boxes  [16]*outbox // that have new orders; all says that there were more
	n      int
	all    bool
	ring   bool // the completion ring has grown: write the eventfd
	notes  bool // a notification can be sent
	syncs  []syncOrder
	rearm  bool // the progress goroutine must look at a nearer deadline
	asks   []question
	logged bool
	events bool // followers are to be woken
}

// nothing looks at every field: most holders of the mutex leave nothing behind.
func (a *afterwards) nothing() bool {
	return a.n == 0 && !a.all && !a.ring && !a.notes && len(a.syncs) == 0 && !a.rearm && len(a.asks) == 0 && !a.logged &&
		!a.events
}

// turn runs steps while the inbox has something and nobody else is at it. The caller holds no lock.
func (e *Engine) turn() {
	for range turns {
		if !e.due() || !e.mu.TryLock() {
			return
		}
		e.step()
		e.unlock()
	}
	if e.due() {
		e.poke()
	}
}

// due reports whether a step would have something to do at once.
func (e *Engine) due() bool { return e.inbox.filled.Load() || e.again.Load() }

// step feeds the inbox to the core and takes over what the core wants done. The caller holds e.mu.
func (e *Engine) step() {
	now := clock.Now()
	if e.inbox.filled.Load() {
		e.inbox.swap(&e.taken)
		e.core.Refuse(e.taken.refused, now)
		e.core.Asked(e.taken.asked)
		e.core.Complete(e.taken.completions, now)
		for i := range e.taken.notices {
			e.hear(&e.taken.notices[i], now)
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
	if len(effects.Doubt)+len(effects.Probe) > 0 {
		e.keepQuestions(effects)
	}
	for _, b := range effects.Changed {
		e.mirror(b, now)
	}
	for _, b := range effects.Ended {
		e.mirror(b, now)
	}
	for i := range effects.Events {
		e.record(&effects.Events[i])
	}
	if len(e.leaving) > 0 {
		e.forgetLinks()
	}
	if len(e.lingering) > 0 {
		e.letGo()
	}
	if e.syncing.limit <= now {
		e.lateSyncs(now)
	}
	next := e.core.Deadline()
	if again := next <= now; again != e.again.Load() {
		e.again.Store(again) // the core has more to cut; whoever runs this step goes on after it has sent what there is
	}
	next = min(next, e.syncing.limit)
	if next < e.armed && next > now {
		e.armed = next
		e.after.rearm = true
	}
}

// hear tells the core of a rare event. The caller holds e.mu.
func (e *Engine) hear(n *notice, now clock.Time) {
	switch n.kind {
	case noticeReady:
		e.core.Ready(n.link, n.rail)
	case noticeProgress:
		e.core.Progress(n.link, n.rail, now)
	case noticeRailUp:
		e.core.RailUp(n.link, n.info, now)
	case noticeRailDown:
		e.core.RailDown(n.link, n.rail, n.cause, now)
	case noticeLinkDown:
		e.core.DropLink(n.link, n.cause, now)
	case noticeHeard:
		e.core.Heard(dispatch.Question{Transport: n.transport, Link: n.link, Rail: n.rail}, n.at, n.held, now)
	case noticeProbed:
		e.core.Probed(n.link, n.rail, n.at, n.cause, now)
	case noticePeerGone:
		e.core.PeerGone(n.peer, n.cause, now)
	case noticeNotified:
		e.notified(n.batch, n.cause, now)
	case noticeSynced:
		e.synced(n.batch, n.ticket, n.cause, now)
	}
}

// post moves a posting into the outbox of its rail. The caller holds e.mu.
func (e *Engine) post(kind orderKind, p *dispatch.Posting) {
	o := e.outbox(p.Link, p.Rail.Index)
	o.add(kind, p.Rail, p.Slices)
	for i := 0; i < e.after.n; i++ {
		if e.after.boxes[i] == o {
			return
		}
	}
	if e.after.n == len(e.after.boxes) {
		e.after.all = true
		return
	}
	e.after.boxes[e.after.n] = o
	e.after.n++
}

// unlock releases e.mu and carries out what steps have left behind.
func (e *Engine) unlock() {
	if e.after.nothing() {
		e.mu.Unlock()
		return
	}
	after := e.after
	e.after = afterwards{}
	var every []*outbox
	if after.all {
		every = e.everyOutbox()
	}
	e.mu.Unlock()

	for i := 0; i < after.n; i++ {
		after.boxes[i].drain()
	}
	for _, o := range every {
		o.drain()
	}
	if len(after.asks) > 0 {
		e.ask(after.asks)
	}
	if after.ring || after.logged {
		e.signal.raise()
	}
	for _, order := range after.syncs {
		order.carryOut(e, 0, false)
	}
	if after.events {
		e.history.wake()
	}
	if after.notes {
		e.notifier.pump()
	}
	if after.rearm {
		e.poke()
	}
}

// let releases e.mu for whoever is not turning the crank anyway. Every holder owes the second look: who failed to get the
// mutex meanwhile relies on it.
func (e *Engine) let() {
	e.unlock()
	e.turn()
}

func (e *Engine) everyOutbox() (all []*outbox) {
	for i := range e.links {
		for _, o := range e.links[i].outboxes {
			if o != nil {
				all = append(all, o)
			}
		}
	}
	return all
}

// outbox returns the outbox of a rail, made at first use. The caller holds e.mu.
func (e *Engine) outbox(link plan.LinkID, rail uint16) *outbox {
	m := &e.links[link.Slot()]
	for int(rail) >= len(m.outboxes) {
		m.outboxes = append(m.outboxes, nil)
	}
	if m.outboxes[rail] == nil {
		m.outboxes[rail] = &outbox{engine: e, link: link, port: m.port}
	}
	return m.outboxes[rail]
}

// poke wakes the progress goroutine.
func (e *Engine) poke() {
	select {
	case e.poked <- struct{}{}:
	default:
	}
}

// progress is the fallback that keeps deadlines and picks up what callers left. It sleeps while there is nothing: an idle
// engine uses no CPU.
func (e *Engine) progress(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		e.mu.Lock()
		e.step()
		e.armed = min(e.core.Deadline(), e.syncing.limit)
		wait := time.Hour
		if e.armed != clock.Never {
			wait = max(0, e.armed.Sub(clock.Now()))
		}
		e.after.rearm = false
		e.unlock()
		e.turn()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-e.poked:
		case <-timer.C:
		}
	}
}

// record keeps an event for Engine.Events and turns it into a log line. The caller holds e.mu.
func (e *Engine) record(ev *event.Event) {
	if ev.Time == 0 {
		ev.Time = clock.Now()
	}
	e.history.push(*ev)
	e.after.events = true
	if e.logs.event(ev) {
		e.after.logged = true
	}
}
