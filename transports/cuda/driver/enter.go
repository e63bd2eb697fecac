//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import "runtime"

// Visit is the time in which a device's context is current on a goroutine's thread.
type Visit struct{ mode C.int }

// Enter makes the primary context of a device current, for calls of other libraries of the vendor. The goroutine keeps
// its thread until Leave, which the same goroutine calls.
func Enter(ordinal int) (v Visit, err error) {
	l := process()
	if err := l.usable("cuda.enter", ordinal); err != nil {
		return v, err
	}
	runtime.LockOSThread()
	if r := C.tc_enter_device(C.int(ordinal), &v.mode); r.code != 0 {
		runtime.UnlockOSThread()
		return v, l.failed("cuda.enter", ordinal, r)
	}
	return v, nil
}

// Leave makes the context current that was it before.
func (v Visit) Leave() {
	C.tc_leave_device(v.mode)
	runtime.UnlockOSThread()
}
