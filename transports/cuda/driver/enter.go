//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import (
	"runtime"

	"github.com/tent-engine/tent/gocore/mem"
)

// Visit is the time in which a device's context is current on a goroutine's thread.
type Visit struct{ mode C.int }

// Enter makes the primary context of a device current, for calls of other libraries of the vendor. The goroutine keeps
// its thread until Leave, which the same goroutine calls.
func Enter(ordinal int) (Visit, error) {
	if err := process().usable("cuda.enter", ordinal); err != nil {
		return Visit{}, err
	}
	return Reenter(ordinal)
}

// Reenter is Enter also for a device that is lost: other libraries are asked there for the ends of work of before.
func Reenter(ordinal int) (v Visit, err error) {
	l := process()
	if err = l.seen("cuda.enter", ordinal); err != nil {
		return v, err
	}
	runtime.LockOSThread()
	entered := C.tc_enter_device(C.int(ordinal))
	if entered.end.code != 0 {
		runtime.UnlockOSThread()
		return v, l.failed("cuda.enter", ordinal, entered.end)
	}
	return Visit{entered.mode}, nil
}

// Leave makes the context current that was it before.
func (v Visit) Leave() {
	C.tc_leave_device(v.mode)
	runtime.UnlockOSThread()
}

// Fetch copies memory of a device into the host's, and returns when it is there. It allocates nothing.
func Fetch(ordinal int, into []byte, from uintptr) error {
	l := process()
	if err := l.usable("cuda.copy", ordinal); err != nil || len(into) == 0 {
		return err
	}
	to := C.uint64_t(mem.AddressOf(into))
	r := C.tc_copy(C.int(ordinal), to, C.uint64_t(from), C.uint64_t(len(into)))
	runtime.KeepAlive(into)
	return l.failed("cuda.copy", ordinal, r)
}
