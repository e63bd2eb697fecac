package engine

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// noteLimits has the notifications that batches wait for, the one with the nearest limit first. A transport or the
// control plane may try for longer: the batch ends at the limit, and a later answer is ignored.
type noteLimits struct {
	waiting schedule[*note]
	next    clock.Time // no limit is before it. It stays when its note is taken: most are, and a timer costs more
}

// expect begins the wait for the notification of a batch that has all its bytes. The caller holds e.mu.
func (e *Engine) expect(t *note) {
	t.queued = true
	e.notifier.queue(t)
	e.limitNote(t)
	e.deferred.notes = true
}

// limitNote puts a notification into the place of its limit. The caller holds e.mu.
func (e *Engine) limitNote(t *note) {
	e.tails.notes.waiting.set(t)
	e.tails.notes.next = min(e.tails.notes.next, t.limit)
	e.rearm(e.tails.notes.next)
}

// expects reports whether the end of a batch waits for its notification.
func (b *batch) expects() bool {
	return b.note != nil && b.note.queued && !b.note.taken && b.failure == nil
}

// lateNotes ends the batches that have waited for their notification until its limit. The caller holds e.mu.
func (e *Engine) lateNotes(now clock.Time) {
	l := &e.tails.notes
	for len(l.waiting) > 0 && l.waiting[0].limit <= now {
		t := l.waiting[0]
		l.waiting.remove(t)
		if b, err := e.lookup(t.batch); err == nil && b.note == t && b.expects() && !e.awaitAnswer(t, now) {
			_, why := e.notifier.forgo(t)
			b.failure = t.untaken(notTaken(t.peer, why))
			e.mirror(b.id, now)
		}
	}
	if l.next = clock.Never; len(l.waiting) > 0 {
		l.next = l.waiting[0].limit
	}
}

// notTaken is the error of a notification that was late; why is the error of its last try, nil if there is none.
func notTaken(p *peer, why *errs.Error) *errs.Error {
	text := "the peer did not confirm the notification in time"
	if why != nil {
		text += ": " + why.Cause
	}
	return errs.New(errs.Timeout, "notify", "%s", text).OfPeer(p.identity.Address).
		WithHint("the peer may not read its notifications: its notification_queue is full then")
}

// awaitAnswer gives the peer the fence bound, once, to say whether it has taken a notification: one that is under way
// cannot be had back. It returns false where there is nothing to wait for. The caller holds e.mu.
func (e *Engine) awaitAnswer(t *note, now clock.Time) bool {
	if t.closing || !e.notifier.await(t, now.Add(e.answerBound(t.peer))) {
		return false
	}
	e.limitNote(t)
	return true
}

// answerBound is how long a peer has to answer a notification that is under way when its time is over.
func (e *Engine) answerBound(p *peer) time.Duration {
	if p.isHere() || p.sameHost() {
		return e.config.Engine.FenceTimeoutHost
	}
	return e.config.Engine.FenceTimeoutNetwork
}

// cancelNote asks that a batch ends without its notification, and reports whether it waits for one. The caller holds
// e.mu.
func (e *Engine) cancelNote(b *batch) bool {
	if b.note != nil && !b.note.queued {
		b.note.canceled = true // also where its tasks complete, because the cancel came too late for them
	}
	if b.ended || !b.expects() {
		return false
	}
	t, now := b.note, clock.Now()
	if t.closing {
		return true
	}
	if e.awaitAnswer(t, now) {
		t.canceled = true
		return true
	}
	_, _ = e.notifier.forgo(t) // it was not sent
	b.failure = unsent()
	e.mirror(b.id, now)
	return true
}

// unsent is the error of a batch that was canceled, and has all its bytes nevertheless.
func unsent() *errs.Error {
	return errs.New(errs.Canceled, "notify", "the transfer was canceled before its notification was sent")
}

// untaken is the error of a batch with a notification that was not taken, for a cause.
func (t *note) untaken(cause *errs.Error) *errs.Error {
	if !t.canceled {
		return cause
	}
	return errs.New(errs.Canceled, "notify",
		"the transfer was canceled when its notification was under way, and the peer has not confirmed it: it may "+
			"take it")
}

func (t *note) due() clock.Time { return t.limit }
func (t *note) seat() *int      { return &t.place }
