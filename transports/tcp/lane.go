package tcp

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// lane is one TCP connection, seen from one of its ends. The initiator's end has link and set, the responder's (serving)
// has attachment once it was greeted. See the package doc for who holds which lock, and in which order.
//
//	initiator:  dialled ──register──▶ open ──breakLane──▶ broken ──settle──▶ closed (fd gone; WRITE slices that were
//	responder:  accepted ─hello ok──▶ open ──fail/fence─▶ broken ──finish──▶ closed   sent wait for a fence's answer)
type lane struct {
	t       *Transport
	slot    uint32 // in Transport.lanes
	id      uint64 // the initiator's number of it, never used twice
	fd      int    // for who holds readMu, writeMu or armMu; -1 once gone
	serving bool
	near    bool       // responder: the initiator is on our own host; set before any payload
	own     bool       // responder: the initiator is our own engine; set before any payload
	end     netip.Addr // responder: ours; set before the lane is part of its attachment

	link  *link    // initiator
	set   *laneSet // initiator
	group uint8    // of classes, see groupOf; set before any payload

	attachment atomic.Pointer[attachment] // responder
	laneExtras

	readMu sync.Mutex // who may read the socket
	rx     receiver

	writeMu sync.Mutex // who may write the socket
	tx      transmitter
	parting bool // goodbye was written: the socket is closed without a reset

	copyMu  sync.Mutex // held while a piece of payload is under way into memory
	changed bool       // places of the frame under way must be looked up again
	in      inbox

	mu     sync.Mutex // short: never held across a system call
	closed bool       // takes no more slices, answers or payload
	cause  *errs.Error
	ctl    []byte // frames that go ahead of payload
	ackDue bool
	ackSeq uint64
	waits  int // answers expected besides the outbox's
	out    outbox
	reads  readQueue

	dirty   atomic.Bool // there may be something to write
	wantOut atomic.Bool // there is, and the next to write is a worker's EPOLLOUT or a Poll
	busy    atomic.Bool // initiator: an answer is expected, Poll looks here
	bulk    atomic.Bool // so much is outstanding that workers help the waiter
	deaf    atomic.Bool // disarmed for a waiter, Poll looks here
	broken  atomic.Bool // initiator: the link's goroutine sees to it, nobody else needs to look

	armMu   sync.Mutex
	epfd    int  // the epoll that it is in
	armed   bool // epoll will tell a worker
	listens bool // of bytes that came, too
	kept    int  // waiters that sleep on the lane and read it themselves
	held    bool // a worker reads and will arm when it is done
	gone    bool // fd is closed or about to be
}

// ctlMax bounds what waits to be written besides payload. A peer whose answers exceed it does not read them: cut off.
const ctlMax = 256 << 10

// newLane makes a lane of a connected socket and puts it into the table; register makes epoll look at it.
func (t *Transport) newLane(fd int, serving bool) *lane {
	l := &lane{t: t, fd: fd, serving: serving}
	l.rx.init()
	l.tx.init()
	if serving {
		l.in.window = uint64(t.settings.CreditRequests)
	}
	t.addLane(l)
	return l
}

// register hands the lane to the epoll of its group, disarmed.
func (l *lane) register() error {
	l.epfd = l.t.epfd
	if l.group > 0 {
		l.epfd = l.t.bulkFd
	}
	event := unix.EpollEvent{Events: unix.EPOLLONESHOT, Fd: int32(l.slot), Pad: int32(tagLane)}
	return unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, l.fd, &event)
}

// arm asks epoll for what the lane waits for. Reading stays off while a worker is at it (it arms afterwards) and while
// waiters poll the initiator's lanes themselves.
func (l *lane) arm() {
	l.armMu.Lock()
	defer l.armMu.Unlock()
	polled := !l.serving && l.t.polling.Load() && !l.bulk.Load()
	kept := l.kept > 0 // a waiter sleeps on it
	events := uint32(0)
	if !l.held && !polled && !kept {
		events |= unix.EPOLLIN | unix.EPOLLRDHUP
	}
	if l.wantOut.Load() && !polled {
		events |= unix.EPOLLOUT
	}
	if events == 0 || l.gone || l.broken.Load() {
		return
	}
	l.armed, l.listens = true, events&unix.EPOLLIN != 0
	l.deaf.Store(false)
	l.control(events | unix.EPOLLONESHOT)
}

// disarm keeps workers asleep while a waiter polls.
func (l *lane) disarm() {
	l.armMu.Lock()
	defer l.armMu.Unlock()
	if l.armed && !l.gone {
		l.armed, l.listens = false, false
		l.deaf.Store(true)
		l.control(unix.EPOLLONESHOT)
	}
}

func (l *lane) control(events uint32) {
	event := unix.EpollEvent{Events: events, Fd: int32(l.slot), Pad: int32(tagLane)}
	epollModify(l.epfd, l.fd, &event)
}

// take notes that epoll has told a worker, which now tries to read.
func (l *lane) take(held bool) {
	l.armMu.Lock()
	l.armed, l.listens = false, false
	l.held = held
	l.armMu.Unlock()
}

func (l *lane) release() {
	l.armMu.Lock()
	l.held = false
	l.armMu.Unlock()
}

func (l *lane) isArmed() bool {
	l.armMu.Lock()
	defer l.armMu.Unlock()
	return l.listens || l.held
}

// shutdown makes both directions end at once, whoever uses the socket now. It is no fence: what the kernel has received
// can still be read, so readers look at closed and fenced as well.
func (l *lane) shutdown() {
	l.armMu.Lock()
	defer l.armMu.Unlock()
	if !l.gone {
		_ = unix.Shutdown(l.fd, unix.SHUT_RDWR)
	}
}

// closeSocket ends the socket with a reset, so that bytes nobody has read die with it, but for a goodbye, which must
// arrive. The caller holds readMu and writeMu, which makes sure that nobody else uses the number.
func (l *lane) closeSocket() {
	l.armMu.Lock()
	fd, done := l.fd, l.gone
	l.fd, l.gone = -1, true
	l.armMu.Unlock()
	if done {
		return
	}
	if !l.parting {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	_ = unix.Close(fd)
	l.t.dropLane(l)
	l.rx.free()
	l.tx = transmitter{}
}

// post adds a frame ahead of payload; the caller calls pump afterwards. It reports false when the lane is closed or too
// much waits already.
func (l *lane) post(h header, records ...record) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.postLocked(h, records...)
}

func (l *lane) postLocked(h header, records ...record) bool {
	if l.closed || len(l.ctl)+headerBytes+recordBytes*len(records) > ctlMax {
		return false
	}
	l.ctl = appendFrame(l.ctl, h, records...)
	l.dirty.Store(true)
	return true
}

// broke ends the lane after an error of its socket or its peer. Any goroutine, no lock of the lane held.
func (l *lane) broke(cause *errs.Error) {
	l.mu.Lock()
	first := !l.closed
	if first {
		l.closed, l.cause = true, cause
	}
	l.mu.Unlock()
	if !first {
		return
	}
	l.broken.Store(!l.serving)
	l.shutdown()
	if l.serving {
		l.t.retire(l) // its owner closes it
	} else {
		l.link.kick()
	}
}

func (l *lane) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// socketError names the cause of a failed call; errno 0 is the orderly end, which on a lane is never orderly.
func (l *lane) socketError(op string, errno unix.Errno) *errs.Error {
	side, e := errs.SidePath, (*errs.Error)(nil)
	if errno == 0 {
		e = errs.New(errs.Lost, op, "peer closed the connection")
		side = errs.SideRemote
	} else {
		e = errs.Wrap(errs.Lost, op, errno)
	}
	return e.WithScope(errs.ScopeRail, side).WithPeer(l.peerName(), Name, l.railName())
}

func (l *lane) protocolError(format string, args ...any) *errs.Error {
	return errs.New(errs.Protocol, "tcp.receive", format, args...).WithScope(errs.ScopeRail, errs.SideRemote).
		WithPeer(l.peerName(), Name, l.railName())
}

func (l *lane) peerName() string {
	if l.link != nil {
		return l.link.peer.Address
	}
	if a := l.attachment.Load(); a != nil {
		return a.peer.Address
	}
	return "unknown"
}

func (l *lane) railName() string {
	if l.set != nil {
		return l.set.rail.name()
	}
	return ""
}

// laneSet is one generation of a rail: immutable but for the lanes' own state.
type laneSet struct {
	rail       *rail
	generation uint32
	groups     [groupCount][]*lane
	owes       atomic.Bool // a Submit took less than it was given: Ready is due
	since      clock.Time
	trip       time.Duration // one way and back when it was dialled
}

// Class groups: class 0 has connections of its own, so neither its bytes nor its acknowledgements wait behind others'.
const groupCount = 2

func groupOf(class uint8) int { return min(int(class), groupCount-1) }

func (s *laneSet) each(f func(*lane)) {
	for _, group := range s.groups {
		for _, l := range group {
			f(l)
		}
	}
}

func (s *laneSet) String() string {
	return fmt.Sprintf("generation %d, %d lanes", s.generation, len(s.groups[0])*groupCount)
}
