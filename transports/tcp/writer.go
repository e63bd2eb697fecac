package tcp

import (
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Budgets of one turn at a lane's write side, in bytes.
const (
	submitBudget = 256 << 10 // a submitter carries out this much itself
	workerBudget = 1 << 20   // then a worker looks at other lanes
)

// transmitter is what is being written: a vector of ready frames, of which some may have left. Guarded by writeMu.
type transmitter struct {
	message msghdr
	iov     []iovec
	i, n    int // iov[i:n] has not wholly left
	left    int // bytes in it
	ctl     []byte
	head    []byte // header and records of the payload frame

	// iov[0] is ctl, iov[1] head, iov[payload+k] the frame's k-th slice: number first+k (WRITE), region keys[k] (DATA).
	slices  int
	checked bool // its records need checksums
	first   uint64
	keys    [recordsMax]uint64
	copies  [][]byte // payload that was copied because its memory had to become quiet
}

const payload = 2

func (x *transmitter) init() {
	x.iov = make([]iovec, recordsMax+payload)
	x.ctl = make([]byte, 0, 512)
	x.head = make([]byte, 0, headerBytes+recordsMax*recordBytes)
}

func (x *transmitter) reset() {
	x.i, x.n, x.left, x.slices, x.checked = 0, payload, 0, 0, false
	x.iov[0], x.iov[1] = iovec{}, iovec{}
	x.copies = nil
}

func (x *transmitter) add(addr uintptr, n int) {
	x.iov[x.n] = iovec{addr, uint64(n)}
	x.n++
	x.left += n
}

func (x *transmitter) put(i int, b []byte) {
	x.iov[i] = iovec{addressOf(b), uint64(len(b))}
	x.left += len(b)
}

func (x *transmitter) advance(n int) {
	x.left -= n
	for n > 0 {
		v := &x.iov[x.i]
		if uint64(n) < v.size {
			v.base += uintptr(n)
			v.size -= uint64(n)
			return
		}
		n -= int(v.size)
		x.i++
	}
}

// quieten copies what has not left of the frame's k-th slice, so that its memory is not read any more.
func (x *transmitter) quieten(k int) {
	i := payload + k
	if x.left == 0 || i < x.i || i >= x.n {
		return
	}
	v := &x.iov[i]
	own := append([]byte(nil), mem.Bytes(v.base, int(v.size))...)
	x.copies = append(x.copies, own)
	v.base = addressOf(own)
}

// pump writes what is due, as far as socket and budget allow. Any goroutine; it never waits: who finds another one
// writing leaves, because the writer looks again after it has let go.
func (l *lane) pump(budget int) {
	for l.dirty.Load() && l.writeMu.TryLock() {
		blocked, errno := l.write(budget)
		l.writeMu.Unlock()
		if errno != 0 {
			l.broke(l.socketError("tcp.send", errno))
			return
		}
		if blocked {
			l.arm()
			return
		}
	}
}

// write returns blocked when there is more to write that an EPOLLOUT or a Poll must go on with. Holds writeMu.
func (l *lane) write(budget int) (blocked bool, errno unix.Errno) {
	x := &l.tx
	for l.fd >= 0 {
		l.dirty.Store(false) // before looking, so that what is added from now on is seen by pump
		if x.left == 0 && !l.form() {
			l.wantOut.Store(false)
			return false, 0
		}
		if budget <= 0 { // asked only when there is more: an EPOLLOUT for nothing wakes a worker for nothing
			return l.unfinished(), 0
		}
		for x.left > 0 {
			n, errno := sendVector(l.fd, &x.message, x.iov[x.i:x.n], x.left)
			switch {
			case errno == unix.EINTR:
				continue
			case errno == unix.EAGAIN:
				return l.unfinished(), 0
			case errno != 0:
				return false, errno
			}
			x.advance(n)
			if budget -= n; budget <= 0 && x.left > 0 {
				return l.unfinished(), 0
			}
		}
	}
	l.dirty.Store(false)
	return false, 0
}

func (l *lane) unfinished() bool {
	l.dirty.Store(true)
	l.wantOut.Store(true)
	return true
}

// form makes the next vector: what goes ahead, then at most one frame of payload. It reports false if nothing is due.
func (l *lane) form() bool {
	x := &l.tx
	x.reset()
	l.fill(x)
	if x.checked {
		x.seal()
	}
	return x.left > 0
}

// fill takes what is due out of the lane's queues. Holds writeMu.
func (l *lane) fill(x *transmitter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if !l.serving && l.out.barrier != 0 && l.out.next >= l.out.barrierEnd {
		l.ctl = appendFrame(l.ctl, header{kind: kindPassed, seq: l.out.barrier})
		l.out.barrier = 0
	}
	if l.ackDue {
		l.ctl = appendFrame(l.ctl, header{kind: kindAck, seq: l.ackSeq})
		l.ackDue = false
	}
	l.ctl, x.ctl = x.ctl[:0], l.ctl
	if l.serving {
		l.formData(x) // may refuse a READ, which adds to x.ctl
	} else {
		l.formSlices(x)
	}
	if len(x.ctl) > 0 {
		x.put(0, x.ctl)
	}
}

// formSlices takes a run of waiting slices of one operation, all with a checksum or all without.
func (l *lane) formSlices(x *transmitter) {
	o := &l.out
	if o.next == o.tail {
		return
	}
	end := o.tail
	if o.barrier != 0 {
		end = min(end, o.barrierEnd)
	}
	op, first, bytes := o.at(o.next).op, o.next, uint64(0)
	checked := o.at(first).slice.Checked
	head := x.head[:headerBytes]
	x.first = first
	for o.next < end && int(o.next-first) < recordsMax {
		e := o.at(o.next)
		if e.done || e.op != op || e.slice.Checked != checked || (bytes > 0 && bytes+e.length > frameBytes && op == transport.Write) {
			break
		}
		s := e.slice
		n := len(head)
		head = head[:n+recordBytes]
		record{uint64(s.RemoteKey), s.Remote, uint32(s.Length), uint32(s.Class)}.put(head[n:])
		bytes += e.length
		if op == transport.Write {
			x.add(s.Local, int(s.Length))
		}
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

func (x *transmitter) setHead(h header, head []byte) {
	h.put(head)
	x.head = head
	x.put(1, head)
}
