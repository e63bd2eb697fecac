package tcp

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// listener is one local end that accepts lanes.
type listener struct {
	fd   int
	addr netip.AddrPort

	mu      sync.Mutex
	reserve int         // a descriptor kept back, so that connections can be turned away when all others are in use
	pause   *time.Timer // the end of the pause behind an error of accept; nil: epoll looks at the listener
	closed  bool
}

// acceptPause is the pause behind an error of accept. Its cause lasts for a while, and the connection goes on to wait.
const acceptPause = 10 * time.Millisecond

// Of the kernel's queue for a listener, which holds connections while the workers are busy for a moment. A connection
// waits there for its first bytes for a second, see strangers.
const (
	backlog       = 4096 // the usual limit of net.core.somaxconn
	silentSeconds = 1
)

func (t *Transport) listen(index int, a netip.Addr) error {
	fd, err := newSocket(a)
	if err != nil {
		return listenError(a, t.settings.Port, err)
	}
	l := &listener{fd: fd, reserve: -1}
	t.listeners = append(t.listeners, l) // closeSockets closes it from here on
	// A process that restarts gets its old port although connections of its predecessor linger in TIME_WAIT.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if a.Is6() {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, silentSeconds) // without it, more strangers
	err = errors.Join(tune(fd, &t.settings, false), stampArrivals(fd))
	if err == nil {
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(a, uint16(t.settings.Port))))
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		return listenError(a, t.settings.Port, err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return listenError(a, t.settings.Port, err)
	}
	l.addr = addrPort(name)
	l.reserve, _ = unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err := t.attendListener(index); err != nil {
		return listenError(a, t.settings.Port, err)
	}
	return nil
}

// attendListener makes epoll look at a listener.
func (t *Transport) attendListener(index int) error {
	event := taggedEvent(unix.EPOLLIN|unix.EPOLLEXCLUSIVE, tagListener, index)
	return unix.EpollCtl(t.epfd, unix.EPOLL_CTL_ADD, t.listeners[index].fd, &event)
}

func listenError(a netip.Addr, port int, err error) error {
	e := errs.Wrap(errs.DeviceNotFound, "tcp.listen", err).WithScope(errs.ScopeTransport, errs.SideLocal).
		WithPeer("", Name, a.String())
	if port != 0 {
		return e.WithHint("transports/tcp/port is %d", port)
	}
	return e.WithHint("set transports/tcp/addresses to addresses of this host")
}

// accept takes connections that wait. Each becomes a lane that has to prove itself within a time.
func (t *Transport) accept(w *worker, index int) {
	l := t.listeners[index]
	for range acceptBatch {
		fd, from, err := unix.Accept4(l.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch {
		case err == unix.EINTR || err == unix.ECONNABORTED:
			continue
		case err == unix.EMFILE || err == unix.ENFILE:
			if oldest := t.strangers.dropOldest(); oldest != nil {
				oldest.drop()
			} else if !l.turnAway() {
				t.pauseAccepting(index, err)
				return
			}
			continue
		case err == unix.EAGAIN:
			return
		case err != nil:
			t.pauseAccepting(index, err)
			return
		}
		if t.life.Closed() {
			_ = unix.Close(fd)
			continue
		}
		t.meetStranger(w, fd, hostOf(from))
	}
}

// meetStranger reads the bytes that a new connection has sent already. A peer's HELLO is among them. Only a connection
// that says less joins the strangers, so no flood of others comes between, however long the worker is kept from its
// processor.
func (t *Transport) meetStranger(w *worker, fd int, from netip.Addr) {
	lane := t.newResponderLane(fd, from)
	if err := lane.register(); err != nil {
		lane.broke(errs.Wrap(errs.Internal, "tcp.accept", err))
		return
	}
	limit := t.settings.Greeting
	lane.greetBy.Store(time.AfterFunc(limit, func() {
		if lane.attachment.Load() == nil && !lane.isDown() {
			lane.endBy(eventLate, lane.refuse(transport.RefusedSilence, "no proof within %v", limit))
		}
	}))
	lane.readMu.Lock()
	_, open := lane.drain(w, submitBudget)
	var oldest *responderLane
	if open && lane.fd >= 0 && lane.due() == kindHello {
		oldest = t.strangers.add(lane) // closeLane, which needs readMu, takes it out
	}
	lane.readMu.Unlock()
	if oldest != nil {
		oldest.drop()
	}
	w.closeDropped()
	if open {
		lane.arm()
	} else {
		lane.closeLane() // here, for a flood must not leave more of them behind than there are workers
	}
}

// pauseAccepting keeps epoll off a listener for a pause. The connection that could not be accepted leaves it readable,
// so its workers would spin until the cause has passed.
func (t *Transport) pauseAccepting(index int, cause error) {
	t.host.Refused(transport.RefusedLimit, "", errs.Wrap(errs.Internal, "tcp.accept", cause)) // the peer hears nothing
	l := t.listeners[index]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.pause != nil {
		return
	}
	if unix.EpollCtl(t.epfd, unix.EPOLL_CTL_DEL, l.fd, nil) == nil {
		l.pause = time.AfterFunc(acceptPause, func() { t.goOnAccepting(index) })
	}
}

func (t *Transport) goOnAccepting(index int) {
	l := t.listeners[index]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if t.attendListener(index) != nil { // for want of memory, too
		l.pause.Reset(acceptPause)
		return
	}
	l.pause = nil
}

// close ends the listener also where a forked child has a copy of its descriptor: peers are to be refused.
func (l *listener) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.pause != nil {
		l.pause.Stop()
	}
	_ = unix.Shutdown(l.fd, unix.SHUT_RDWR)
	_ = unix.Close(l.fd)
	if l.reserve >= 0 {
		_ = unix.Close(l.reserve)
	}
}

// turnAway accepts and closes one connection with the descriptor kept back. Without it, a full table would leave the
// listener readable for ever. A reserve that others took meanwhile is made again as soon as that is possible.
func (l *listener) turnAway() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reserve < 0 {
		l.reserve, _ = unix.Eventfd(0, unix.EFD_CLOEXEC)
		return false
	}
	_ = unix.Close(l.reserve)
	fd, _, err := unix.Accept4(l.fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err == nil {
		_ = unix.Close(fd)
	}
	l.reserve, _ = unix.Eventfd(0, unix.EFD_CLOEXEC)
	return err == nil
}
