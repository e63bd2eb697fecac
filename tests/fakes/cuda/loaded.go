//go:build cgo

package cuda

/*
#include <stdint.h>
#include <stdlib.h>

static void inject(void *f, const char *name, long nth, int result, int sticky) {
	((void (*)(const char *, long, int, int))f)(name, nth, result, sticky);
}
static void one(void *f, int a) { ((void (*)(int))f)(a); }
static int enter(void *f, int a) { return ((int (*)(int))f)(a); }
static int peek(void *f, void *into, uint64_t at, uint64_t n, int store) {
	return ((int (*)(void *, uint64_t, uint64_t, int))f)(into, at, n, store);
}
static uint64_t number(void *f, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
	return ((uint64_t (*)(uint64_t, uint64_t, uint64_t, uint64_t))f)(a, b, c, d);
}
static int code(void *f, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
	return ((int (*)(uint64_t, uint64_t, uint64_t, uint64_t))f)(a, b, c, d);
}
static uint64_t loop(void *f, uint64_t to, uint64_t from, uint64_t n, uint64_t count, int foreign) {
	return ((uint64_t (*)(uint64_t, uint64_t, uint64_t, uint64_t, int))f)(to, from, n, count, foreign);
}
*/
import "C"

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/tent-engine/tent/tests/fakes/loaded"
)

// Loaded is the library in this process, a child of a test. Its methods may be called from any goroutine; those about
// the current context need a locked thread.
type Loaded struct{ loaded.Library }

// Stats are counters of the library in this process. Those of things that are open return to 0.
type Stats struct {
	Allocations, Imports, Handles, Reservations, Mappings, Pinned, Streams, Events, Retained int64

	Depth                  int64 // of this thread's stack of contexts
	Copies, Batches, Calls int64
	Stale                  int64 // ends of copies in memory that its owner had freed
	Files                  int64 // descriptors that the library holds
	Peers                  int64 // contexts that are open to another device, in one direction each
}

// Load returns the library that TENT_LIBCUDA names.
func Load() (*Loaded, error) {
	library, err := loaded.Open("TENT_LIBCUDA", "fakecuda_")
	return &Loaded{library}, err
}

func (l *Loaded) number(name string, a ...uint64) uint64 {
	a = append(a, 0, 0, 0, 0)
	return uint64(C.number(l.Find(name), C.uint64_t(a[0]), C.uint64_t(a[1]), C.uint64_t(a[2]), C.uint64_t(a[3])))
}

func (l *Loaded) code(name string, a ...uint64) error {
	a = append(a, 0, 0, 0, 0)
	return failed(name, C.code(l.Find(name), C.uint64_t(a[0]), C.uint64_t(a[1]), C.uint64_t(a[2]), C.uint64_t(a[3])))
}

func failed(name string, code C.int) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s: error %d", name, code)
}

// Inject makes the nth call of a function from now on fail. A sticky error stays in the current context. The function
// "copy" is the copy engine, whose errors come late.
func (l *Loaded) Inject(function string, nth, result int, sticky bool) {
	name := C.CString(function)
	defer C.free(unsafe.Pointer(name))
	var stays C.int
	if sticky {
		stays = 1
	}
	C.inject(l.Find("inject"), name, C.long(nth), C.int(result), stays)
}

// Forgive ends sticky errors, as no driver does: a test can give its memory back.
func (l *Loaded) Forgive() { C.one(l.Find("forgive"), 0) }

// Flushes returns the number of calls that made bytes of NICs visible to a device.
func (l *Loaded) Flushes(device int) int { return int(l.number("flushes", uint64(device))) }

// Stats returns the counters.
func (l *Loaded) Stats() (s Stats) {
	l.Counters(unsafe.Pointer(&s))
	return s
}

// Peek reads bytes of a device as its owner sees them, Poke writes them. No copy of the driver's is involved.
func (l *Loaded) Peek(into []byte, at uintptr) error {
	return failed("peek", C.peek(l.Find("peek"), unsafe.Pointer(unsafe.SliceData(into)), C.uint64_t(at),
		C.uint64_t(len(into)), 0))
}

// Poke writes bytes of a device.
func (l *Loaded) Poke(at uintptr, from []byte) error {
	return failed("poke", C.peek(l.Find("peek"), unsafe.Pointer(unsafe.SliceData(from)), C.uint64_t(at),
		C.uint64_t(len(from)), 1))
}

// Enter makes a device's context current on this thread, Leave ends that.
func (l *Loaded) Enter(device int) error {
	return failed("enter", C.enter(l.Find("enter"), C.int(device)))
}

// Leave takes the current context from this thread.
func (l *Loaded) Leave() error { return failed("leave", C.enter(l.Find("enter"), -1)) }

// Stream makes a stream of the current context, EndStream ends one.
func (l *Loaded) Stream() uintptr { return uintptr(l.number("stream")) }

// EndStream ends a stream; its context is current.
func (l *Loaded) EndStream(s uintptr) error { return l.code("end_stream", uint64(s)) }

// Capture makes a stream seem to be captured into a graph, or ends that. Meanwhile threads may not allocate or ask for
// events, unless their mode of captures is RELAXED.
func (l *Loaded) Capture(s uintptr, on bool) error {
	var value uint64
	if on {
		value = 1
	}
	return l.code("capture", uint64(s), value)
}

// Work puts a piece of work into a stream: it sets bytes of a device.
func (l *Loaded) Work(at uintptr, value byte, bytes int, stream uintptr) error {
	return l.code("work", uint64(at), uint64(value), uint64(bytes), uint64(stream))
}

// Loop returns the time of count copies in C by device 0, each with an event that is asked about until it has passed. A
// foreign loop makes its context current around its calls, as a library does on a thread of the program. The calling
// goroutine is locked to its thread.
func (l *Loaded) Loop(to, from uintptr, bytes, count int, foreign bool) time.Duration {
	var on C.int
	if foreign {
		on = 1
	}
	return time.Duration(C.loop(l.Find("loop"), C.uint64_t(to), C.uint64_t(from), C.uint64_t(bytes), C.uint64_t(count),
		on))
}

// Pinned allocates pinned memory of the host, Unpin gives it back. A context is current.
func (l *Loaded) Pinned(bytes int) uintptr { return uintptr(l.number("pinned", uint64(bytes))) }

// Unpin gives pinned memory back.
func (l *Loaded) Unpin(at uintptr) error { return l.code("unpin", uint64(at)) }

// ChunkBytes is the size of each chunk of Chunks.
const ChunkBytes = 2 << 20

// Handle types of chunks.
const (
	None    = 0
	PosixFd = 1
	Fabric  = 8
)

// Chunks maps memory of the VMM side by side, as an expandable segment of PyTorch is. 0 means that it failed.
func (l *Loaded) Chunks(device, count, types int) uintptr {
	return uintptr(l.number("chunks", uint64(device), uint64(count), uint64(types)))
}

// FreeChunks unmaps the memory of Chunks.
func (l *Loaded) FreeChunks(at uintptr, count int) error {
	return l.code("free_chunks", uint64(at), uint64(count))
}
