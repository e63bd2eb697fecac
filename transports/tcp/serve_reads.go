package tcp

import (
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/kit"
)

// A more urgent READ, an acknowledgement or a revocation waits for the payload of one DATA frame at most
// (head-of-line blocking). That is a fraction of a millisecond on a network of 10 Gbit/s, and of a copy on our own
// host, where fewer frames cost less.
const (
	dataBytes     = 256 << 10
	dataBytesNear = 1 << 20
)

func (l *responderLane) dataMost() int {
	if l.near {
		return dataBytesNear
	}
	return dataBytes
}

// readJob is a READ slice that a peer has asked for.
type readJob struct {
	seq, key, offset uint64
	length, sent     uint32
	checked          bool
	epoch            uint64
	lost             bool // its memory is gone
	place            kit.Element[readJob]
}

// readQueue holds the READs of a lane by class. Guarded by the lane's mu. Its size is bounded by the peer's credit.
type readQueue struct {
	byClass kit.ClassQueue[readJob]
	free    kit.List[readJob] // used again, so that a READ allocates nothing
	bytes   uint64            // that have not been gathered: a peer counts a READ's bytes one by one, too
}

func (q *readQueue) push(class int, j readJob) {
	job := q.free.PopFront()
	if job == nil {
		job = new(readJob)
	}
	*job = j
	q.byClass.PushBack(class, job, &job.place)
	q.bytes += uint64(j.length)
}

func (q *readQueue) pop(class int, j *readJob) {
	q.byClass.Leave(class, &j.place)
	q.bytes -= uint64(j.length - j.sent)
	q.free.PushFront(j, &j.place)
}

// readsCame queues the READs of a frame, within the peer's credit.
func (l *responderLane) readsCame() *errs.Error {
	x := &l.rx
	sum, ok := sumLengths(x.table, sliceMax)
	if !ok {
		return l.protocolError("READ of an impossible length")
	}
	l.copyMu.Lock()
	defer l.copyMu.Unlock()
	if err := l.countNumbers(x.head.seq, len(x.table)); err != nil {
		return err
	}
	l.in.applied = l.in.began
	l.mu.Lock()
	defer l.mu.Unlock()
	q := &l.reads
	if q.byClass.Len()+len(x.table) > l.t.settings.CreditRequests || q.bytes+sum > l.t.settings.CreditBytes {
		return l.protocolError("READs beyond the credit of %d slices and %d bytes",
			l.t.settings.CreditRequests, l.t.settings.CreditBytes)
	}
	for i, r := range x.table {
		if r.classOrSum >= classCount {
			return l.protocolError("READ of class %d", r.classOrSum)
		}
		job := readJob{seq: x.head.seq + uint64(i), key: r.id, offset: r.offset, length: r.length,
			checked: x.checked(), epoch: l.epoch}
		q.push(int(r.classOrSum), job)
	}
	l.dirty.Store(true)
	return nil
}

// refuse makes a queued READ fail, also in its middle. It reports whether there was one.
func (q *readQueue) refuse(seq uint64) bool {
	for c := range classCount {
		list := q.byClass.List(c)
		for j := list.First(); j != nil; j = list.Next(&j.place) {
			if j.seq == seq {
				j.lost = true
				return true
			}
		}
	}
	return false
}

// gatherData makes one frame of READ payload, of the most urgent class that waits. Holds writeMu and mu.
func (l *responderLane) gatherData(x *transmitter) {
	q := &l.reads
	head, bytes, most := x.head[:headerBytes], 0, l.dataMost()
	for c := q.byClass.Urgent(); c < classCount; c++ {
		for list := q.byClass.List(c); bytes < most && x.slices < recordsMax; {
			j := list.First()
			if j == nil || (bytes > 0 && j.checked != x.checked) {
				break
			}
			addr, verdict := l.place(j.key, j.offset, j.length, j.epoch, false)
			if j.lost {
				verdict = uint32(errs.AddressNotRegistered)
			}
			if verdict != verdictApplied {
				x.ctl = appendFrame(x.ctl, header{kind: kindNack}, l.refusal(j.seq, verdict))
				q.pop(c, j)
				continue
			}
			size := min(int(j.length-j.sent), most-bytes)
			n := len(head)
			head = head[:n+recordBytes]
			record{id: j.seq, offset: uint64(j.sent), length: uint32(size)}.put(head[n:])
			x.checked = j.checked
			x.keys[x.slices] = j.key
			x.slices++
			x.addPayload(addr+uintptr(j.sent), size)
			bytes += size
			q.bytes -= uint64(size)
			if j.sent += uint32(size); j.sent == j.length {
				q.pop(c, j)
			}
		}
		if bytes > 0 { // classes do not share a frame, so that an urgent one is not longer than it must be
			break
		}
	}
	if bytes > 0 {
		h := header{kind: kindData, count: uint16(x.slices), length: uint32(bytes)}
		if x.checked {
			h.flag = flagChecked
		}
		x.setHead(h, head)
		x.addTail()
	}
}

// quietenRegion copies the region's bytes that have not left of the frame under way. Holds writeMu.
func (c *conn) quietenRegion(key uint64) {
	for k := range c.tx.slices {
		if c.tx.keys[k] == key {
			c.quieten(k)
		}
	}
}
