package tcp

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

// listener is one local end that accepts lanes.
type listener struct {
	fd   int
	addr netip.AddrPort

	mu      sync.Mutex
	reserve int // a descriptor kept back, so that connections can be turned away when all others are in use
}

// strangersMax bounds connections that have not shown a token yet.
const strangersMax = 64

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
	err = errors.Join(tune(fd, &t.settings, false), stampArrivals(fd))
	if err == nil {
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(a, uint16(t.settings.Port))))
	}
	if err == nil {
		err = unix.Listen(fd, 256)
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
	event := taggedEvent(unix.EPOLLIN|unix.EPOLLEXCLUSIVE, tagListener, index)
	if err := unix.EpollCtl(t.epfd, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return listenError(a, t.settings.Port, err)
	}
	return nil
}

func listenError(a netip.Addr, port int, err error) error {
	e := errs.Wrap(errs.DeviceNotFound, "tcp.listen", err).WithScope(errs.ScopeTransport, errs.SideLocal).
		WithPeer("", Name, a.String())
	if port != 0 {
		return e.WithHint("transports/tcp/port is %d", port)
	}
	return e.WithHint("set transports/tcp/addresses to addresses of this host")
}

// accept takes the connections that wait. Each becomes a lane that has to greet within a time.
func (t *Transport) accept(index int) {
	l := t.listeners[index]
	for {
		fd, _, err := unix.Accept4(l.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch {
		case err == unix.EINTR || err == unix.ECONNABORTED:
			continue
		case err == unix.EMFILE || err == unix.ENFILE:
			if !l.turnAway() {
				return
			}
			continue
		case err != nil:
			return
		}
		if t.strangers.Add(1) > strangersMax || t.life.Closed() {
			t.strangers.Add(-1)
			_ = unix.Close(fd)
			continue
		}
		t.welcomeStranger(fd)
	}
}

func (t *Transport) welcomeStranger(fd int) {
	lane := t.newResponderLane(fd)
	if err := lane.register(); err != nil {
		lane.broke(errs.Wrap(errs.Internal, "tcp.accept", err))
		return
	}
	lane.greetBy.Store(time.AfterFunc(t.settings.Greeting, func() {
		lane.endBy(eventLate, errs.New(errs.Protocol, "tcp.accept", "no greeting within %v", t.settings.Greeting))
	}))
	lane.arm()
}

// turnAway accepts and closes one connection with the descriptor kept back. Without it, a full table would leave the
// listener readable for ever and its worker spinning.
func (l *listener) turnAway() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reserve < 0 {
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

// greetingCame checks the first frame of a lane: the token is the one that the control plane gave to that peer.
func (l *responderLane) greetingCame() *errs.Error {
	g := getGreeting(l.rx.body)
	if g.magic != magic || g.version != version {
		return l.protocolError("not a tent lane of version %d", version)
	}
	if g.group >= groupCount {
		return l.protocolError("greeting of class group %d", g.group)
	}
	a := l.t.attachments.lookUp(g.token)
	if a == nil || a.peer.ID != g.initiator {
		return l.protocolError("greeting with a wrong token")
	}
	l.findEnd()
	if err := a.admit(l, l.rx.head.seq); err != nil {
		return err
	}
	l.t.strangers.Add(-1)
	if timer := l.greetBy.Swap(nil); timer != nil {
		timer.Stop()
	}
	if err := l.joinGroup(g.group); err != nil {
		return err
	}
	l.own, l.near, l.initiator = a.peer.Self, a.peer.MachineID == l.t.self.MachineID, a.peer.ID
	l.armMu.Lock()
	if l.fd >= 0 {
		setCongestion(l.fd, l.t.settings.Congestion, l.near)
	}
	l.armMu.Unlock()
	l.answerOrEnd(header{kind: kindWelcome, seq: welcomeOf(l.t.self.ID)})
	if epoch := l.t.epoch.Load(); epoch > 0 { // it may have missed some
		l.answerOrEnd(header{kind: kindRaised, seq: epoch})
	}
	return nil
}
