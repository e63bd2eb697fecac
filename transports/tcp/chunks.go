package tcp

import (
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Chunks stand between the socket and the frames. Bytes of users' memory are copied or encrypted into a buffer, where
// they become chunks. Chunks are received into a buffer, where they are checked before a frame sees them. So no
// byte of a chunk that fails reaches registered memory. Its slices end in the middle, behind bytes that the peer did
// send.
//
// A lane that is not protected has neither of the two, and its bytes go by the kernel to and from their places.

const (
	// chunkBuffer is filled before it is sent. Each call wakes a peer that has opened all that came: with two chunks a
	// call, both ends computed 8 % longer for a GB, and a transfer of 1 MiB took longer too.
	chunkBuffer = 8 * chunkRoom
	// chunkStaging takes several chunks by one call, behind the head of a frame that is not whole.
	chunkStaging = 4*chunkRoom + headerBytes + recordsMax*recordBytes
)

// chunkWriter is the sealing side of a transmitter. Guarded by writeMu.
type chunkWriter struct {
	sealing
	buffer   *[chunkBuffer]byte // nil while the lane has nothing to send
	from, to int                // sealed and not sent
}

// chunkReader is the opening side of a receiver. Guarded by readMu.
type chunkReader struct {
	sealing
	from, to int // of the receiver's staging: received and not opened
	forged   bool
}

// protect returns the two sides of a lane's end; nil where it is not protected.
func (t *transcript) protect(k *secret, s shield, own role) (*chunkWriter, *chunkReader) {
	if !s.seals() {
		return nil, nil
	}
	other := byInitiator
	if own == byInitiator {
		other = byResponder
	}
	return &chunkWriter{sealing: t.sealing(k, s, own)}, &chunkReader{sealing: t.sealing(k, s, other)}
}

var chunkPool = sync.Pool{New: func() any { return new([chunkBuffer]byte) }}

// giveBack returns the buffer when all of it has left.
func (k *chunkWriter) giveBack() {
	if k != nil && k.buffer != nil {
		chunkPool.Put(k.buffer)
		k.buffer = nil
	}
}

// idle reports that everything has left.
func (x *transmitter) idle() bool {
	return x.left == 0 && (x.chunks == nil || x.chunks.from == x.chunks.to)
}

// send moves bytes into the socket and returns their number there. Holds writeMu.
func (c *conn) send() (n int, errno unix.Errno) {
	x := &c.tx
	k := x.chunks
	if k == nil {
		n, errno = sendVector(c.fd, &x.message, x.iov[x.i:x.n], x.left)
		x.advance(n)
		return n, errno
	}
	if k.from == k.to && !x.fill() {
		return 0, unix.EFAULT
	}
	n, errno = sendBytes(c.fd, k.buffer[k.from:k.to])
	k.from += n
	return n, errno
}

// fill makes chunks of the vector, as many as the buffer takes. It is false when the first bytes cannot be read.
func (x *transmitter) fill() bool {
	k := x.chunks
	if k.buffer == nil {
		k.buffer = chunkPool.Get().(*[chunkBuffer]byte)
	}
	k.from, k.to = 0, 0
	for x.left > 0 && len(k.buffer)-k.to >= chunkRoom {
		b := k.buffer[k.to:]
		if k.protection == transport.Encrypt && x.iov[x.i].size >= chunkMost {
			n, fault := x.encryptWhole(b)
			if fault != nil {
				break
			}
			k.to += n
			continue
		}
		n, fault := x.gather(b[chunkHead : chunkHead+chunkMost])
		if n == 0 && fault != nil {
			break
		}
		k.to += k.seal(b, n)
	}
	return k.to > 0
}

// encryptWhole makes a whole chunk of bytes in their place, which saves a copy of them.
func (x *transmitter) encryptWhole(b []byte) (n int, fault *mem.Fault) {
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	n = x.chunks.encrypt(b, mem.Bytes(x.iov[x.i].base, chunkMost))
	x.advance(chunkMost)
	return n, nil
}

// gather copies bytes of the vector, up to the first that cannot be read.
func (x *transmitter) gather(to []byte) (n int, fault *mem.Fault) {
	defer mem.Guard(&fault, debug.SetPanicOnFault(true))
	for n < len(to) && x.left > 0 {
		v := &x.iov[x.i]
		k := min(len(to)-n, int(v.size))
		copy(to[n:n+k], mem.Bytes(v.base, k))
		n += k
		if x.advance(k); k == 0 {
			x.i++
		}
	}
	return n, nil
}

// holdsChunk reports that a part of a chunk was received, and the rest is awaited.
func (x *receiver) holdsChunk() bool { return x.chunks != nil && x.chunks.from < x.chunks.to }

// receiveChunks makes one call. Behind the bytes of a frame that is not whole, staging has those of chunks.
func (c *conn) receiveChunks() (n int, full bool, errno unix.Errno) {
	x := &c.rx
	k := x.chunks
	if len(x.staging)-k.to < chunkRoom || !x.holdsChunk() {
		rest := copy(x.staging, x.staging[x.r:x.w])
		x.r, x.w = 0, rest
		k.to = rest + copy(x.staging[rest:], x.staging[k.from:k.to])
		k.from = rest
	}
	room := x.staging[k.to:]
	n, errno = receive(c.fd, room)
	if errno == 0 {
		k.to += n
	}
	return n, n == len(room), errno
}

// openChunk adds the next whole chunk to the bytes that parse uses, which leaves at most the head of a frame.
func (c *conn) openChunk() (opened bool, err *errs.Error) {
	x := &c.rx
	k := x.chunks
	if k == nil || x.readBuffers == nil {
		return false, nil
	}
	came := x.staging[k.from:k.to]
	size, ok := sealed(came)
	if ok && (size == 0 || size > len(came)) {
		return false, nil
	}
	if k.forged = k.forged || !ok || !k.open(came[:size]); k.forged {
		return false, c.forgedError()
	}
	begin := k.from + chunkHead - (x.w - x.r)
	copy(x.staging[begin:], x.staging[x.r:x.w])
	x.r, x.w = begin, k.from+size-chunkTag
	k.from += size
	return true, nil
}

// forgedError ends the lane: the bytes behind cannot be told from the attacker's either.
func (c *conn) forgedError() *errs.Error {
	err := c.attribute(errs.New(errs.Corrupted, "tcp.open",
		"bytes came that the peer did not send at this place of the lane: the tag of chunk %d is wrong",
		c.rx.chunks.number).WithScope(errs.ScopeRail, errs.SidePath).
		WithHint("something on the path changes bytes, as an attacker does, or a middlebox"))
	c.t.host.Refused(transport.RefusedForged, c.lane.peerName(), err)
	return err
}
