package tcp

import "sync"

// A lane has buffers only while it moves bytes. Its reader takes some when the socket has bytes and gives them back
// where a frame ends, its writer when there is something to send and when all of it has left. So an idle lane costs
// some 2 KiB, and 1,000 idle peers do not cost 1,000 times the 55 KiB of a busy lane. A worker keeps one set of a
// reader's buffers, which it carries from lane to lane.

// readBuffers are those of a receiver.
type readBuffers struct {
	message msghdr
	iov     []iovec
	staging []byte             // staging[r:w] was received and not used
	table   []record           // of the frame under way
	place   []uintptr          // of its slices' next byte; 0: discard
	codes   [recordsMax]uint32 // responder: verdicts of the frame under way; guarded by copyMu
}

var readPool = sync.Pool{New: func() any {
	return &readBuffers{iov: make([]iovec, recordsMax+1), staging: make([]byte, stagingBytes),
		table: make([]record, 0, recordsMax), place: make([]uintptr, recordsMax)}
}}

// chunkReadPool has those of protected lanes, which stage all of their payload.
var chunkReadPool = sync.Pool{New: func() any {
	b := readPool.New().(*readBuffers)
	b.staging = make([]byte, chunkStaging)
	return b
}}

// takeBuffers gives the receiver buffers, those of its worker if it has some.
func (x *receiver) takeBuffers() {
	if x.readBuffers != nil {
		return
	}
	if x.chunks != nil {
		x.readBuffers = chunkReadPool.Get().(*readBuffers)
		return
	}
	if w := x.worker; w != nil && w.buffers != nil {
		x.readBuffers, w.buffers = w.buffers, nil
		return
	}
	x.readBuffers = readPool.Get().(*readBuffers)
}

// giveBack returns the buffers at the end of a frame, if no byte of the next one has come. A lane that has not proved
// itself keeps its own.
func (x *receiver) giveBack() {
	if x.readBuffers == nil || !x.proved || x.stage != wantHeader || x.r < x.w || x.holdsChunk() {
		return
	}
	x.r, x.w = 0, 0
	if k := x.chunks; k != nil {
		k.from, k.to = 0, 0
		chunkReadPool.Put(x.readBuffers)
	} else if w := x.worker; w != nil && w.buffers == nil {
		w.buffers = x.readBuffers
	} else {
		readPool.Put(x.readBuffers)
	}
	x.readBuffers = nil
}

// writeBuffers are those of a transmitter.
type writeBuffers struct {
	message msghdr
	iov     []iovec
	head    []byte // header and records of the payload frame
	tail    []byte // behind the payload of a DATA frame: refusals of slices that lost their bytes, then SERVED
	keys    [recordsMax]uint64
}

var writePool = sync.Pool{New: func() any {
	return &writeBuffers{iov: make([]iovec, recordsMax+payload+1),
		head: make([]byte, 0, headerBytes+recordsMax*recordBytes), tail: make([]byte, 0, headerBytes)}
}}

// ctlKept is the most room for frames without payload that an idle lane keeps.
const ctlKept = 1 << 10

func (x *transmitter) takeBuffers() {
	if x.writeBuffers == nil {
		x.writeBuffers = writePool.Get().(*writeBuffers)
	}
}

// giveBack returns the buffers when nothing is under way.
func (x *transmitter) giveBack() {
	x.chunks.giveBack()
	if x.writeBuffers != nil {
		writePool.Put(x.writeBuffers)
		x.writeBuffers = nil
	}
	if cap(x.ctl) > ctlKept {
		x.ctl = nil
	}
}
