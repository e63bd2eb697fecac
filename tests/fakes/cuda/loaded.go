//go:build cgo

package cuda

import (
	"time"
	"unsafe"

	"github.com/tent-engine/tent/tests/fakes/loaded"
)

// Loaded is the library in this process, a child of a test. Its methods may be called from any goroutine; those about
// the current context need a locked thread. An error of Inject that stays does so in the current context. Its function
// "copy" is the copy engine, whose errors come late.
type Loaded struct{ loaded.Library }

// Stats are counters of the library in this process. Those of things that are open return to 0.
type Stats struct {
	Allocations, Imports, Handles, Reservations, Mappings, Pinned, Streams, Events, Retained int64

	Depth                  int64 // of this thread's stack of contexts
	Copies, Batches, Calls int64
	Stale                  int64 // ends of copies in memory that its owner had freed
	Files                  int64 // descriptors that the library holds
	Peers                  int64 // contexts that are open to another device, in one direction each
	Launches               int64 // of the kernel
}

// Load returns the library that TENT_LIBCUDA names.
func Load() (*Loaded, error) {
	library, err := loaded.Open("TENT_LIBCUDA", "fakecuda_")
	return &Loaded{library}, err
}

// Forgive ends sticky errors, as no driver does: a test can give its memory back.
func (l *Loaded) Forgive() { l.Number("forgive") }

// Green makes a green context of a device current on this thread, where its primary one is current. Ungreen ends that.
func (l *Loaded) Green(device int) error { return l.Code("green", uint64(device)) }

// Ungreen takes a green context from this thread.
func (l *Loaded) Ungreen() error { return l.Code("ungreen") }

// Reset ends the context of a device, as cudaDeviceReset does.
func (l *Loaded) Reset(device int) error { return l.Code("reset", uint64(device)) }

// Flushes returns the number of calls that made bytes of NICs visible to a device, with waits for a word that do so.
func (l *Loaded) Flushes(device int) int { return int(l.Number("flushes", uint64(device))) }

// Stats returns the counters.
func (l *Loaded) Stats() (s Stats) {
	l.Counters(unsafe.Pointer(&s))
	return s
}

// Depth returns the number of contexts on this thread's stack.
func (l *Loaded) Depth() int { return int(l.Number("depth")) }

// Enter makes a device's context current on this thread, Leave ends that.
func (l *Loaded) Enter(device int) error { return l.Code("enter", uint64(device)) }

// Leave takes the current context from this thread.
func (l *Loaded) Leave() error { return l.Enter(-1) }

// Stream makes a stream of the current context, EndStream ends one.
func (l *Loaded) Stream() uintptr { return uintptr(l.Number("stream")) }

// BlockingStream makes a stream behind which the default one works, and that behind it.
func (l *Loaded) BlockingStream() uintptr { return uintptr(l.Number("blocking_stream")) }

// EndStream ends a stream; its context is current.
func (l *Loaded) EndStream(s uintptr) error { return l.Code("end_stream", uint64(s)) }

// Capture makes a stream seem to be captured into a graph, or ends that. Meanwhile threads may not allocate or ask for
// events, unless their mode of captures is RELAXED.
func (l *Loaded) Capture(s uintptr, on bool) error {
	return l.Code("capture", uint64(s), loaded.Flag(on))
}

// Work puts a piece of work into a stream: it sets bytes of a device.
func (l *Loaded) Work(at uintptr, value byte, bytes int, stream uintptr) error {
	return l.Code("work", uint64(at), uint64(value), uint64(bytes), uint64(stream))
}

// Loop returns the time of count copies in C by device 0, each with an event that is asked about until it has passed. A
// foreign loop makes its context current around its calls, as a library does on a thread of the program. The calling
// goroutine is locked to its thread.
func (l *Loaded) Loop(to, from uintptr, bytes, count int, foreign bool) time.Duration {
	return time.Duration(l.Number("loop", uint64(to), uint64(from), uint64(bytes), uint64(count), loaded.Flag(foreign)))
}

// Pinned allocates pinned memory of the host, Unpin gives it back. A context is current.
func (l *Loaded) Pinned(bytes int) uintptr { return uintptr(l.Number("pinned", uint64(bytes))) }

// Unpin gives pinned memory back.
func (l *Loaded) Unpin(at uintptr) error { return l.Code("unpin", uint64(at)) }

// Managed allocates memory of which the driver moves the pages, Free gives it back. A context is current.
func (l *Loaded) Managed(bytes int) uintptr { return uintptr(l.Number("managed", uint64(bytes))) }

// Pooled allocates memory of the device's pool, Free gives it back. A context is current.
func (l *Loaded) Pooled(bytes int) uintptr { return uintptr(l.Number("pooled", uint64(bytes))) }

// Free gives the memory of Managed or Pooled back.
func (l *Loaded) Free(at uintptr) error { return l.Code("free", uint64(at)) }

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
	return uintptr(l.Number("chunks", uint64(device), uint64(count), uint64(types)))
}

// FreeChunks unmaps the memory of Chunks.
func (l *Loaded) FreeChunks(at uintptr, count int) error {
	return l.Code("free_chunks", uint64(at), uint64(count))
}
