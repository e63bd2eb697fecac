package tcp

import (
	"github.com/tent-engine/tent/gocore/errs"
)

// A more urgent READ, an acknowledgement or a revocation waits for the payload of one DATA frame at most (head-of-line
// blocking): a fraction of a millisecond on a network of 10 Gbit/s, and of a copy on our own host, where fewer frames
// cost less.
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
	refused          errs.Code // a revocation came between
}

// readQueue holds the READs of a lane by class. Guarded by lane.mu. Its size is bounded by the peer's credit.
type readQueue struct {
	byClass [classCount]fifo
	count   int
	bytes   uint64
}

// fifo is a queue in a slice that is used again.
type fifo struct {
	jobs []readJob
	head int
}

func (f *fifo) push(j readJob) {
	if f.head > 0 && f.head == len(f.jobs) {
		f.jobs, f.head = f.jobs[:0], 0
	} else if f.head > 64 && f.head > len(f.jobs)/2 {
		f.jobs, f.head = f.jobs[:copy(f.jobs, f.jobs[f.head:])], 0
	}
	f.jobs = append(f.jobs, j)
}

func (f *fifo) front() *readJob {
	if f.head == len(f.jobs) {
		return nil
	}
	return &f.jobs[f.head]
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
	if q.count+len(x.table) > l.t.settings.CreditRequests || q.bytes+sum > l.t.settings.CreditBytes {
		return l.protocolError("READs beyond the credit of %d slices and %d bytes",
			l.t.settings.CreditRequests, l.t.settings.CreditBytes)
	}
	for i, r := range x.table {
		if r.classOrSum >= classCount {
			return l.protocolError("READ of class %d", r.classOrSum)
		}
		job := readJob{seq: x.head.seq + uint64(i), key: r.id, offset: r.offset, length: r.length,
			checked: x.checked()}
		if len(l.in.bars) > 0 && l.in.bars[r.id] != 0 {
			job.refused = errs.AddressNotRegistered
		}
		q.byClass[r.classOrSum].push(job)
	}
	q.count += len(x.table)
	q.bytes += sum
	l.dirty.Store(true)
	return nil
}

// refuse makes the queued READs of a region fail, those in their middle too.
func (q *readQueue) refuse(key uint64) {
	for c := range q.byClass {
		f := &q.byClass[c]
		for i := f.head; i < len(f.jobs); i++ {
			if f.jobs[i].key == key {
				f.jobs[i].refused = errs.AddressNotRegistered
			}
		}
	}
}

// gatherData makes one frame of READ payload, of the most urgent class that waits. Holds writeMu and mu.
func (l *responderLane) gatherData(x *transmitter) {
	q := &l.reads
	if q.count == 0 {
		return
	}
	head, bytes, most := x.head[:headerBytes], 0, l.dataMost()
	for c := range q.byClass {
		for f := &q.byClass[c]; bytes < most && x.slices < recordsMax; {
			j := f.front()
			if j == nil || (bytes > 0 && j.checked != x.checked) {
				break
			}
			addr, code := l.t.regions.locate(j.key, j.offset, j.length, false, l.own)
			if j.refused != errs.OK {
				code = j.refused
			}
			if code != errs.OK {
				x.ctl = appendFrame(x.ctl, header{kind: kindNack}, record{id: j.seq, length: uint32(code)})
				q.pop(f, j)
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
			if j.sent += uint32(size); j.sent == j.length {
				q.pop(f, j)
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
	}
}

func (q *readQueue) pop(f *fifo, j *readJob) {
	q.count--
	q.bytes -= uint64(j.length)
	f.head++
}

// quietenRegion copies the region's bytes that have not left of the frame under way. Holds writeMu.
func (x *transmitter) quietenRegion(key uint64) {
	for k := range x.slices {
		if x.keys[k] == key {
			x.quieten(k)
		}
	}
}
