// Package fds passes file descriptors between engines of one host, by SCM_RIGHTS (unix(7)). The receiver gets the very
// file that was offered: an eventfd, a pipe, exported memory of a device, a dma-buf. Files that can be opened again by
// /proc/PID/fd (transports/host/vm) need no server, and there the receiver's rights may be narrower: a memfd that is
// opened again for reading cannot be written, one that was passed has the owner's rights. So shm goes on to reopen.
//
//	owner                                   peer, of the same user
//	Listen: an abstract socket, random name
//	Offer(fd, peer's process) -> Ticket ------ by the control plane, where TLS names both ends
//	accept: SO_PEERCRED is our user?  <------ Fetch: connect; SO_PEERCRED is the owner's process?
//	ticket known, of this process?    <------ 16 random bytes
//	SCM_RIGHTS: the descriptor        ------> closed at exec
//
// A ticket is a secret of one peer: it belongs into answers of Transport.Serve, never into a Descriptor. Abstract
// sockets belong to a network namespace, so engines in two of them cannot pass anything to each other.
//
// # Goroutines, bounds
//
// The server owns one goroutine that accepts and one for each connection, which lives a second at most. Close ends all
// of them. Another user's connection is closed unread; one process has a few connections at once, and all together some
// more, so a flood of one leaves the others their turn.
package fds

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

// Bounds of a server.
const (
	OffersMax      = 4096 // descriptors on offer; each is one of the process's
	connectionsMax = 32
	processMax     = 8 // connections of one process
	askLimit       = time.Second
	acceptPause    = 10 * time.Millisecond // after an error, as of a process without descriptors
)

// Process is one end.
type Process struct{ PID, UID uint32 }

// Self returns our own process.
func Self() Process { return Process{uint32(os.Getpid()), uint32(os.Geteuid())} }

// Key is the secret of an offer.
type Key [16]byte

// Ticket is the right of one process to fetch one descriptor.
type Ticket struct {
	Server Key // the random part of the socket's name
	Key    Key
}

// Server passes descriptors. Any goroutine may call it.
type Server struct {
	uid      uint32
	refused  func(cause error)
	name     Key
	listener *net.UnixListener
	stop     chan struct{}
	running  sync.WaitGroup
	room     chan struct{}

	mu     sync.Mutex
	offers map[Key]offer
	open   map[*net.UnixConn]uint32 // PID
	closed bool
}

type offer struct {
	fd int
	to Process
}

func address(name Key) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixpacket", Name: "@tent-fds-" + hex.EncodeToString(name[:])}
}

// Listen starts a server for processes of one user. Refused hears of those that were turned away; nil is nobody.
func Listen(uid uint32, refused func(cause error)) (*Server, error) {
	s := &Server{uid: uid, refused: refused, stop: make(chan struct{}), room: make(chan struct{}, connectionsMax),
		offers: make(map[Key]offer), open: make(map[*net.UnixConn]uint32)}
	if refused == nil {
		s.refused = func(error) {}
	}
	_, _ = rand.Read(s.name[:]) // never fails: crypto/rand ends the process instead
	var err error
	if s.listener, err = net.ListenUnix("unixpacket", address(s.name)); err != nil {
		return nil, errs.Wrap(errs.Internal, "fds.listen", err).WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	s.running.Go(s.accept)
	return s, nil
}

// Offer lets one process fetch a descriptor, any number of times until Withdraw. The server keeps a duplicate, so the
// caller may close its own.
func (s *Server) Offer(fd int, to Process) (Ticket, error) {
	t := Ticket{Server: s.name}
	_, _ = rand.Read(t.Key[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return Ticket{}, errs.New(errs.EngineClosed, "fds.offer", "the server is closed")
	case len(s.offers) >= OffersMax:
		return Ticket{}, errs.New(errs.TooManyRequests, "fds.offer", "%d descriptors are on offer already", OffersMax).
			WithHint("close regions that are not used any more")
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return Ticket{}, errs.Wrap(errs.InvalidArgument, "fds.offer", err)
	}
	s.offers[t.Key] = offer{own, to}
	return t, nil
}

// Withdraw ends an offer. A descriptor that was fetched stays the fetcher's. An unknown ticket is ignored.
func (s *Server) Withdraw(t Ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, is := s.offers[t.Key]; is {
		delete(s.offers, t.Key)
		_ = unix.Close(o.fd)
	}
}

// Close ends all offers and returns when every goroutine has ended. Closing again does nothing.
func (s *Server) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	close(s.stop)
	for c := range s.open {
		_ = c.SetDeadline(time.Unix(1, 0)) // its goroutine gives up
	}
	for key, o := range s.offers {
		delete(s.offers, key)
		_ = unix.Close(o.fd)
	}
	s.mu.Unlock()
	_ = s.listener.Close()
	s.running.Wait()
}

func (s *Server) accept() {
	for {
		c, err := s.listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			select {
			case <-s.stop:
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		peer, err := processOf(c)
		if err == nil {
			err = s.enter(c, peer)
		}
		if err != nil {
			s.refused(err)
			_ = c.Close()
			continue
		}
		select {
		case s.room <- struct{}{}:
		case <-s.stop:
			s.leave(c)
			return
		}
		s.running.Go(func() {
			defer func() { <-s.room }()
			defer s.leave(c)
			if err := s.serve(c, peer); err != nil {
				s.refused(err)
			}
		})
	}
}

// enter admits a connection of our user.
func (s *Server) enter(c *net.UnixConn, peer Process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, pid := range s.open {
		if pid == peer.PID {
			n++
		}
	}
	switch {
	case s.closed:
		return net.ErrClosed
	case peer.UID != s.uid:
		return errs.New(errs.PermissionDenied, "fds", "process %d is of user %d, not of %d", peer.PID, peer.UID, s.uid)
	case n >= processMax:
		return errs.New(errs.TooManyRequests, "fds", "process %d has %d connections already", peer.PID, n)
	}
	s.open[c] = peer.PID
	return c.SetDeadline(time.Now().Add(askLimit))
}

func (s *Server) leave(c *net.UnixConn) {
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
	_ = c.Close()
}

// serve answers one question.
func (s *Server) serve(c *net.UnixConn, peer Process) error {
	var question [len(Key{}) + 1]byte
	n, err := c.Read(question[:])
	if err != nil {
		return err
	}
	fd := -1
	if n == len(Key{}) {
		fd = s.take(Key(question[:n]), peer)
	}
	if fd < 0 {
		_, _, _ = c.WriteMsgUnix([]byte{answerRefused}, nil, nil)
		return errs.New(errs.PermissionDenied, "fds", "process %d has no ticket for the descriptor", peer.PID)
	}
	defer unix.Close(fd)
	_, _, err = c.WriteMsgUnix([]byte{answerPassed}, unix.UnixRights(fd), nil)
	return err
}

const (
	answerPassed = iota
	answerRefused
)

// take returns a duplicate of the descriptor on offer to a process, -1 if there is none.
func (s *Server) take(key Key, peer Process) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, is := s.offers[key]
	if !is || o.to != peer {
		return -1
	}
	fd, err := unix.FcntlInt(uintptr(o.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// processOf returns the process at the other end as the kernel knows it, when it connected or began to listen.
func processOf(c *net.UnixConn) (Process, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Process{}, err
	}
	var who *unix.Ucred
	if failed := raw.Control(func(fd uintptr) {
		who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); failed != nil {
		return Process{}, failed
	}
	if err != nil {
		return Process{}, err
	}
	return Process{uint32(who.Pid), who.Uid}, nil
}
