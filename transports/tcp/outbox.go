package tcp

import (
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// entry is one slice on an initiator's lane, from acceptance until the peer has no more business with its number.
type entry struct {
	slice  *transport.Slice // nil once it was completed
	length uint64
	got    uint64 // READ: bytes received
	op     transport.Op
	done   bool        // the number can go
	asked  bool        // WRITE: a withdrawal is open
	failed *errs.Error // how it will end: its memory is gone, or its bytes are wrong
}

// outbox holds the slices of an initiator's lane, guarded by its mu. Numbers below head are forgotten, [head, leaving)
// have left, [leaving, next) are in the frame under way, [next, tail) wait.
type outbox struct {
	ring      []entry // a power of two, which doubles up to requests
	requests  int     // the peer's credit, a power of two
	head      uint64
	leaving   uint64
	next      uint64
	tail      uint64
	acked     uint64
	bytes     uint64 // accepted and not completed
	bytesMax  uint64
	readBytes uint64 // asked for and not received
	readMax   uint64
	asked     int    // open withdrawals
	epoch     uint64 // of the last EPOCH frame
	heard     uint64 // the newest epoch of RAISED
	told      uint64 // the newest for which an EPOCH answered
}

func (o *outbox) init(requests int, window, credit uint64) {
	*o = outbox{requests: requests, head: 1, next: 1, tail: 1, bytesMax: window, readMax: credit,
		ring: make([]entry, min(requests, ringMin))}
}

// ringMin is the room of an outbox at first: a lane that never has much to do stays small.
const ringMin = 16

// grow doubles the ring.
func (o *outbox) grow() {
	old := *o
	o.ring = make([]entry, 2*len(old.ring))
	for seq := o.head; seq < o.tail; seq++ {
		*o.at(seq) = *old.at(seq)
	}
}

func (o *outbox) at(seq uint64) *entry { return &o.ring[seq&uint64(len(o.ring)-1)] }
func (o *outbox) idle() bool           { return o.head == o.tail }

// accept takes a slice or reports that there is no room. Something is outstanding in that case, and its end makes room.
func (o *outbox) accept(s *transport.Slice) (seq uint64, ok bool) {
	if o.tail-o.head == uint64(o.requests) || (o.bytes > 0 && o.bytes+s.Length > o.bytesMax) {
		return 0, false
	}
	if s.Op == transport.Read {
		if o.readBytes+s.Length > o.readMax {
			return 0, false
		}
		o.readBytes += s.Length
	}
	if o.tail-o.head == uint64(len(o.ring)) {
		o.grow()
	}
	seq = o.tail
	o.tail++
	o.bytes += s.Length
	*o.at(seq) = entry{slice: s, length: s.Length, op: s.Op}
	return seq, true
}

// retire frees the number of an entry: the peer has no more business with it.
func (o *outbox) retire(e *entry) {
	o.end(e)
	o.forgetDone()
}

func (o *outbox) end(e *entry) {
	e.done = true
	if e.asked {
		e.asked = false
		o.asked--
	}
}

// forgetDone forgets the lowest numbers, as far as they are done.
func (o *outbox) forgetDone() {
	for o.head < o.next && o.at(o.head).done {
		o.head++
	}
}

// detachSlice takes the slice out of an entry for its completion. It returns nil if it had been completed before.
func (o *outbox) detachSlice(e *entry) *transport.Slice {
	s := e.slice
	if s != nil {
		e.slice = nil
		o.bytes -= e.length
	}
	return s
}

// sent returns the entry of a number that is on the wire and not ended, else nil.
func (o *outbox) sent(seq uint64) *entry {
	if seq < o.head || seq >= o.next {
		return nil
	}
	if e := o.at(seq); !e.done {
		return e
	}
	return nil
}

// dropWaiting takes a waiting slice out of the queue. Nothing of it is on the wire, so it can be completed at once.
func (o *outbox) dropWaiting(seq uint64) *transport.Slice {
	e := o.at(seq)
	s := o.detachSlice(e)
	if e.op == transport.Read {
		o.readBytes -= e.length
	}
	e.done = true
	for o.next < o.tail && o.at(o.next).done {
		o.next++
	}
	o.forgetDone()
	return s
}

// acked completes WRITE slices up to seq.
func (l *initiatorLane) acked(w *worker, seq uint64) *errs.Error {
	o := &l.out
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq >= o.next {
		return l.protocolError("acknowledgement of %d, sent up to %d", seq, o.next-1)
	}
	if !l.hasLeft(seq) {
		return l.protocolError("acknowledgement of %d before all of it was sent", seq)
	}
	for s := max(o.acked+1, o.head); s <= seq; s++ {
		e := o.at(s)
		if e.op != transport.Write || e.done {
			continue
		}
		if slice := o.detachSlice(e); slice != nil {
			w.completeAs(slice, e.failed)
		}
		o.end(e)
	}
	o.acked = max(o.acked, seq)
	o.forgetDone()
	l.room(w)
	return nil
}

// hasLeft reports that no byte of a WRITE that was gathered will be read any more: all are in the socket, or in a
// chunk. An honest peer says nothing about one before. Where the answer is not clear at once, it lets mu go, which the
// caller holds, and waits for the system call under way.
func (l *initiatorLane) hasLeft(seq uint64) bool {
	if seq < l.out.leaving {
		return true
	}
	l.mu.Unlock()
	defer l.mu.Lock()
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	x := &l.tx
	k := seq - x.first
	return x.left == 0 || k >= uint64(x.slices) || payload+int(k) < x.i
}

// refused ends a slice that the peer has refused. It ignores numbers that have ended.
func (l *initiatorLane) refused(w *worker, seq uint64, verdict uint32) *errs.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.out.sent(seq); e != nil && e.op == transport.Write && !l.hasLeft(seq) {
		return l.protocolError("refusal of %d before all of it was sent", seq)
	}
	if e := l.out.sent(seq); e != nil { // hasLeft has let mu go
		l.giveVerdict(w, e, verdict)
	}
	return nil
}

// confirmed ends a WRITE by the answer to its withdrawal. Nobody was asked about others, which may still be read, or
// written by the reader of this lane.
func (l *initiatorLane) confirmed(w *worker, seq uint64, verdict uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.out.sent(seq); e != nil && e.asked {
		l.giveVerdict(w, e, verdict)
	}
}

// giveVerdict ends a slice that is on the wire. Holds mu.
func (l *initiatorLane) giveVerdict(w *worker, e *entry, verdict uint32) {
	o := &l.out
	if e.op == transport.Read {
		o.readBytes -= e.length - e.got
		if verdict == verdictApplied { // only its bytes can prove that
			verdict = uint32(errs.Protocol)
		}
	}
	slice := o.detachSlice(e)
	err := l.verdictError(e, verdict)
	o.retire(e)
	if slice != nil {
		w.completeAs(slice, err)
	}
	l.room(w)
}

func (l *initiatorLane) verdictError(e *entry, verdict uint32) *errs.Error {
	if e.failed != nil && e.op == transport.Write {
		return e.failed
	}
	switch verdict {
	case verdictApplied:
		return nil
	case verdictVoid:
		return l.withdrawn()
	case verdictFenced:
		return l.attribute(transport.Fenced("tcp.remote"))
	case uint32(errs.Corrupted):
		return l.corrupted()
	}
	return l.attribute(errs.New(errs.Code(verdict), "tcp.remote", "peer refused the slice: %s", errs.Code(verdict)).
		WithScope(errs.ScopeSlice, errs.SideRemote))
}

func (l *initiatorLane) withdrawn() *errs.Error {
	return l.attribute(errs.New(errs.Withdrawn, "tcp.withdraw", "withdrawn before it was delivered").
		WithScope(errs.ScopeSlice, errs.SideLocal))
}

// room reports to the core, after a completion, that the rail takes slices again, if a Submit was cut short.
func (l *initiatorLane) room(w *worker) {
	if l.set.owes.Load() && l.set.owes.CompareAndSwap(true, false) {
		w.ready(l.set)
	}
}
