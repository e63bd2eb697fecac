package traps

import (
	"errors"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/vmem"
)

const (
	slots   = 4  // handlers of others
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
	codeFrom, codeBytes uintptr                // Go's code
	goHandler           uintptr                // gets its faults
	theirs              [slots][signals]action // handlers that were installed later, with their flags and masks
	//lint:ignore U1000 chain_*.s reads it
	reset action // SIG_DFL
)

// keeping guards the repairs of Keep.
var keeping sync.Mutex

// ErrUsedUp is the error of Keep when more handlers were installed than it has entries for.
var ErrUsedUp = errors.New("too many handlers of SIGSEGV and SIGBUS were installed: " +
	"memory that is gone may end the process")

// Keep looks whether Go's handlers of SIGSEGV and SIGBUS are in front, and repairs that. It reports whether it had to.
// It costs a system call a signal where there is nothing to repair. Any goroutine may call it.
func Keep() (repaired bool, err error) {
	keeping.Lock()
	defer keeping.Unlock()
	if goHandler == 0 && !findGo() {
		return false, nil
	}
	ours := entries()
	for _, s := range [...]unix.Signal{unix.SIGSEGV, unix.SIGBUS} {
		found := actionOf(s)
		if found.handler == goHandler || slices.Contains(ours[:], found.handler) {
			continue
		}
		next := actionOf(unix.SIGURG) // Go's, with its flags and mask
		if found.handler > 1 {        // else it is SIG_DFL or SIG_IGN: Go's handler alone is right
			slot := slotFor(s, found.handler)
			if slot == slots {
				return repaired, ErrUsedUp
			}
			theirs[slot][s] = found
			next.handler = ours[slot]
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

// slotFor returns the entry for a handler of a signal: the one that it had before, or else a new one. It returns slots
// if all are used. A handler that was taken away and comes back found the same predecessor as at first. One that was
// installed twice in a row did not; that calls itself with any entry.
func slotFor(s unix.Signal, handler uintptr) int {
	for slot := range slots {
		if have := theirs[slot][s].handler; have == 0 || have == handler {
			return slot
		}
	}
	return slots
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
