package traps

import (
	"errors"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/vmem"
)

const (
	slots   = 4  // repairs of a process
	signals = 64 // of the kernel
)

// action is the kernel's struct sigaction.
type action struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// Read by the entries (chain_*.s) in the middle of a fault. Written before the entry is installed.
var (
	//lint:ignore U1000 chain_*.s reads it
	codeFrom, codeBytes uintptr                 // Go's code
	goHandler           uintptr                 // gets its faults
	theirs              [slots][signals]uintptr // handlers that were installed later
)

// repairs is the state of Keep.
var repairs struct {
	mu   sync.Mutex
	used int
}

// ErrUsedUp is the error of Keep when handlers were replaced more often than it can repair.
var ErrUsedUp = errors.New("the handlers of SIGSEGV and SIGBUS were replaced too often: " +
	"memory that is gone may end the process")

// Keep looks whether Go's handlers of SIGSEGV and SIGBUS are in front, and repairs that. It reports whether it had to.
// It costs a system call a signal where there is nothing to repair. Any goroutine may call it.
func Keep() (repaired bool, err error) {
	repairs.mu.Lock()
	defer repairs.mu.Unlock()
	if goHandler == 0 && !findGo() {
		return false, nil
	}
	slot := repairs.used
	for _, s := range [...]unix.Signal{unix.SIGSEGV, unix.SIGBUS} {
		found := actionOf(s)
		switch {
		case inFront(found.handler):
			continue
		case slot == slots:
			return repaired, ErrUsedUp
		}
		next := actionOf(unix.SIGURG) // Go's, with its flags and mask
		if found.handler > 1 {        // else it is SIG_DFL or SIG_IGN: Go's handler alone is right
			theirs[slot][s] = found.handler
			next.handler = entries()[slot]
			repairs.used = slot + 1
		}
		if errno := sigaction(s, &next, nil); errno != 0 {
			return repaired, errno
		}
		repaired = true
	}
	return repaired, nil
}

// findGo learns Go's handler from SIGURG, by which Go preempts goroutines: nobody else has a use for it. It reports
// false where there is none, or no entries for this processor.
func findGo() bool {
	handler := actionOf(unix.SIGURG).handler
	if handler <= 1 || entries()[0] == 0 {
		return false
	}
	from, end, found := vmem.Mapping(handler)
	if !found || entries()[0]-from >= end-from { // it is not ours
		return false
	}
	codeFrom, codeBytes, goHandler = from, end-from, handler
	return true
}

// inFront reports whether a handler is Go's or the newest entry.
func inFront(handler uintptr) bool {
	return handler == goHandler || repairs.used > 0 && handler == entries()[repairs.used-1]
}

func actionOf(s unix.Signal) (a action) {
	sigaction(s, nil, &a)
	return a
}

func sigaction(s unix.Signal, next, before *action) unix.Errno {
	_, _, errno := unix.Syscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(next)),
		uintptr(unsafe.Pointer(before)), unsafe.Sizeof(action{}.mask), 0, 0)
	return errno
}
