package main

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/tests/forked"
)

// Plain ends are the floor of this benchmark. Two processes stream over one socket, and the attacked one accepts
// connections on another and closes them at once. That is the kernel's own cost of connections, which no engine saves.

const backlog = 4096 // as the engine's, by the usual limit of net.core.somaxconn

// OpenPlain listens as the engine does, and reads a stream.
func (s *Side) OpenPlain(_ forked.Nothing, to *Ends) error {
	attacked, attackedAt, err := listenPlain()
	if err != nil {
		return err
	}
	streamed, streamedAt, err := listenPlain()
	if err != nil {
		return err
	}
	*to = Ends{Attacked: attackedAt, Streamed: streamedAt}
	go acceptAndClose(attacked)
	go s.plainly(func(memory []byte) error {
		fd, _, err := unix.Accept4(streamed, unix.SOCK_CLOEXEC)
		if err != nil {
			return err
		}
		return s.fill(memory, func(p []byte) (int, error) { return unix.Read(fd, p) })
	})
	return nil
}

func listenPlain() (fd int, address string, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		return 0, "", err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return 0, "", err
	}
	return fd, fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port), nil
}

func acceptAndClose(fd int) {
	for {
		if conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC); err == nil {
			_ = unix.Close(conn)
		}
	}
}

// StreamPlain writes to plain ends until its process ends.
func (s *Side) StreamPlain(to string, _ *forked.Nothing) error {
	peer, err := netip.ParseAddrPort(to)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: peer.Addr().As4(), Port: int(peer.Port())}); err != nil {
		return err
	}
	go s.plainly(func(memory []byte) error {
		return s.fill(memory, func(p []byte) (int, error) { return unix.Write(fd, p) })
	})
	return nil
}

// plainly runs one end of a stream with the memory that an engine would have.
func (s *Side) plainly(run func(memory []byte) error) {
	memory, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		err = run(memory)
	}
	s.failed.Store(&err)
}

// fill moves pieces of the memory by a system call, again and again, and counts them.
func (s *Side) fill(memory []byte, move func([]byte) (int, error)) error {
	for at := 0; ; {
		n, err := move(memory[at:min(at+piece, len(memory))])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("the stream ended")
		}
		s.moved.Add(int64(n))
		at = (at + n) % len(memory)
	}
}
