//go:build cgo

package ascend

/*
#include <stdint.h>
#include <stdlib.h>

static void inject(void *f, const char *name, long nth, int result) {
	((void (*)(const char *, long, int))f)(name, nth, result);
}
static int one(void *f, int a) { return ((int (*)(int))f)(a); }
static int none(void *f) { return ((int (*)(void))f)(); }
static int peek(void *f, void *into, uint64_t at, uint64_t n, int store) {
	return ((int (*)(void *, uint64_t, uint64_t, int))f)(into, at, n, store);
}
static uint64_t number(void *f, uint64_t a) { return ((uint64_t (*)(uint64_t))f)(a); }
static int code(void *f, uint64_t a) { return ((int (*)(uint64_t))f)(a); }
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/tent-engine/tent/tests/fakes/loaded"
)

// Loaded is the runtime in this process, a child of a test. Its methods may be called from any goroutine; those about
// the current device need a locked thread.
type Loaded struct{ loaded.Library }

// Stats are counters of the runtime in this process. Those of memory return to 0.
type Stats struct{ Allocations, Pinned, Copies, Calls int64 }

// Load returns the runtime that TENT_LIBASCENDCL names.
func Load() (*Loaded, error) {
	library, err := loaded.Open("TENT_LIBASCENDCL", "fakeacl_")
	return &Loaded{library}, err
}

func failed(name string, code C.int) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s: error %d", name, code)
}

// Inject makes the nth call of a function from now on fail.
func (l *Loaded) Inject(function string, nth, result int) {
	name := C.CString(function)
	defer C.free(unsafe.Pointer(name))
	C.inject(l.Find("inject"), name, C.long(nth), C.int(result))
}

// Stats returns the counters.
func (l *Loaded) Stats() (s Stats) {
	l.Counters(unsafe.Pointer(&s))
	return s
}

// Enter makes a device current on this thread, as torch_npu does. Nothing ends that.
func (l *Loaded) Enter(device int) error {
	return failed("enter", C.one(l.Find("enter"), C.int(device)))
}

// Current returns the device of this thread, -1 if it has none.
func (l *Loaded) Current() int { return int(C.none(l.Find("current"))) }

// Peek reads bytes of any memory, Poke writes them. No copy of the runtime's is involved.
func (l *Loaded) Peek(into []byte, at uintptr) error {
	return failed("peek", C.peek(l.Find("peek"), unsafe.Pointer(unsafe.SliceData(into)), C.uint64_t(at),
		C.uint64_t(len(into)), 0))
}

// Poke writes bytes of any memory.
func (l *Loaded) Poke(at uintptr, from []byte) error {
	return failed("poke", C.peek(l.Find("peek"), unsafe.Pointer(unsafe.SliceData(from)), C.uint64_t(at),
		C.uint64_t(len(from)), 1))
}

// MallocHost allocates pinned memory of the host, 0 if there is none. FreeHost gives it back.
func (l *Loaded) MallocHost(bytes int) uintptr {
	return uintptr(C.number(l.Find("pinned"), C.uint64_t(bytes)))
}

// FreeHost gives pinned memory back.
func (l *Loaded) FreeHost(at uintptr) error {
	return failed("unpin", C.code(l.Find("unpin"), C.uint64_t(at)))
}
