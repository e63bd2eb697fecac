package engine

import (
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

// signal is an eventfd for event loops. Raising it twice is raising it once.
type signal struct {
	mu sync.Mutex // against a close between a look at fd and its use
	fd int        // -1 once it is closed
}

func newSignal() (*signal, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errs.Wrap(errs.Internal, "engine: eventfd", err).
			WithHint("raise the limit of open files (ulimit -n)")
	}
	return &signal{fd: fd}, nil
}

// number returns the descriptor, -1 once it is closed.
func (s *signal) number() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fd
}

func (s *signal) raise() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	s.mu.Lock()
	if s.fd >= 0 {
		_, _ = unix.Write(s.fd, one[:]) // EAGAIN: it is raised already
	}
	s.mu.Unlock()
}

func (s *signal) clear() {
	var count [8]byte
	s.mu.Lock()
	if s.fd >= 0 {
		_, _ = unix.Read(s.fd, count[:]) // EAGAIN: it was not raised
	}
	s.mu.Unlock()
}

func (s *signal) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fd := s.fd
	s.fd = -1
	return unix.Close(fd)
}

// ring hands the ids of watched batches that ended to the one thread that drains it. It holds at most one entry for
// each Watch that was asked for.
type ring struct {
	mu  sync.Mutex
	ids []uint64
}

func (r *ring) push(id uint64) {
	r.mu.Lock()
	r.ids = append(r.ids, id)
	r.mu.Unlock()
}

// drain moves up to len(into) ids and returns how many.
func (r *ring) drain(into []uint64) int {
	r.mu.Lock()
	n := copy(into, r.ids)
	rest := copy(r.ids, r.ids[n:])
	r.ids = r.ids[:rest]
	r.mu.Unlock()
	return n
}

// Drain takes ids of watched batches that have ended, and makes the eventfd unreadable before. Callers do not read it:
// beside a close its number may be another file's by then.
func (e *Engine) Drain(into []uint64) int {
	e.signal.clear()
	return e.ring.drain(into)
}
