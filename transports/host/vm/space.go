package vm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
)

// answerLasts is the time for which an answer of the kernel about a Space is believed. Copies that follow each other
// share one: it costs as much as a copy of some KiB.
const answerLasts = time.Millisecond

// Space is the address space of a process. It ends with the process, and before that when the process calls exec: pid
// and pidfd are those of another program then. Any goroutine may use it, also after Close.
type Space struct {
	// /proc/PID/maps belongs to the address space there was when it was opened, and is empty behind its end. It needs
	// the right to read, as Reopen does: Yama leaves it. /proc/PID/mem would need the right to attach.
	maps  *os.File
	asked atomic.Int64 // clock.Time of the last answer that it is there
}

// Space returns the address space that the process has now. A file of the process that is found open afterwards, and
// that exec would have closed, is of that one. The error wraps ESRCH when the process has ended.
func (p *Process) Space() (*Space, error) {
	maps, err := os.Open("/proc/" + strconv.Itoa(p.pid) + "/maps")
	if p.Ended() { // then the path may have led to another process, or nowhere
		_ = maps.Close() // nil has an answer to that
		err = unix.ESRCH
	}
	if err != nil {
		return nil, fmt.Errorf("the address space of process %d: %w", p.pid, err)
	}
	return &Space{maps: maps}, nil
}

// Gone reports whether the address space has ended, so that the pid names another one or none. An answer that it is
// there is at most a millisecond old. Nil, our own, is there. Hot: one look at the clock.
func (s *Space) Gone() bool {
	if s == nil {
		return false
	}
	now := clock.Now()
	if now.Sub(clock.Time(s.asked.Load())) < answerLasts {
		return false
	}
	var b [1]byte
	_, err := s.maps.ReadAt(b[:], 0)
	if err == io.EOF || errors.Is(err, unix.ESRCH) {
		return true
	}
	s.asked.Store(int64(now)) // from before the question: we may have been stopped since
	return false
}

// Close gives the descriptor back. A Space that is closed is taken to be there.
func (s *Space) Close() {
	if s != nil {
		_ = s.maps.Close()
	}
}
