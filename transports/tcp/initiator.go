package tcp

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// initiatorLane is the end of a connection on the side that attached. It numbers slices, sends them, and completes them
// when the peer has acknowledged them or has sent their bytes.
type initiatorLane struct {
	conn
	link *link
	set  *laneSet

	// Guarded by mu.
	out   outbox
	waits int // answers expected besides the outbox's

	busy atomic.Bool // an answer is expected, Poll looks here
	bulk atomic.Bool // so much is outstanding that workers help the waiter
	deaf atomic.Bool // epoll does not look at its read side because a waiter does; Poll looks here

	rests atomic.Bool // epoll does not look at it because nothing is due; the next write arms it, or the sweep
	asked atomic.Bool // a question of the link went this way: the lane does not rest before an answer comes this way

	// Waiters look at it, see attend.go; place and gone are guarded by the list's mutex.
	attended atomic.Bool
	calm     atomic.Uint32 // turns without anything due
	place    int
	gone     bool

	// Guarded by readMu.
	served []uint64 // READs of the DATA frame under way that its SERVED completes

	// Guarded by armMu.
	sleepers int // waiters that sleep on the socket and read it themselves
}

// newInitiatorLane makes a lane of a socket after its handshake.
func (s *laneSet) newInitiatorLane(fd int, id uint64, group int, out *chunkWriter, in *chunkReader) *initiatorLane {
	l := &initiatorLane{link: s.rail.link, set: s}
	l.id, l.group = id, uint8(group)
	t := s.rail.link.t
	l.out.init(s.rail.link.requests(), t.settings.WindowBytes, min(s.rail.link.offer.bytes, t.settings.CreditBytes))
	l.init(t, fd, l, stateDialled, &initiatorMoves)
	l.mayBuffer(out, in)
	return l
}

func (l *initiatorLane) peerName() string { return l.link.peer.Address }
func (l *initiatorLane) railName() string { return l.set.rail.name() }
func (l *initiatorLane) overLease() bool  { return false }
func (l *initiatorLane) acknowledge(bool) {}
func (l *initiatorLane) wentDown()        { l.link.kick() }

func (l *initiatorLane) checkHeader(h header) error { return h.check(false, 0) }

// wrote wakes a lane that rests: an answer may be due on it now. Arming it behind the write costs the transfer nothing,
// because the peer is at work.
func (l *initiatorLane) wrote() {
	if l.rests.Load() && !l.polled() {
		l.arm()
	}
}

// polled reports that a waiter looks at the lanes of the lane's group itself.
func (l *initiatorLane) polled() bool { return l.t.polling[l.group].Load() }

// reduceInterest leaves the lane to a waiter that polls it, and its read side to one that sleeps on it.
func (l *initiatorLane) reduceInterest(events uint32) uint32 {
	if l.polled() && !l.bulk.Load() && !l.rests.Load() {
		if l.attend(); l.polled() {
			return 0
		}
	}
	if l.sleepers > 0 {
		events &^= unix.EPOLLIN | unix.EPOLLRDHUP
		l.attend() // the sleeper arms it again
	}
	if events != 0 {
		l.deaf.Store(false)
		l.rests.Store(false)
	}
	return events
}

// disarm keeps workers asleep while a waiter polls the lane. A waiter that has left meanwhile may not have met the lane
// in its Arm, so the lane stays armed then.
func (l *initiatorLane) disarm() {
	l.armMu.Lock()
	defer l.armMu.Unlock()
	if l.interest == 0 || l.fd < 0 {
		return
	}
	if l.attend(); l.polled() {
		l.deaf.Store(true)
		l.setInterest(0)
	}
}

// watched reports that a worker serves the lane and arms it afterwards, or that epoll will wake one for all that is
// due.
func (l *initiatorLane) watched() bool {
	l.armMu.Lock()
	defer l.armMu.Unlock()
	due := uint32(unix.EPOLLIN)
	if l.wantOut.Load() {
		due |= unix.EPOLLOUT
	}
	return l.held || l.interest&due == due
}

// handle takes a frame without payload from the responder.
func (l *initiatorLane) handle() *errs.Error {
	x := &l.rx
	w := x.worker
	switch x.head.kind {
	case kindAck:
		return l.acked(w, x.head.seq)
	case kindNack:
		for _, r := range x.table {
			if r.length == verdictApplied {
				return l.protocolError("refusal without a reason")
			}
			if err := l.refused(w, r.id, r.length); err != nil {
				return err
			}
			if r.length == verdictFenced {
				l.raised(r.offset, 0)
			}
		}
	case kindConfirm:
		l.asked.Store(false)
		if other := l.link.laneById(x.head.seq); other != nil {
			for _, r := range x.table {
				other.confirmed(w, r.id, r.length)
			}
		}
	case kindFenced:
		l.asked.Store(false)
		l.link.fenced(x.head.seq, x.table, w)
	case kindServed:
		l.servedCame(w)
	case kindNotified:
		l.link.notified(x.head.seq, x.head.flag != 0)
	case kindPong:
		l.link.ponged(x.head.seq)
	case kindRaised:
		key := uint64(0)
		if len(x.table) > 0 {
			key = x.table[0].id
		}
		l.raised(x.head.seq, key)
	case kindGone:
		for _, r := range x.table {
			l.link.farEndGone(r.id)
		}
	case kindBye:
		if x.head.flag == byeKeptOut {
			l.link.keptOut.Store(true)
		}
		l.link.bye.Store(true)
		l.link.kick()
	}
	return nil
}

// beginPayload checks a frame of READ payload: it names only slices that were asked for, and each in order.
func (l *initiatorLane) beginPayload() *errs.Error {
	x := &l.rx
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.served) > 0 {
		return l.protocolError("payload before the last was said to be whole")
	}
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

// locate finds the destinations of slices from i on. A withdrawn slice has none: its payload is discarded.
func (l *initiatorLane) locate(i int) {
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

// landed credits the bytes of the i-th record. The last of a slice, and the first that are not as they were sent, end
// it with the frame's SERVED.
func (l *initiatorLane) landed(i int) {
	x := &l.rx
	r := &x.table[i]
	code := errs.OK
	if x.place[i] != 0 && x.checked() {
		code = x.verify(i)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.out.sent(r.id)
	if e == nil {
		return
	}
	switch code {
	case errs.AddressNotRegistered:
		l.endRead(e, l.memoryGone())
	case errs.Corrupted:
		e.failed = l.corrupted()
	}
	e.got += uint64(r.length)
	l.out.readBytes -= uint64(r.length)
	if e.got == e.length || e.failed != nil {
		l.served = append(l.served, r.id)
	}
}

// servedCame completes the READs of a DATA frame: the responder has read all of their bytes where they were. It refused
// the others before.
func (l *initiatorLane) servedCame(w *worker) {
	o := &l.out
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, seq := range l.served {
		e := o.sent(seq)
		if e == nil {
			continue
		}
		l.endRead(e, e.failed)
		if e.got == e.length {
			o.retire(e)
		}
	}
	l.served = l.served[:0]
	l.room(w)
}

// endRead completes a READ that has not ended; the rest of its payload is discarded. Holds mu.
func (l *initiatorLane) endRead(e *entry, err *errs.Error) {
	if s := l.out.detachSlice(e); s != nil {
		l.rx.worker.completeAs(s, err)
	}
}

// raised hears of an epoch, and of the region that was fenced in it, 0 for none. The core ends its tasks before the
// peer has the answer; that is how a fence waits for them.
func (l *initiatorLane) raised(epoch, key uint64) {
	l.mu.Lock()
	known := epoch <= l.out.heard
	l.mu.Unlock()
	if known && key == 0 {
		return
	}
	l.t.sink.Fenced(l.link.number, transport.RemoteKey(key), transport.Epoch(epoch))
	l.mu.Lock()
	l.out.heard = max(l.out.heard, epoch)
	l.dirty.Store(true)
	l.mu.Unlock()
	l.pump(submitBudget)
}

// gather answers for an epoch that was raised, then takes waiting slices.
func (l *initiatorLane) gather(x *transmitter) {
	o := &l.out
	o.leaving = o.next
	if o.heard > o.told {
		o.told = o.heard
		l.inEpoch(o.heard)
	}
	if o.next < o.tail {
		l.inEpoch(uint64(o.at(o.next).slice.Epoch))
	}
	l.ctl, x.ctl = x.ctl[:0], l.ctl
	l.gatherSlices(x)
}

// inEpoch announces the epoch of the slices that follow, if it is another one. Holds mu.
func (l *initiatorLane) inEpoch(epoch uint64) {
	if epoch != l.out.epoch {
		l.out.epoch = epoch
		l.ctl = appendFrame(l.ctl, header{kind: kindEpoch, seq: epoch})
	}
}

// gatherSlices takes a run of waiting slices of one operation and of the announced epoch, all with a checksum or all
// without.
func (l *initiatorLane) gatherSlices(x *transmitter) {
	o := &l.out
	if o.next == o.tail {
		return
	}
	op, first, bytes := o.at(o.next).op, o.next, uint64(0)
	checked := o.at(first).slice.Checked
	head := x.head[:headerBytes]
	x.first = first
	for o.next < o.tail && int(o.next-first) < recordsMax {
		e := o.at(o.next)
		full := bytes > 0 && bytes+e.length > frameBytes && op == transport.Write
		if e.done || e.op != op || e.slice.Checked != checked || uint64(e.slice.Epoch) != o.epoch || full {
			break
		}
		s := e.slice
		r := record{id: uint64(s.RemoteKey), offset: s.Remote, length: uint32(s.Length)}
		if op == transport.Write {
			x.addPayload(s.Local, int(s.Length))
		} else {
			r.classOrSum = uint32(kit.ClassOf(s.Class))
		}
		n := len(head)
		head = head[:n+recordBytes]
		r.put(head[n:])
		bytes += e.length
		o.next++
	}
	x.slices = int(o.next - first)
	h := header{kind: kindRead, count: uint16(x.slices), seq: first}
	if op == transport.Write {
		h.kind, h.length = kindWrite, uint32(bytes)
		x.checked = checked
	}
	if checked {
		h.flag = flagChecked
	}
	for o.next < o.tail && o.at(o.next).done {
		o.next++
	}
	x.setHead(h, head)
}
