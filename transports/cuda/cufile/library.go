//go:build cgo

package cufile

/*
#cgo linux LDFLAGS: -ldl
#include "shim.h"
*/
import "C"

import (
	"sync"
	"unsafe"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/cuda/driver"
)

// library is libcufile in this process, or the reason why there is none.
type library struct {
	absent  error
	batches bool
}

var process = sync.OnceValue(func() library {
	var why [1024]C.char
	switch found := C.cf_load(&why[0], C.size_t(len(why))); found {
	case -1:
		return library{absent: errs.New(errs.DeviceNotFound, "cufile", "no library: %s", C.GoString(&why[0]))}
	case -2:
		return library{absent: errs.New(errs.DeviceNotFound, "cufile", "libcufile lacks %s", C.GoString(&why[0]))}
	default:
		return library{batches: found == 1}
	}
})

// Check says why cuFile cannot be used here, or nil: there is no device, or no library. It does not open its driver.
func Check() error {
	if err := (driver.Platform{}).Check(); err != nil {
		return err
	}
	return process().absent
}

// opened is the driver of this process.
var opened = sync.OnceValues(func() (*Facts, error) {
	if err := Check(); err != nil {
		return nil, err
	}
	var p C.cf_properties
	var version C.int
	if e := C.cf_open(&p, &version); e.err != 0 {
		return nil, errs.New(errs.DeviceNotFound, "cufile", "%s",
			sentence("cuFileDriverOpen", int(e.err), int(e.cu_err))).
			WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	const batchIO = 1 << 1 // CU_FILE_BATCH_IO_SUPPORTED
	f := &Facts{Version: int(version), Native: p.major > 0, Compat: p.control&2 != 0,
		Batches: process().batches && p.features&batchIO != 0,
		RunMost: min(uint64(p.direct_most)<<10, runMost)}
	if f.RunMost == 0 {
		f.RunMost = runMost
	}
	return f, nil
})

// Driver opens the library's driver at its first call, for as long as the process lives.
func Driver() (*Facts, error) { return opened() }

// Adopt makes an open descriptor known, and returns its handle. Drop ends it, and the caller closes the descriptor
// afterwards.
func Adopt(fd int) (uintptr, error) {
	var file unsafe.Pointer
	if e := C.cf_adopt(C.int(fd), &file); e.err != 0 {
		return 0, failed("cuFileHandleRegister", int(e.err), int(e.cu_err))
	}
	return uintptr(file), nil
}

// Drop ends a handle. Nothing is under way with it.
func Drop(file uintptr) { C.cf_drop(pointer(file)) }

// pointer makes a handle of the library a pointer again: it is memory of C.
func pointer(handle uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&handle)) }

// kept are the ranges that are registered with the library: it takes each address once.
var kept = struct {
	sync.Mutex
	of map[span]keeping
}{of: map[span]keeping{}}

// keeping is how often a range is kept.
type keeping struct {
	times   int
	refused bool // by Renew: the library does not know the range
}

type span struct {
	base uintptr
	size uint64
}

// Keep pins memory of a device for the library, until Unkeep. A range may be kept several times.
func Keep(ordinal int, base uintptr, size uint64) error {
	kept.Lock()
	defer kept.Unlock()
	at := span{base, size}
	k := kept.of[at]
	if k.times == 0 {
		here, err := driver.Enter(ordinal)
		if err != nil {
			return err
		}
		defer here.Leave()
		if err := at.register(); err != nil {
			return err
		}
	}
	k.times++
	kept.of[at] = k
	return nil
}

// register and deregister are the library's calls. A context is current.
func (s span) register() error {
	if e := C.cf_keep(C.uint64_t(s.base), C.uint64_t(s.size)); e.err != 0 {
		return failed("cuFileBufRegister", int(e.err), int(e.cu_err))
	}
	return nil
}

func (s span) deregister() error {
	if e := C.cf_unkeep(C.uint64_t(s.base)); e.err != 0 {
		return failed("cuFileBufDeregister", int(e.err), int(e.cu_err))
	}
	return nil
}

// Renew pins the pages that are behind a kept range now. Nothing is under way with the memory by its caller. Where the
// library refuses them, which is no error, it copies through memory of its own; after an error it may know those of
// before.
func Renew(ordinal int, base uintptr, size uint64) (refused, err error) {
	kept.Lock()
	defer kept.Unlock()
	at := span{base, size}
	k := kept.of[at]
	here, err := driver.Enter(ordinal)
	if err != nil {
		return nil, err
	}
	defer here.Leave()
	if !k.refused {
		if err := at.deregister(); err != nil {
			return nil, err
		}
	}
	refused = at.register()
	k.refused = refused != nil
	kept.of[at] = k
	return refused, nil
}

// Unkeep ends one call of Keep. Nothing is under way with the memory by its caller.
func Unkeep(ordinal int, base uintptr, size uint64) error {
	kept.Lock()
	defer kept.Unlock()
	at := span{base, size}
	k := kept.of[at]
	if k.times--; k.times > 0 {
		kept.of[at] = k
		return nil
	}
	delete(kept.of, at)
	if k.refused {
		return nil
	}
	here, err := driver.Enter(ordinal)
	if err != nil {
		return err
	}
	defer here.Leave()
	return at.deregister()
}

// Move carries a run out, and returns when nothing of it is under way. Fewer bytes than asked for are no error: the run
// was cut short.
func Move(r *Run) (uint64, error) {
	here, err := driver.Enter(r.Ordinal)
	if err != nil {
		return 0, err
	}
	defer here.Leave()
	call, write := "cuFileRead", C.int(0)
	if r.Write {
		call, write = "cuFileWrite", 1
	}
	moved := C.cf_move(write, pointer(r.File), C.uint64_t(r.Base), C.uint64_t(r.Into), C.int64_t(r.Offset),
		C.uint64_t(r.Bytes))
	if moved < 0 {
		return 0, ended(call, int64(moved))
	}
	return uint64(moved), nil
}
