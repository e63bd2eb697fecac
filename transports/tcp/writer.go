package tcp

import (
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
)

// Budgets of one turn at a lane's write side, in bytes.
const (
	submitBudget = 256 << 10 // a submitter carries out this much itself
	workerBudget = 1 << 20   // then a worker looks at other lanes
)

// transmitter is a vector of ready frames, of which some may have left. Guarded by writeMu.
type transmitter struct {
	*writeBuffers      // nil while nothing is to be sent, see buffers.go
	ready         bool // the lane has proved itself
	i, n          int  // iov[i:n] has not wholly left
	left          int  // bytes in it
	ctl           []byte
	chunks        *chunkWriter // nil: the lane is not protected

	// iov[0] is ctl, iov[1] head, iov[payload+k] the frame's k-th slice: number first+k (WRITE), region keys[k] (DATA).
	slices  int
	checked bool // its records need checksums
	first   uint64
	copies  [][]byte // payload that was copied because its memory had to become quiet
	copied  bool     // all that has not left of it was, because the kernel could not read it
}

const payload = 2

func (x *transmitter) reset() {
	x.i, x.n, x.left, x.slices, x.checked = 0, payload, 0, 0, false
	x.iov[0], x.iov[1] = iovec{}, iovec{}
	x.copies, x.copied, x.tail = nil, false, x.tail[:0]
}

func (x *transmitter) addPayload(addr uintptr, n int) {
	x.iov[x.n] = iovec{addr, uint64(n)}
	x.n++
	x.left += n
}

func (x *transmitter) setVector(i int, b []byte) {
	x.iov[i] = iovec{mem.AddressOf(b), uint64(len(b))}
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

// pump writes frames that are due, as far as socket and budget allow. Any goroutine may call it. It never waits: a
// caller that finds another one writing leaves, because the writer looks again after it has let go.
func (c *conn) pump(budget int) {
	for c.dirty.Load() && c.writeMu.TryLock() {
		blocked, errno := c.write(budget)
		if errno != 0 {
			c.broke(c.socketError("tcp.send", errno))
			return
		}
		if blocked {
			c.arm()
			return
		}
		c.lane.wrote()
	}
}

// write returns blocked when there is more to write that an EPOLLOUT or a Poll must go on with. It lets writeMu go.
func (c *conn) write(budget int) (blocked bool, errno unix.Errno) {
	defer c.guard("tcp.send")
	defer c.writeMu.Unlock()
	x := &c.tx
	if c.wantOut.Load() { // it writes now: an EPOLLOUT would wake a worker for nothing
		c.wantOut.Store(false)
	}
	for c.fd >= 0 && x.ready {
		c.dirty.Store(false) // before looking, so that pump sees frames that are added from now on
		if x.idle() && !c.nextVector() {
			x.giveBack()
			return false, 0
		}
		if budget <= 0 { // asked only when there is more: an EPOLLOUT for nothing wakes a worker for nothing
			return c.unfinished(), 0
		}
		for !x.idle() {
			n, errno := c.send()
			switch {
			case errno == unix.EINTR:
				continue
			case errno == unix.EAGAIN:
				return c.unfinished(), 0
			case errno == unix.EFAULT && !x.copied:
				c.quietenAll() // and the frame goes on: the peer waits for all of its bytes
				continue
			case errno != 0:
				return false, errno
			}
			if budget -= n; budget <= 0 && !x.idle() {
				return c.unfinished(), 0
			}
		}
	}
	c.dirty.Store(false)
	return false, 0
}

func (c *conn) unfinished() bool {
	c.dirty.Store(true)
	c.wantOut.Store(true)
	return true
}

// nextVector makes the next vector: waiting frames, then at most one frame of payload. It reports false if nothing is
// due.
func (c *conn) nextVector() bool {
	x := &c.tx
	x.takeBuffers()
	x.reset()
	c.fill(x)
	if x.checked {
		c.seal()
	}
	return x.left > 0
}

// fill gathers the next vector of a lane that is live.
func (c *conn) fill(x *transmitter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.state().live() {
		if c.lane.gather(x); len(x.ctl) > 0 {
			x.setVector(0, x.ctl)
		}
	}
}

func (x *transmitter) setHead(h header, head []byte) {
	h.put(head)
	x.head = head
	x.setVector(1, head)
}

// headWaits reports that nothing of the payload frame has left, so that its records may be changed.
func (x *transmitter) headWaits() bool {
	return x.i < 1 || x.i == 1 && x.iov[1].size == uint64(len(x.head))
}

// addTail ends a DATA frame with SERVED, behind its payload.
func (x *transmitter) addTail() {
	x.tail = appendFrame(x.tail, header{kind: kindServed})
	x.setVector(x.n, x.tail)
	x.n++
}
