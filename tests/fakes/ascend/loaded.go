//go:build cgo

package ascend

import (
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

// Inject makes the nth call of a function from now on fail.
func (l *Loaded) Inject(function string, nth, result int) {
	l.Library.Inject(function, nth, result, false)
}

// Stats returns the counters.
func (l *Loaded) Stats() (s Stats) {
	l.Counters(unsafe.Pointer(&s))
	return s
}

// Enter makes a device current on this thread, as torch_npu does. Nothing ends that.
func (l *Loaded) Enter(device int) error { return l.Code("enter", uint64(device)) }

// Current returns the device of this thread, -1 if it has none.
func (l *Loaded) Current() int { return int(int32(l.Number("current"))) }

// MallocHost allocates pinned memory of the host, 0 if there is none. FreeHost gives it back.
func (l *Loaded) MallocHost(bytes int) uintptr { return uintptr(l.Number("pinned", uint64(bytes))) }

// FreeHost gives pinned memory back.
func (l *Loaded) FreeHost(at uintptr) error { return l.Code("unpin", uint64(at)) }
