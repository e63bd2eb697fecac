package tcp

import (
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Intervals between questions that got no answer.
const (
	askMin = 20 * time.Millisecond
	askMax = 500 * time.Millisecond // of a link that is needed; see kit.Patience
)

// frame is a question that waits for an answer.
type frame struct {
	header  header
	records []record
}

// openFrames lists the fences and withdrawals without an answer. Holds link.mu.
func (l *link) openFrames() []frame {
	var list []frame
	for id, lane := range l.lanes {
		if lane.life.state() == stateInDoubt {
			list = append(list, frame{header: header{kind: kindFence, seq: id}})
			continue
		}
		lane.mu.Lock()
		var asked []record
		for seq := lane.out.head; lane.out.asked > 0 && seq < lane.out.next; seq++ {
			if lane.out.at(seq).asked {
				asked = append(asked, record{id: seq})
			}
		}
		lane.mu.Unlock()
		for part := range slices.Chunk(asked, recordsMax) {
			list = append(list, frame{header{kind: kindWithdraw, seq: id}, part})
		}
	}
	return list
}

// inDoubt lists the lanes of which only the peer knows which WRITEs have landed.
func (l *link) inDoubt() []*initiatorLane {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*initiatorLane
	for _, lane := range l.lanes {
		if lane.life.state() == stateInDoubt {
			list = append(list, lane)
		}
	}
	return list
}

// resolve repeats the questions that have no answer yet: on every lane, and over the control plane where lanes are
// missing or silent. It returns the time of the next question.
func (l *link) resolve(now clock.Time) clock.Time {
	l.mu.Lock()
	open := l.openFrames()
	l.mu.Unlock()
	switch {
	case len(open) == 0:
		l.askDue, l.askTries = clock.Never, 0
		return clock.Never
	case l.askDue == clock.Never: // a new question was asked when it came
		l.askDue = now.Add(askMin)
	}
	if now < l.askDue {
		return l.askDue
	}
	sent := 0
	for _, f := range open {
		sent += l.broadcast(f.header, f.records...)
	}
	if l.known && !l.calling && (sent == 0 || l.askTries >= 2) {
		l.callPeer(l.question(), l.answerCame)
	}
	pause := min(askMin<<min(l.askTries, 10), askMax)
	if l.state == linkLeaving {
		pause = max(pause, kit.Patience(now.Sub(l.leaveBy)))
	}
	l.askDue = now.Add(pause)
	l.askTries++
	return l.askDue
}

// fenced takes the peer's answer that it has ended a lane: WRITEs that had landed until then are complete, the rest is
// lost.
func (l *link) fenced(id uint64, table []record, w *worker) {
	l.mu.Lock()
	lane := l.lanes[id]
	if lane == nil || lane.life.state() != stateInDoubt {
		l.mu.Unlock()
		return
	}
	lane.life.advance(eventFenced)
	delete(l.lanes, id)
	l.mu.Unlock()
	verdicts := map[uint64]uint32{}
	for _, r := range table[1:] {
		verdicts[r.id] = r.length
	}
	lane.mu.Lock()
	defer lane.mu.Unlock()
	o := &lane.out
	for seq := o.head; seq < o.next; seq++ {
		e := o.at(seq)
		if e.slice == nil || e.op != transport.Write {
			continue
		}
		s := o.detachSlice(e)
		verdict, refused := verdicts[seq]
		switch {
		case e.failed != nil:
			w.complete(s, 0, e.failed)
		case seq > table[0].id && e.asked:
			w.complete(s, 0, lane.withdrawn())
		case seq > table[0].id:
			w.complete(s, 0, lane.cause)
		case refused:
			w.complete(s, 0, lane.verdictError(e, verdict))
		default: // delivered but reported lost: it is not
			w.complete(s, s.Length, nil)
		}
	}
}

// giveUp completes everything that is open with one cause.
func (l *link) giveUp(cause *errs.Error) {
	w := l.t.borrow()
	defer l.t.giveBack(w)
	for _, lane := range l.inDoubt() {
		lane.mu.Lock()
		lane.cause = cause
		lane.mu.Unlock()
		l.fenced(lane.id, []record{{}}, w)
	}
	l.failNotes(nil)
}

// stepLeaving ends a detached link: sockets first, then questions about WRITEs in doubt. They end with an answer, with
// the proof that the peer has ended, or with this transport's Close, which has a second for them. Until then a slice
// may still land, and no time-out says otherwise.
func (l *link) stepLeaving(now clock.Time) (clock.Time, bool) {
	if l.advance(linkDetached) {
		l.leaveBy = now.Add(time.Second)
		cause := l.attribute(errs.New(errs.Withdrawn, "tcp.detach", "link was detached").
			WithScope(errs.ScopeLink, errs.SideLocal))
		l.sayLeave()
		l.allRailsDown(cause, now)
		l.failNotes(nil)
	}
	due, limit := clock.Never, clock.Never
	if l.t.life.Closed() {
		limit = l.leaveBy
	}
	if l.deadBy == nil && !l.bye.Load() && now < limit {
		due = l.resolve(now)
	}
	if due != clock.Never {
		return min(due, limit), false
	}
	l.giveUp(l.attribute(errs.New(errs.PeerUnreachable, "tcp.detach", "peer could not be asked what has landed").
		WithScope(errs.ScopeLink, errs.SidePath)))
	if l.calling {
		return clock.Never, false // its answer kicks us
	}
	for _, r := range *l.rails.Load() {
		if r.dial != nil || r.extra != nil {
			return clock.Never, false
		}
	}
	return clock.Never, true
}
