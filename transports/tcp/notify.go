package tcp

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

const (
	notesMax      = 256              // of one link
	noteLimit     = 30 * time.Second // then a peer with a queue that stays full is given up
	notePauseMin  = time.Millisecond
	notePauseMost = 100 * time.Millisecond
)

// note is a message on its way. Guarded by link.mu.
type note struct {
	message []byte
	done    func(*errs.Error)
	lane    *initiatorLane
	due     clock.Time // of sending it again, Never while the peer has it
	tries   int
	limit   clock.Time
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
	now := clock.Now()
	l.notes[number] = &note{message: append([]byte(nil), message...), done: done, lane: lane, due: clock.Never,
		limit: now.Add(noteLimit)}
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

// notified takes the peer's answer: it has the message, or its queue is full and the message goes again in a while.
func (l *link) notified(number uint64, taken bool) {
	l.mu.Lock()
	n := l.notes[number]
	switch {
	case n == nil || n.due != clock.Never:
		l.mu.Unlock()
		return
	case taken:
		delete(l.notes, number)
	default:
		n.due = clock.Now().Add(min(notePauseMin<<min(n.tries, 10), notePauseMost))
		n.tries++
	}
	l.mu.Unlock()
	n.lane.answeredOne()
	if taken {
		n.done(nil)
	} else {
		l.kick()
	}
}

// answerNotes sends messages again that a full queue refused, and ends those that nobody answers. It returns when it is
// due again.
func (l *link) answerNotes(now clock.Time) clock.Time {
	due := clock.Never
	var failed []func()
	var again []*initiatorLane
	l.mu.Lock()
	for number, n := range l.notes {
		switch {
		case n.lane.isDown() && n.due == clock.Never:
			delete(l.notes, number)
			failed = append(failed, func() { n.done(l.lost("tcp.notify")) })
			continue
		case now >= n.limit:
			delete(l.notes, number)
			if n.due == clock.Never {
				n.lane.answeredOne()
			}
			failed = append(failed, func() {
				n.done(errs.New(errs.Timeout, "tcp.notify", "peer's notification queue stays full").
					WithScope(errs.ScopeSlice, errs.SideRemote))
			})
			continue
		case now >= n.due:
			if n.lane.isDown() {
				n.due = clock.Never
				due = now // ends in the next round
			} else if n.lane.postMessage(number, n.message) {
				n.due = clock.Never
				again = append(again, n.lane)
			} else {
				n.due = now.Add(notePauseMost)
			}
		}
		due = min(due, n.due, n.limit)
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
	for _, lane := range again {
		lane.pump(submitBudget)
	}
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
