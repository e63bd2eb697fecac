// Package intake accepts the connections of a listener in batches. One of a flood costs us accept4 and close, and a
// batch costs one wakeup. Go's own listener takes five system calls and a wakeup for each.
//
// The listening socket is in an epoll instance, and that is in Go's poller. It is armed once for each batch
// (EPOLLONESHOT), so connections that come while nobody accepts wake no thread.
package intake

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Listener is a listening socket. Next and Forget are for one goroutine, the others for any.
type Listener struct {
	address net.Addr
	fd      int
	ready   *os.File // the epoll instance
	raw     syscall.RawConn
	once    sync.Once // Close

	// Of the goroutine that accepts.
	batch  [acceptBatch]*Conn
	filled int // of batch
	given  int // of these
}

const (
	acceptBatch   = 64
	silentSeconds = 1                    // for which the kernel waits for the first word of a connection
	gatherTime    = 2 * time.Millisecond // in which the connections of a flood come together
)

// OpenAll takes listeners over: they are closed, and so are all when this fails.
func OpenAll(listeners []net.Listener) (list []*Listener, failed error) {
	for _, listener := range listeners {
		n, err := Open(listener)
		if failed = errors.Join(failed, err); err == nil {
			list = append(list, n)
		}
	}
	if failed != nil {
		for _, n := range list {
			_ = n.Close()
		}
	}
	return list, failed
}

// Open takes a listener over, which is closed.
func Open(listener net.Listener) (*Listener, error) {
	defer listener.Close()
	n := &Listener{address: listener.Addr()}
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if n.fd, err = unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return nil, err
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, errors.Join(err, unix.Close(n.fd))
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}
	err = errors.Join(unix.SetNonblock(n.fd, true), unix.SetNonblock(epoll, true),
		// Accepted connections inherit it, until they are opened. Those that are closed at once leave nothing behind.
		unix.SetsockoptLinger(n.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		// A peer speaks first. The kernel holds connections without a word back, and those that are reset never come.
		unix.SetsockoptInt(n.fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, silentSeconds),
		unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, n.fd, &event))
	n.ready = os.NewFile(uintptr(epoll), n.address.String())
	if err == nil {
		n.raw, err = n.ready.SyscallConn()
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Addr returns the address of the listener.
func (n *Listener) Addr() net.Addr { return n.address }

// Close ends Next, also one under way.
func (n *Listener) Close() (err error) {
	n.once.Do(func() {
		err = errors.Join(n.ready.Close(), unix.Close(n.fd)) // the first waits until the callback of fill has ended
	})
	return err
}

// Forget closes the connections of the last batch that Next has not returned. Nobody calls Next any more.
func (n *Listener) Forget() {
	for ; n.given < n.filled; n.given++ {
		_ = n.batch[n.given].Close()
	}
}

// Next returns the next connection, which is not open yet. With gather it lets some come together first, unless more
// were there than the last batch had room for. One goroutine may call it.
func (n *Listener) Next(gather bool) (*Conn, error) {
	if n.given == n.filled {
		if gather && n.filled < acceptBatch {
			<-time.After(gatherTime)
		}
		if err := n.fill(); err != nil {
			return nil, err
		}
	}
	s := n.batch[n.given]
	n.batch[n.given] = nil
	n.given++
	return s, nil
}

// fill accepts a batch, and waits until there is one.
func (n *Listener) fill() (failed error) {
	n.given, n.filled = 0, 0
	var event [1]unix.EpollEvent
	err := n.raw.Read(func(epoll uintptr) bool {
		_, _ = unix.EpollWait(int(epoll), event[:], 0) // it is not armed from here on
		if failed = n.accept(); n.filled > 0 {
			failed = nil // it comes again
			return true
		}
		if failed != nil {
			return true
		}
		event[0] = unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}
		failed = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_MOD, n.fd, &event[0])
		return failed != nil
	})
	if err != nil {
		return net.ErrClosed
	}
	return failed
}

// accept takes the connections that are there.
func (n *Listener) accept() error {
	for n.filled < acceptBatch {
		fd, from, err := unix.Accept4(n.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch {
		case err == unix.EAGAIN:
			return nil
		case err == unix.EINTR || err == unix.ECONNABORTED:
			continue
		case err != nil:
			return &net.OpError{Op: "accept", Net: "tcp", Addr: n.address, Err: os.NewSyscallError("accept4", err)}
		}
		n.batch[n.filled] = &Conn{fd: fd, from: from}
		n.filled++
	}
	return nil
}

// Conn is an accepted connection that Go's poller does not know until it is open.
type Conn struct {
	net.Conn // nil before Open

	mu   sync.Mutex
	fd   int // -1: the connection has it, or it is closed
	from unix.Sockaddr
}

// Replace closes a connection that is not open, and puts another one in its place. It is false for one that is open or
// closed.
func (s *Conn) Replace(by *Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return false
	}
	_ = unix.Close(s.fd)
	s.fd, s.from = by.fd, by.from
	return true
}

// Open makes the connection one of Go's, as a listener would. It fails for one that the peer has ended, which costs two
// system calls, and no goroutine of a server.
func (s *Conn) Open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return net.ErrClosed
	}
	state := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLRDHUP}}
	if n, _ := unix.Poll(state, 0); n > 0 { // also where it has said a word before
		err := unix.Close(s.fd)
		s.fd = -1
		return errors.Join(net.ErrClosed, err)
	}
	file := os.NewFile(uintptr(s.fd), "control")
	s.fd = -1
	conn, err := net.FileConn(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	s.Conn = conn
	own := conn.(*net.TCPConn)
	return errors.Join(own.SetLinger(-1), own.SetKeepAlive(false)) // gRPC asks for signs of life itself
}

// RemoteAddr returns the address of the peer, also before the connection is open.
func (s *Conn) RemoteAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch from := s.from.(type) {
	case *unix.SockaddrInet4:
		return &net.TCPAddr{IP: from.Addr[:], Port: from.Port}
	case *unix.SockaddrInet6:
		return &net.TCPAddr{IP: from.Addr[:], Port: from.Port, Zone: zoneOf(from.ZoneId)}
	}
	return &net.TCPAddr{}
}

// zoneOf returns the name of the interface of a link-local address, "" for all others.
func zoneOf(index uint32) string {
	if index == 0 {
		return ""
	}
	if by, err := net.InterfaceByIndex(int(index)); err == nil {
		return by.Name
	}
	return ""
}

// Close ends the connection. One that is not open is reset.
func (s *Conn) Close() error {
	s.mu.Lock()
	fd, conn := s.fd, s.Conn
	s.fd = -1
	s.mu.Unlock()
	switch {
	case conn != nil:
		return conn.Close()
	case fd >= 0:
		return unix.Close(fd)
	}
	return net.ErrClosed
}
