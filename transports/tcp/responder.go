package tcp

import (
	"slices"

	"github.com/tent-engine/tent/gocore/errs"
)

// inbox is what a responder knows of a lane's stream. Guarded by copyMu.
type inbox struct {
	verdicts
	window uint64 // numbers a peer may have outstanding
	began  uint64 // highest number seen
	voids  []uint64
	bars   map[uint64]uint64 // regions closed to what was sent before a barrier: key to barrier
	codes  [recordsMax]uint32
	fenced bool

	overflow bool // a refusal found no room: nothing may be acknowledged any more
}

// verdicts is what late questions about a lane need.
type verdicts struct {
	applied uint64   // every number up to it has landed, was refused, or was a READ
	refused []record // numbers within the window that did not land, and why
}

// forever is a barrier that is never passed.
const forever = 1<<64 - 1

// bar refuses a region's slices until a barrier is passed.
func (b *inbox) bar(key, barrier uint64) {
	if b.bars == nil {
		b.bars = map[uint64]uint64{}
	}
	b.bars[key] = max(b.bars[key], barrier)
}

// refuse remembers that a number did not land, for as long as the initiator may ask about it.
func (b *inbox) refuse(seq uint64, verdict uint32) {
	old := 0
	for old < len(b.refused) && b.refused[old].id+b.window <= seq {
		old++
	}
	b.refused = append(slices.Delete(b.refused, 0, old), record{id: seq, length: verdict})
}

// of says what became of a number of a lane that takes nothing more.
func (v *verdicts) of(seq uint64) uint32 {
	if seq > v.applied {
		return verdictVoid
	}
	for i := range v.refused {
		if v.refused[i].id == seq {
			return v.refused[i].length
		}
	}
	return verdictApplied
}

// list is the answer to a fence: the highest number that landed, then the exceptions below it.
func (v *verdicts) list() []record {
	applied, exceptions := v.applied, v.refused
	if len(exceptions) > recordsMax-1 { // say less than we know rather than something wrong
		exceptions = exceptions[:recordsMax-1]
		applied = exceptions[len(exceptions)-1].id
	}
	return append([]record{{id: applied}}, exceptions...)
}

// advance checks the numbers of a frame that begins.
func (l *lane) advance(first uint64, count int) *errs.Error {
	last := first + uint64(count) - 1
	if first <= l.in.began || last < first || last-l.in.began > 1<<40 {
		return l.protocolError("numbers %d to %d after %d", first, last, l.in.began)
	}
	l.in.began = last
	return nil
}

func (l *lane) beginWrite() *errs.Error { return l.advance(l.rx.head.seq, len(l.rx.table)) }

// lookWrite finds the destinations of slices from i on; codes say why one has none.
func (l *lane) lookWrite(i int) {
	x := &l.rx
	for ; i < len(x.table); i++ {
		r := &x.table[i]
		if i == x.i && x.at > 0 && x.place[i] == 0 {
			continue // it was refused in its middle, and stays so
		}
		addr, code := l.t.regions.locate(r.id, r.offset, r.length, true, l.own)
		verdict := uint32(code)
		if len(l.in.bars) > 0 && l.in.bars[r.id] != 0 {
			verdict = uint32(errs.AddressNotRegistered)
		}
		if len(l.in.voids) > 0 && slices.Contains(l.in.voids, x.head.seq+uint64(i)) {
			verdict = verdictVoid
		}
		l.in.codes[i], x.place[i] = verdict, addr
		if verdict != 0 {
			x.place[i] = 0
		} else if i == x.i {
			x.place[i] += uintptr(x.at)
		}
	}
}

// landedWrite ends the i-th slice: it has landed, or its payload has gone by.
func (l *lane) landedWrite(i int) {
	seq := l.rx.head.seq + uint64(i)
	l.in.applied = seq
	verdict := l.in.codes[i]
	if verdict == 0 && l.rx.checked() && !l.rx.intact(i) {
		verdict = uint32(errs.Corrupted)
	}
	if verdict == 0 {
		return
	}
	l.in.refuse(seq, verdict)
	if k := slices.Index(l.in.voids, seq); k >= 0 {
		l.in.voids = slices.Delete(l.in.voids, k, k+1)
	}
	l.in.overflow = !l.post(header{kind: kindNack}, record{id: seq, length: verdict}) || l.in.overflow
}

// ackBytes is how much a long burst may bring before it is acknowledged in its middle, so that windows move.
const ackBytes = 256 << 10

// answer sends what the last bytes call for: an acknowledgement when the burst is over or long, READ payload, verdicts.
func (l *lane) answer(drained bool) {
	x := &l.rx
	if l.serving && x.unacked > 0 && (drained || x.unacked >= ackBytes) {
		l.copyMu.Lock()
		applied, overflow := l.in.applied, l.in.overflow
		l.copyMu.Unlock()
		if overflow {
			l.broke(l.protocolError("refusals pile up: peer does not read"))
			return
		}
		l.mu.Lock()
		if applied > l.ackSeq && !l.closed {
			l.ackSeq, l.ackDue = applied, true
			l.dirty.Store(true)
		}
		l.mu.Unlock()
		x.unacked = 0
	}
	if l.dirty.Load() && !l.wantOut.Load() {
		l.pump(l.turn())
	}
}

// handleAsResponder handles a frame without payload from the initiator.
func (l *lane) handleAsResponder() *errs.Error {
	x := &l.rx
	switch x.head.kind {
	case kindRead:
		return l.readsCame()
	case kindWithdraw:
		l.attachment.Load().withdraw(x.head.seq, x.table, func(h header, r []record) { l.answerOrEnd(h, r...) })
	case kindFence:
		l.attachment.Load().fence(x.head.seq, func(h header, r []record) { l.answerOrEnd(h, r...) })
	case kindPing:
		l.answerOrEnd(header{kind: kindPong, seq: x.head.seq})
	case kindLeave:
		l.attachment.Load().leave()
	case kindPassed:
		l.copyMu.Lock()
		for key, barrier := range l.in.bars {
			if barrier <= x.head.seq {
				delete(l.in.bars, key)
			}
		}
		l.copyMu.Unlock()
	}
	return nil
}

// answerOrEnd posts an answer; a peer that lets them pile up is cut off.
func (l *lane) answerOrEnd(h header, records ...record) {
	if !l.post(h, records...) && !l.isClosed() {
		l.broke(l.protocolError("answers pile up: peer does not read"))
	}
}

// judge marks numbers void that have not landed and tells which had. It waits for a piece under way, because of copyMu,
// and for nothing else.
func (l *lane) judge(asked []record) []record {
	l.copyMu.Lock()
	defer l.copyMu.Unlock()
	answer := make([]record, 0, len(asked))
	for _, r := range asked {
		verdict := uint32(verdictVoid)
		if r.id <= l.in.applied {
			verdict = l.in.of(r.id)
		} else if !slices.Contains(l.in.voids, r.id) && uint64(len(l.in.voids)) < l.in.window {
			l.in.voids = append(l.in.voids, r.id)
			l.changed = true
		} else if uint64(len(l.in.voids)) >= l.in.window {
			continue // more than can be outstanding: no answer
		}
		answer = append(answer, record{id: r.id, length: verdict})
	}
	return answer
}

// fence ends a lane's copying for good and tells what landed.
func (l *lane) fence() []record {
	l.copyMu.Lock()
	l.in.fenced = true
	answer := l.in.list()
	l.copyMu.Unlock()
	l.broke(errs.New(errs.StaleGeneration, "tcp.fence", "peer has given this lane up").WithScope(errs.ScopeRail, errs.SideRemote))
	return answer
}
