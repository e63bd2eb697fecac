package tcp

import (
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// handleAsInitiator handles a frame without payload from the responder.
func (l *lane) handleAsInitiator(w *worker) *errs.Error {
	x := &l.rx
	switch x.head.kind {
	case kindAck:
		return l.acked(w, x.head.seq)
	case kindNack:
		for _, r := range x.table {
			if r.length == verdictApplied {
				return l.protocolError("refusal without a reason")
			}
			l.verdict(w, r.id, r.length)
		}
	case kindConfirm:
		if other := l.link.laneById(x.head.seq); other != nil {
			for _, r := range x.table {
				other.verdict(w, r.id, r.length)
			}
		}
	case kindFenced:
		l.link.fenced(x.head.seq, x.table, w)
	case kindNotified:
		l.link.notified(x.head.seq, x.head.flag != 0)
	case kindPong:
		l.link.ponged(x.head.seq)
	case kindBarrier:
		l.mu.Lock()
		l.out.barrier, l.out.barrierEnd = x.head.seq, l.out.tail
		l.dirty.Store(true)
		l.mu.Unlock()
		l.pump(submitBudget)
	case kindGone:
		for _, r := range x.table {
			l.link.farEndGone(r.id)
		}
	case kindBye:
		l.link.bye.Store(true)
		l.link.kick()
	case kindWelcome:
		return l.protocolError("second welcome")
	}
	return nil
}

// beginData checks a frame of READ payload: only of slices that were asked for, and in order within each.
func (l *lane) beginData() *errs.Error {
	x := &l.rx
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range x.table {
		r := &x.table[i]
		e := l.out.sent(r.id)
		if e == nil || e.op != transport.Read || r.offset != e.got || uint64(r.length) > e.length-e.got {
			return l.protocolError("payload of slice %d, bytes %d+%d, was not asked for", r.id, r.offset, r.length)
		}
		if e.slice != nil && e.slice.Checked && !x.checked() {
			return l.protocolError("payload of slice %d without its checksum", r.id)
		}
		for j := range i { // a frame names each slice once, so that places do not depend on each other
			if x.table[j].id == r.id {
				return l.protocolError("payload of slice %d twice in a frame", r.id)
			}
		}
	}
	return nil
}

// lookData finds the destinations of slices from i on. A withdrawn slice has none: its payload is discarded.
func (l *lane) lookData(i int) {
	x := &l.rx
	l.mu.Lock()
	defer l.mu.Unlock()
	for ; i < len(x.table); i++ {
		r := &x.table[i]
		x.place[i] = 0
		if e := l.out.sent(r.id); e != nil && e.slice != nil {
			x.place[i] = e.slice.Local + uintptr(r.offset)
			if i == x.i {
				x.place[i] += uintptr(x.at)
			}
		}
	}
}

// landedData credits the bytes of the i-th record, and completes its slice with the last of them, or with the first that
// are not what was sent; the rest is discarded then.
func (l *lane) landedData(i int) {
	x := &l.rx
	r := &x.table[i]
	o := &l.out
	differs := x.place[i] != 0 && x.checked() && !x.intact(i)
	l.mu.Lock()
	defer l.mu.Unlock()
	e := o.sent(r.id)
	if e == nil {
		return
	}
	if differs {
		if s := o.finish(e); s != nil {
			x.worker.add(l, s, 0, l.corrupted())
		}
	}
	e.got += uint64(r.length)
	o.readBytes -= uint64(r.length)
	if e.got < e.length {
		return
	}
	if s := o.finish(e); s != nil {
		x.worker.add(l, s, s.Length, nil)
	}
	o.ended(e)
	l.room(x.worker)
}
