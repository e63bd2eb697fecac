package tcp

import (
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

const (
	stagingBytes = 32 << 10  // most that is copied twice; the rest goes straight to its place
	tailBytes    = 4 << 10   // of staging offered behind a large piece, for the head of the next frame
	pieceBytes   = 512 << 10 // most that one call receives: a fence waits for it
	wakeBytes    = 64 << 10  // of payload, for which a reader is woken; the kernel's largest packet
)

// stage is the part of a frame that the receiver expects next.
type stage uint8

const (
	wantHeader  stage = iota
	wantTable         // records
	wantPayload       // bytes of the slices of the table
	wantMessage       // bytes of a message that is kept
)

// receiver takes frames out of a lane's stream. Guarded by readMu.
type receiver struct {
	*readBuffers // nil between frames, see buffers.go
	r, w         int

	stage  stage
	proved bool // it may have all buffers
	head   header
	i      int        // slice under way
	at     uint32     // bytes of it received
	wakeAt int        // bytes from which on the kernel reports the socket (SO_RCVLOWAT)
	alone  bool       // receive it by itself: the kernel could not write to all of several places
	worker *worker    // of the goroutine that drains now: takes the completions
	body   []byte     // of a message
	last   clock.Time // when the socket was last looked at
	spins  spinRecord
	chunks *chunkReader // nil: the lane is not protected
}

// init gives a receiver the room for a handshake.
func (x *receiver) init() {
	x.readBuffers = &readBuffers{staging: make([]byte, 2*helloSize)}
	x.last, x.wakeAt = clock.Now(), 1
}

// mayBuffer lets it take all buffers from now on. It keeps the bytes that have come, which on a protected lane are
// those of chunks.
func (x *receiver) mayBuffer(chunks *chunkReader) {
	rest := x.staging[x.r:x.w]
	x.proved, x.chunks, x.readBuffers = true, chunks, nil
	x.r, x.w = 0, 0
	if len(rest) > 0 {
		x.takeBuffers()
		x.w = copy(x.staging, rest)
	}
	if chunks != nil {
		chunks.to, x.w = x.w, 0
	}
}

// free drops the buffers when the socket is closed. The lane lives on while its peer is asked about its numbers.
func (x *receiver) free() { x.readBuffers, x.body, x.r, x.w = nil, nil, 0, 0 }

// drain receives and handles the bytes that the socket holds, up to budget. It returns their number, and false when the
// lane cannot go on. The caller holds readMu.
func (c *conn) drain(w *worker, budget int) (n int, open bool) {
	x := &c.rx
	if c.fd < 0 { // an event that was on its way when the lane was closed
		return 0, false
	}
	x.worker = w
	defer c.guard("tcp.receive")
	defer x.giveBack()
	n, open = c.receiveUpTo(budget)
	c.setWakeAt(n)
	return n, open
}

// setWakeAt lets the kernel report the socket when much of a payload or chunk has come, or the rest of it. A slow path
// brings it packet by packet: to be woken for each costs more than to copy it. came is the number of bytes that the
// last look found. Where that is much beside the missing ones, the kernel is not asked for anything.
func (c *conn) setWakeAt(came int) {
	x, bytes := &c.rx, 1
	if missing := x.missing(); missing > 0 && (x.wakeAt > 1 || 0 < came && came < missing/2) {
		bytes = missing
	}
	if bytes != x.wakeAt {
		x.wakeAt = bytes
		_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes) // where it is missing, each packet wakes
	}
}

// missing is the rest of the chunk under way, or up to wakeBytes of the payload. It is 0 where that is not known.
func (x *receiver) missing() (n int) {
	switch {
	case x.holdsChunk():
		came := x.staging[x.chunks.from:x.chunks.to]
		size, _ := sealed(came)
		return max(0, size-len(came))
	case x.stage == wantPayload:
		at := x.at
		for i := x.i; i < len(x.table) && n < wakeBytes; i++ {
			n += int(x.table[i].length - at)
			at = 0
		}
	}
	return min(n, wakeBytes)
}

func (c *conn) receiveUpTo(budget int) (total int, open bool) {
	for total < budget && c.life.state().receives() {
		if c.lane.overLease() {
			return total, true
		}
		n, full, errno := c.receiveSome()
		switch {
		case errno == unix.EAGAIN:
			c.answer(true)
			return total, true
		case errno == unix.EINTR:
			continue
		case errno != 0 || n == 0:
			c.broke(c.socketError("tcp.receive", errno))
			return total, false
		}
		total += n
		if err := c.use(); err != nil {
			c.broke(err)
			return total, false
		}
		c.answer(!full)
		if !full { // the socket is as good as empty; asking again costs more than an event
			return total, true
		}
	}
	return total, true
}

// answer sends frames that the last bytes call for: an acknowledgement, READ payload, verdicts.
func (c *conn) answer(drained bool) {
	c.lane.acknowledge(drained)
	if c.dirty.Load() && !c.wantOut.Load() {
		c.pump(c.turn())
	}
}

// receiveSome makes one call: into places if payload is due, else into staging. full reports that the call filled all
// that it was given.
func (c *conn) receiveSome() (n int, full bool, errno unix.Errno) {
	x := &c.rx
	x.takeBuffers()
	if x.chunks != nil {
		return c.receiveChunks()
	}
	if x.stage == wantPayload && x.r == x.w {
		return c.receivePayload()
	}
	if x.r == x.w {
		x.r, x.w = 0, 0
	} else if x.r > 0 {
		x.w = copy(x.staging, x.staging[x.r:x.w])
		x.r = 0
	}
	room := x.staging[x.w:]
	n, errno = receive(c.fd, room)
	if errno == 0 {
		x.w += n
	}
	return n, n == len(room), errno
}

// receivePayload receives straight into memory. copyMu makes revocations and withdrawals wait for this piece, and the
// piece see those that came before.
func (c *conn) receivePayload() (n int, full bool, errno unix.Errno) {
	x := &c.rx
	c.copyMu.Lock()
	defer c.copyMu.Unlock()
	if !c.refresh() {
		return 0, false, 0
	}
	if x.place[x.i] == 0 {
		left := min(int(x.table[x.i].length-x.at), pieceBytes)
		n, errno = discard(c.fd, left)
		if errno == 0 && n > 0 {
			c.received(uint32(n))
		}
		return n, n == left, errno
	}
	k, total := 0, 0
	at := x.at
	for i := x.i; i < len(x.table) && x.place[i] != 0 && total < pieceBytes; i++ {
		size := min(int(x.table[i].length-at), pieceBytes-total)
		x.iov[k] = iovec{x.place[i], uint64(size)}
		total += size
		k++
		at = 0
		if x.alone {
			break
		}
	}
	asked := total
	x.r, x.w = 0, 0
	tail := tailBytes
	if total < stagingBytes {
		tail = stagingBytes
	}
	x.iov[k] = iovec{mem.AddressOf(x.staging), uint64(tail)}
	if x.i+k == len(x.table) && total < pieceBytes && !x.alone { // it reaches the end of the frame's payload
		k++
		asked += tail
	}
	n, errno = receiveVector(c.fd, &x.message, x.iov[:k], asked)
	if errno == unix.EFAULT { // nothing was taken from the socket
		if !x.alone {
			x.alone = true
		} else {
			c.placeGone()
		}
		return 0, false, unix.EINTR // again, the other way
	}
	if errno != 0 || n == 0 {
		return n, false, errno
	}
	for left := min(n, total); left > 0; {
		step := min(uint32(left), x.table[x.i].length-x.at)
		left -= int(step)
		c.received(step)
	}
	x.w = max(0, n-total)
	return n, n == asked, 0
}

// received notes that n more bytes of the slice under way have come, and ends it when it is whole. Holds copyMu.
func (c *conn) received(n uint32) {
	x := &c.rx
	if x.place[x.i] != 0 {
		x.place[x.i] += uintptr(n)
	}
	x.at += n
	if x.at == x.table[x.i].length {
		c.lane.landed(x.i)
		x.i++
		x.at, x.alone = 0, false
	}
}

// refresh looks the places of the frame under way up again if a revocation or a withdrawal has come between. Holds
// copyMu. It reports false when the lane was fenced: nothing is received any more.
func (c *conn) refresh() bool {
	if !c.life.state().receives() {
		return false
	}
	if c.changed {
		c.changed = false
		c.lane.locate(c.rx.i)
	}
	return true
}

// use takes the frames out of the bytes that have come, of protected lanes chunk by chunk.
func (c *conn) use() *errs.Error {
	for {
		if err := c.parse(); err != nil {
			return err
		}
		if more, err := c.openChunk(); err != nil || !more {
			return err
		}
	}
}

// parse uses the bytes in staging.
func (c *conn) parse() *errs.Error {
	x := &c.rx
	for {
		switch x.stage {
		case wantHeader:
			if x.w-x.r < headerBytes {
				return nil
			}
			x.head = getHeader(x.staging[x.r:])
			x.r += headerBytes
			if err := c.lane.checkHeader(x.head); err != nil {
				return c.protocolError("%v", err)
			}
			x.stage = wantTable
		case wantTable:
			if x.w-x.r < int(x.head.count)*recordBytes {
				return nil
			}
			if err := c.tableCame(); err != nil {
				return err
			}
		case wantPayload:
			if !c.copyStaged() {
				return nil
			}
			x.stage = wantHeader
		case wantMessage:
			k := min(int(x.head.length)-len(x.body), x.w-x.r)
			x.body = append(x.body, x.staging[x.r:x.r+k]...)
			x.r += k
			if len(x.body) < int(x.head.length) {
				return nil
			}
			x.stage = wantHeader
			if err := c.lane.handle(); err != nil {
				return err
			}
		}
	}
}

// tableCame reads the records and handles the frame, or begins its payload.
func (c *conn) tableCame() *errs.Error {
	x := &c.rx
	x.table = x.table[:x.head.count]
	for i := range x.table {
		x.table[i] = getRecord(x.staging[x.r:])
		x.r += recordBytes
	}
	switch x.head.kind {
	case kindHello, kindProof, kindNotify:
		x.body = x.body[:0]
		x.stage = wantMessage
		return nil
	case kindWrite, kindData:
		sum, ok := sumLengths(x.table, sliceMax)
		if !ok || sum != uint64(x.head.length) {
			return c.protocolError("%v of %d bytes announces %d", x.head.kind, sum, x.head.length)
		}
		x.i, x.at = 0, 0
		x.stage = wantPayload
		return c.beginPayload()
	}
	x.stage = wantHeader
	return c.lane.handle()
}

// copyStaged moves payload from staging to its place, and reports whether the payload is complete.
func (c *conn) copyStaged() bool {
	x := &c.rx
	c.copyMu.Lock()
	defer c.copyMu.Unlock()
	if !c.refresh() {
		x.r = x.w
		return false
	}
	for x.r < x.w && x.i < len(x.table) {
		if fault := c.placeStaged(); fault != nil {
			c.placeGone()
		}
	}
	return x.i == len(x.table)
}

// placeStaged copies staged payload until it meets a place that is gone. Holds copyMu.
func (c *conn) placeStaged() (fault *mem.Fault) {
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	x := &c.rx
	for x.r < x.w && x.i < len(x.table) {
		k := min(uint32(x.w-x.r), x.table[x.i].length-x.at)
		if p := x.place[x.i]; p != 0 {
			copy(mem.Bytes(p, int(k)), x.staging[x.r:])
		}
		x.r += int(k)
		c.received(k)
	}
	return nil
}

// beginPayload checks the payload frame that starts and looks its places up.
func (c *conn) beginPayload() *errs.Error {
	c.copyMu.Lock()
	defer c.copyMu.Unlock()
	if err := c.lane.beginPayload(); err != nil {
		return err
	}
	c.changed = false
	c.lane.locate(0)
	return nil
}
