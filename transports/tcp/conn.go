package tcp

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

// conn is one TCP connection: its socket, its reader and writer, and its place in an epoll. The lane that it carries
// (initiatorLane, responderLane) embeds it and gives frames their meaning. See the package doc for the order of locks.
type conn struct {
	t     *Transport
	lane  lane
	life  life
	key   connKey // in Transport.conns
	id    uint64  // the initiator's number of the lane, never used twice
	group uint8   // of classes, see groupOf; set before any payload
	fd    int     // read under readMu, writeMu or armMu; -1 once the socket is closed

	readMu sync.Mutex  // the right to read the socket
	missed atomic.Bool // an event came while another goroutine read, which arms the lane when it lets go
	rx     receiver

	writeMu sync.Mutex // the right to write the socket
	tx      transmitter

	copyMu  sync.Mutex // held while a piece of payload is under way into memory
	changed bool       // places of the frame under way must be looked up again

	mu    sync.Mutex // short: never held across a system call
	cause *errs.Error
	ctl   []byte // frames that go ahead of payload

	dirty   atomic.Bool // there may be something to write
	wantOut atomic.Bool // there is, and an EPOLLOUT or a Poll writes next

	armMu    sync.Mutex
	epfd     int    // the epoll that it is in
	interest uint32 // events that epoll was asked for; 0 while it is disarmed
	held     bool   // a worker reads and will arm when it is done
	patient  bool   // TCP_USER_TIMEOUT is off while the peer takes nothing, see waitForWindow
}

// lane is an end of a connection. The conn calls it when frames come and when there is room to write.
type lane interface {
	// checkHeader returns the reason why a frame may not come now.
	checkHeader(header) error
	// beginPayload checks the WRITE or DATA frame that starts. Holds copyMu.
	beginPayload() *errs.Error
	// locate finds the places of the frame's slices from i on; the one under way keeps its position. Holds copyMu.
	locate(i int)
	// landed ends the i-th slice of the frame: its payload is in its place or was discarded. Holds copyMu.
	landed(i int)
	// placeGone ends the i-th slice of the frame: its place is gone. landed is still called for it. Holds copyMu.
	placeGone(i int)
	// sourceGone ends the k-th slice of the frame in tx: its memory is gone, and zeros are sent. Holds writeMu.
	sourceGone(k int)
	// handle takes a frame without payload for memory, complete in rx.
	handle() *errs.Error
	// overLease reports that the socket must not be read now. Holds readMu.
	overLease() bool
	// acknowledge queues the answer to payload that has come. Holds readMu.
	acknowledge(drained bool)
	// gather moves frames and payload that are due into the transmitter. Holds writeMu and mu.
	gather(x *transmitter)
	// wrote is called when all that was due has left for the socket.
	wrote()
	// reduceInterest removes the events that a waiter sees to itself. Holds armMu.
	reduceInterest(events uint32) uint32
	// wentDown makes the owner close the lane.
	wentDown()

	peerName() string
	railName() string
}

// ctlMax bounds the bytes of waiting frames without payload. A peer that lets its answers exceed it does not
// read them, and is cut off.
const ctlMax = 256 << 10

// init prepares a connected socket, without mayBuffer, and enters it into the table of connections. The table holds
// more entries than a process can have descriptors. register makes epoll look at it.
func (c *conn) init(t *Transport, fd int, l lane, first state, m *moves) {
	c.t, c.fd, c.lane = t, fd, l
	c.life.init(first, m)
	c.rx.init()
	t.conns.Insert(func(k connKey) *conn { c.key = k; return c })
}

// mayBuffer lets a lane use buffers, and begins its chunks if it is protected. One that has not proved itself costs
// little and writes nothing by pump. The caller holds readMu, or is alone with the lane.
func (c *conn) mayBuffer(out *chunkWriter, in *chunkReader) {
	c.rx.mayBuffer(in)
	c.writeMu.Lock()
	c.tx.ready, c.tx.chunks = true, out
	c.writeMu.Unlock()
}

// register hands the socket to the epoll of its group, disarmed. The end of the peer is reported all the same, so a
// worker may arm the lane at once.
func (c *conn) register() error {
	c.armMu.Lock()
	defer c.armMu.Unlock()
	return c.registerLocked()
}

func (c *conn) registerLocked() error {
	c.epfd = c.t.epfd
	if c.group > 0 {
		c.epfd = c.t.bulkFd
	}
	event := c.key.event(unix.EPOLLONESHOT)
	return unix.EpollCtl(c.epfd, unix.EPOLL_CTL_ADD, c.fd, &event)
}

// arm asks epoll for the events that the lane waits for. Reading stays off while a worker reads, which arms afterwards.
func (c *conn) arm() {
	c.armMu.Lock()
	defer c.armMu.Unlock()
	s := c.life.state()
	events := uint32(0)
	if !c.held && s.receives() {
		events |= unix.EPOLLIN | unix.EPOLLRDHUP
	}
	if c.wantOut.Load() {
		events |= unix.EPOLLOUT
	}
	if c.fd < 0 || !s.live() {
		return
	}
	if events = c.lane.reduceInterest(events); events != 0 && events != c.interest {
		c.setInterest(events)
	}
}

// setInterest changes the events that epoll looks for. Holds armMu; the socket is open.
func (c *conn) setInterest(events uint32) {
	c.interest = events
	event := c.key.event(events | unix.EPOLLONESHOT)
	epollModify(c.epfd, c.fd, &event)
}

// eventTaken notes that epoll has reported the lane, which disarms it (EPOLLONESHOT). Another worker may be reading.
func (c *conn) eventTaken() {
	c.armMu.Lock()
	c.interest = 0
	c.armMu.Unlock()
}

// holdReading keeps epoll off the lane's read side while a worker reads.
func (c *conn) holdReading(held bool) {
	c.armMu.Lock()
	if held {
		c.interest = 0
	}
	c.held = held
	c.armMu.Unlock()
}

// letGo ends the right to read. It arms the lane if a worker came for an event meanwhile, which disarmed it.
func (c *conn) letGo() {
	c.readMu.Unlock()
	if c.missed.Load() && c.missed.Swap(false) {
		c.arm()
	}
}

// takeReading is a worker's TryLock of readMu for an event. When it fails, the holder has seen missed, or will: each of
// the two writes before it reads (Dekker).
func (c *conn) takeReading() bool {
	if c.readMu.TryLock() {
		return true
	}
	c.missed.Store(true)
	return c.readMu.TryLock()
}

// shutdown ends both directions at once, also for a goroutine that uses the socket now. It is no fence: bytes that the
// kernel has received can still be read, so readers look at the lane's state as well.
func (c *conn) shutdown() {
	c.armMu.Lock()
	defer c.armMu.Unlock()
	if c.fd >= 0 {
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
}

// socket returns the descriptor, -1 once it is closed. It is for a wait alone: the number may be another file's by the
// time that it is used.
func (c *conn) socket() int {
	c.armMu.Lock()
	defer c.armMu.Unlock()
	return c.fd
}

// closeSocket closes the socket with a reset, so that bytes that nobody has read die with it. After a goodbye, which
// must arrive, it closes in order. The caller holds readMu and writeMu, so nobody else uses the descriptor. It
// reports false if the socket was closed before.
func (c *conn) closeSocket() bool {
	c.armMu.Lock()
	from, to := c.life.advance(eventClosed)
	fd := c.fd
	c.fd = -1
	c.armMu.Unlock()
	if from == to {
		return false
	}
	if from == stateParted {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	} else {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	_ = unix.Close(fd)
	c.t.conns.Delete(c.key)
	c.rx.free()
	c.tx = transmitter{}
	return true
}

// post adds a frame ahead of payload; the caller calls pump afterwards. It reports false when the lane takes nothing
// more or too much waits already.
func (c *conn) post(h header, records ...record) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.postLocked(h, records...)
}

func (c *conn) postLocked(h header, records ...record) bool {
	if !c.life.state().live() || len(c.ctl)+headerBytes+recordBytes*len(records) > ctlMax {
		return false
	}
	c.ctl = appendFrame(c.ctl, h, records...)
	c.dirty.Store(true)
	return true
}

// broke ends the lane after an error of its socket or its peer. Any goroutine may call it without a lock of the lane.
func (c *conn) broke(cause *errs.Error) { c.endBy(eventBroke, cause) }

func (c *conn) endBy(e event, cause *errs.Error) {
	if c.markEnd(e, cause) {
		c.shutdown()
		c.lane.wentDown()
	}
}

// markEnd keeps the cause of the event that ends a lane's live time. It reports whether this event did; the caller then
// calls shutdown and wentDown.
func (c *conn) markEnd(e event, cause *errs.Error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	from, to := c.life.advance(e)
	first := from.live() && !to.live()
	if first {
		c.cause = cause
	}
	return first
}

// endCause returns why a lane has gone down; nil while it is live.
func (c *conn) endCause() *errs.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// socketError names the cause of a failed call; errno 0 is the orderly end, which on a lane is never orderly. The
// kernel reports a reset to the first call alone: a reader beside a writer sees an end then, which is no word of the
// peer.
func (c *conn) socketError(op string, errno unix.Errno) *errs.Error {
	if errno == 0 && c.wasReset() {
		errno = unix.ECONNRESET
	}
	if errno == 0 {
		return c.attribute(errs.New(errs.Lost, op, "peer closed the connection").
			WithScope(errs.ScopeRail, errs.SideRemote))
	}
	return c.attribute(errs.Wrap(errs.Lost, op, errno).WithScope(errs.ScopeRail, errs.SidePath))
}

func (c *conn) protocolError(format string, args ...any) *errs.Error {
	return c.attribute(errs.New(errs.Protocol, "tcp.receive", format, args...).
		WithScope(errs.ScopeRail, errs.SideRemote))
}

// attribute fills in peer, transport and rail of an error of the lane.
func (c *conn) attribute(err *errs.Error) *errs.Error {
	return err.WithPeer(c.lane.peerName(), Name, c.lane.railName())
}

// isDown reports that the lane takes nothing more.
func (c *conn) isDown() bool { return !c.life.state().live() }
