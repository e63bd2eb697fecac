package tcp

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

const (
	notesMax  = 256              // of one link
	noteLimit = 30 * time.Second // then a peer that does not answer is given up
)

// note is a message on its way. Guarded by link.mu.
type note struct {
	done  func(*errs.Error)
	lane  *initiatorLane
	limit clock.Time
}

// Notify sends a small message. It reports false, and done is not called, when the message is too large, no rail is up
// or too many are under way.
func (t *Transport) Notify(n transport.Link, message []byte, done func(*errs.Error)) bool {
	l := t.links.Lookup(n)
	if l == nil || len(message) > notifyMax {
		return false
	}
	lane := l.firstLane()
	if lane == nil {
		return false
	}
	l.mu.Lock()
	if len(l.notes) >= notesMax {
		l.mu.Unlock()
		return false
	}
	l.nextNum++
	number := l.nextNum
	l.notes[number] = &note{done: done, lane: lane, limit: clock.Now().Add(noteLimit)}
	l.mu.Unlock()
	if !lane.postMessage(number, message) {
		return l.answered(number)
	}
	lane.pump(submitBudget)
	if lane.isDown() {
		l.kick() // it may have been taken down before it knew of the note
	}
	return true
}

// answered takes back a note that no lane has. It reports whether the note had its answer before: a rail that goes down
// meanwhile ends all notes of its lanes, also those at which Notify is still at work.
func (l *link) answered(number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, open := l.notes[number]
	delete(l.notes, number)
	return !open
}

func (l *link) firstLane() (first *initiatorLane) {
	l.eachLane(func(lane *initiatorLane) {
		if first == nil {
			first = lane
		}
	})
	return first
}

func (l *initiatorLane) postMessage(number uint64, message []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isDown() || len(l.ctl)+headerBytes+len(message) > ctlMax {
		return false
	}
	l.ctl = appendFrame(l.ctl, header{kind: kindNotify, length: uint32(len(message)), seq: number})
	l.ctl = append(l.ctl, message...)
	l.expectLocked()
	return true
}

// expectLocked notes that an answer is due on this lane, so that Poll looks here. Holds mu.
func (l *initiatorLane) expectLocked() {
	l.waits++
	l.expect()
	l.dirty.Store(true)
}

// answeredOne notes that an answer came, or is not awaited any more: a lane that awaits one is busy.
func (l *initiatorLane) answeredOne() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waits--
}

// notified takes the peer's answer: it has the message, or its queue is full. Only the core knows for how long somebody
// waits for each of the notifications in it, and sends it again.
func (l *link) notified(number uint64, taken bool) {
	l.mu.Lock()
	n := l.notes[number]
	delete(l.notes, number)
	l.mu.Unlock()
	if n == nil {
		return
	}
	n.lane.answeredOne()
	if taken {
		n.done(nil)
		return
	}
	n.done(errs.New(errs.TooManyRequests, "tcp.notify", "the peer's notification queue is full").
		WithScope(errs.ScopeSlice, errs.SideRemote))
}

// answerNotes ends the messages and probes that nobody answers. It returns when it is due again.
func (l *link) answerNotes(now clock.Time) clock.Time {
	due := clock.Never
	var failed []func()
	l.mu.Lock()
	for number, n := range l.notes {
		switch {
		case n.lane.isDown():
			delete(l.notes, number)
			failed = append(failed, func() { n.done(l.lost("tcp.notify")) })
		case now >= n.limit:
			delete(l.notes, number)
			n.lane.answeredOne() // a late answer finds no note
			failed = append(failed, func() {
				n.done(errs.New(errs.Timeout, "tcp.notify", "the peer has not answered").
					WithScope(errs.ScopeSlice, errs.SideRemote))
			})
		default:
			due = min(due, n.limit)
		}
	}
	for cookie, p := range l.pings {
		if now >= p.expire || p.lane.isDown() {
			delete(l.pings, cookie)
			p.lane.answeredOne() // a late answer finds no ping
			failed = append(failed, func() { p.done(0, l.lost("tcp.probe")) })
			continue
		}
		due = min(due, p.expire)
	}
	l.mu.Unlock()
	for _, f := range failed {
		f()
	}
	return due
}

func (l *link) lost(op string) *errs.Error {
	return l.attribute(errs.New(errs.Lost, op, "no answer").WithScope(errs.ScopeRail, errs.SidePath))
}

// failNotes ends the messages and probes of a rail's lanes, of every lane for nil.
func (l *link) failNotes(set *laneSet) {
	var failed []func()
	l.mu.Lock()
	for number, n := range l.notes {
		if set == nil || n.lane.set == set {
			delete(l.notes, number)
			failed = append(failed, func() { n.done(l.lost("tcp.notify")) })
		}
	}
	for cookie, p := range l.pings {
		if set == nil || p.lane.set == set {
			delete(l.pings, cookie)
			failed = append(failed, func() { p.done(0, l.lost("tcp.probe")) })
		}
	}
	l.mu.Unlock()
	for _, f := range failed {
		f()
	}
}
