// Package hixl calls HIXL, Huawei's library that moves memory of Ascend NPUs between processes and machines.
//
// HIXL is C++. So a shim, libtent_ascend.so, stands between it and tent: one source file that `make ascend-shim`
// compiles, without CANN, against declarations of our own (transports/ascend/shim). It is loaded while the program
// runs, behind libmetadef.so and libcann_hixl.so. Where one of the three is missing, Load says which.
//
// A thread that calls has the ACL context of its engine's device (package acl, Adopt).
package hixl

/*
#cgo linux LDFLAGS: -ldl
#include <stdlib.h>
#include "load.h"
*/
import "C"

import (
	"math"
	"sync"
	"time"
	"unsafe"

	"github.com/tent-engine/tent/gocore/errs"
)

// Load loads the three libraries at the first call of a process, and returns why HIXL cannot be used. They stay.
func Load() error { return load() }

var load = sync.OnceValue(func() error {
	var why [1024]C.char
	if C.load_hixl(&why[0], C.size_t(len(why))) == 0 {
		return nil
	}
	return errs.New(errs.DeviceNotFound, "hixl", "HIXL is not available: %s", C.GoString(&why[0])).
		WithHint("source set_env.sh of CANN 8.5 or newer, and put the library of `make ascend-shim` where the " +
			"dynamic linker finds it, or name it in TENT_LIBASCEND")
})

// Engine is one hixl::Hixl. Its calls may come from several threads at once, but for Close.
type Engine struct{ number C.uint64_t }

// Open makes an engine that listens at "address:port". options are names and values in turn.
func Open(local string, options ...string) (*Engine, Status) {
	name := C.CString(local)
	defer C.free(unsafe.Pointer(name))
	list := (*[1 << 10]*C.char)(C.calloc(C.size_t(len(options)+1), C.size_t(unsafe.Sizeof(name))))
	defer C.free(unsafe.Pointer(list))
	for i, text := range options {
		list[i] = C.CString(text)
		defer C.free(unsafe.Pointer(list[i]))
	}
	e := &Engine{}
	code := C.hixl_create(name, (**C.char)(unsafe.Pointer(list)), &e.number)
	return e, Status(code)
}

// Close ends all links and registrations, and the engine. No other call of it runs, and none follows.
func (e *Engine) Close() { C.hixl_destroy(e.number) }

// Register registers memory of the host or of the device.
func (e *Engine) Register(addr uintptr, bytes uint64, host bool) (handle uint64, s Status) {
	var made C.uint64_t
	var on C.int
	if host {
		on = 1
	}
	s = Status(C.hixl_register(e.number, C.uint64_t(addr), C.uint64_t(bytes), on, &made))
	return uint64(made), s
}

// Deregister ends a registration. No link is there, at neither end.
func (e *Engine) Deregister(handle uint64) Status {
	return Status(C.hixl_deregister(e.number, C.uint64_t(handle)))
}

// Name is the name of another engine, in memory of C. Free gives it back.
type Name struct{ text *C.char }

// NameOf copies the name of an engine.
func NameOf(peer string) Name { return Name{C.CString(peer)} }

// Free gives the memory back; that of the zero value is none.
func (n Name) Free() { C.free(unsafe.Pointer(n.text)) }

// Connect connects to an engine: everything that is registered there now can be reached. It returns within the limit.
func (e *Engine) Connect(peer Name, limit time.Duration) Status {
	return Status(C.hixl_connect(e.number, peer.text, milliseconds(limit)))
}

// Disconnect ends the link to an engine. After Success or NotConnected no byte of its requests moves, and all of them
// are forgotten.
func (e *Engine) Disconnect(peer Name, limit time.Duration) Status {
	return Status(C.hixl_disconnect(e.number, peer.text, milliseconds(limit)))
}

// milliseconds rounds a limit up: HIXL counts in them.
func milliseconds(d time.Duration) C.int32_t {
	return C.int32_t(min((d+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
}

// Range is a part of a request: bytes between an address here and one of the peer's process.
type Range struct{ Local, Remote, Bytes uint64 }

var _ [unsafe.Sizeof(Range{}) - unsafe.Sizeof(C.tent_ascend_range{})]struct{} // one layout
var _ [unsafe.Sizeof(C.tent_ascend_range{}) - unsafe.Sizeof(Range{})]struct{}

// Transfer posts a request; its ranges have no order. The request is to be asked about until it has ended. It allocates
// nothing: the number of the request goes where the caller wants it.
func (e *Engine) Transfer(peer Name, write bool, ranges []Range, request *uint64) Status {
	var on C.int
	if write {
		on = 1
	}
	return Status(C.hixl_transfer(e.number, peer.text, on, unsafe.Pointer(unsafe.SliceData(ranges)),
		C.size_t(len(ranges)), (*C.uint64_t)(request)))
}

// Ask is a question about a request, and its answer.
type Ask struct {
	Request uint64
	Code    Status
	State   State
}

var _ [unsafe.Sizeof(Ask{}) - unsafe.Sizeof(C.tent_ascend_ask{})]struct{} // one layout
var _ [unsafe.Sizeof(C.tent_ascend_ask{}) - unsafe.Sizeof(Ask{})]struct{}

// Ask asks about requests. One that has ended by its answer is never asked about again: HIXL has forgotten it.
func (e *Engine) Ask(list []Ask) {
	if len(list) > 0 {
		C.hixl_status(e.number, unsafe.Pointer(unsafe.SliceData(list)), C.size_t(len(list)))
	}
}

// Report returns the text of the exception behind the calling thread's latest Threw.
func Report() string { return C.GoString(C.hixl_report()) }
