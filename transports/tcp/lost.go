package tcp

import (
	"hash/crc32"
	"runtime/debug"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Registered memory can be gone: unmapped by its user, or of a file that was cut short. That ends the slice that needs
// it, with AddressNotRegistered and the side of the memory, and nothing else. The frame on the lane goes on, because
// the other end counts its bytes:
//
//	a place is gone     the rest of the slice's payload is discarded; a responder refuses the slice
//	a source is gone    zeros are sent for the missing bytes. The initiator knows which of its WRITEs it spoiled; a
//	                    responder refuses the READ before SERVED, which ends each DATA frame
//
// Memory of users is touched here, under mem.Guard, and by the kernel, which answers EFAULT.

// checksum returns the CRC-32C of n bytes at an address, or the fault that kept it from them.
func checksum(base uintptr, n uint64) (sum uint32, fault *mem.Fault) {
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	return crc32.Checksum(mem.Bytes(base, int(n)), castagnoli), nil
}

// load copies len(to) bytes from an address. After a fault the rest of to is as it was.
func load(to []byte, from uintptr) (fault *mem.Fault) {
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	copy(to, mem.Bytes(from, len(to)))
	return nil
}

// quieten copies the unsent bytes of the frame's k-th slice, so that its memory is not read any more. Holds writeMu.
func (c *conn) quieten(k int) {
	x := &c.tx
	i := payload + k
	if x.left == 0 || i < x.i || k >= x.slices {
		return
	}
	v := &x.iov[i]
	own := make([]byte, v.size)
	fault := load(own, v.base)
	x.copies = append(x.copies, own)
	v.base = mem.AddressOf(own)
	if fault != nil {
		c.lane.sourceGone(k)
	}
}

// quietenAll is quieten for the whole frame, because the kernel could not read some of it. Holds writeMu.
func (c *conn) quietenAll() {
	for k := range c.tx.slices {
		c.quieten(k)
	}
	c.tx.copied = true
}

// placeGone ends the slice under way, because its place is gone: the rest of its payload is discarded. Holds copyMu.
func (c *conn) placeGone() {
	x := &c.rx
	x.place[x.i] = 0
	x.alone = false
	c.lane.placeGone(x.i)
}

// sourceGone ends a WRITE in advance. If its header has not left, the record names no region any more, so that nothing
// of the slice lands.
func (l *initiatorLane) sourceGone(k int) {
	x := &l.tx
	if x.headWaits() {
		b := x.head[headerBytes+k*recordBytes:]
		r := getRecord(b)
		r.id = 0
		r.put(b)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.out.sent(x.first + uint64(k)); e != nil {
		e.failed = l.memoryGone()
	}
}

// placeGone ends a READ at once: nothing of it lands any more.
func (l *initiatorLane) placeGone(i int) {
	x := &l.rx
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.out.sent(x.table[i].id); e != nil {
		l.endRead(e, l.memoryGone())
	}
}

// memoryGone is the error of a slice that lost its memory at our end.
func (l *initiatorLane) memoryGone() *errs.Error {
	return l.attribute(errs.MemoryGone("tcp", errs.SideLocal))
}

// sourceGone refuses a READ behind the frame's payload and before its SERVED. A rest of it that waits in the queue is
// refused when its turn comes.
func (l *responderLane) sourceGone(k int) {
	x := &l.tx
	seq := getRecord(x.head[headerBytes+k*recordBytes:]).id
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reads.refuse(seq) {
		return
	}
	x.n--
	x.left -= len(x.tail)
	x.tail = appendFrame(x.tail[:len(x.tail)-headerBytes], header{kind: kindNack},
		record{id: seq, length: uint32(errs.AddressNotRegistered)})
	x.addTail()
}

// placeGone refuses a WRITE when its payload has been discarded.
func (l *responderLane) placeGone(i int) { l.rx.codes[i] = uint32(errs.AddressNotRegistered) }
