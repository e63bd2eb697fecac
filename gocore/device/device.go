// Package device is the contract of platforms: the drivers of accelerators, as far as tent asks them. A platform finds
// the device of an address; it gives such memory, copies it, and hands it to other drivers. It moves no slices:
// transports do that, also those of a GPU.
//
// An engine is given its platforms (transports/all lists those of a build) and asks them at each registration. So a
// bare address, or a location that nobody set, is never taken for memory of the host when it is not.
//
// Platforms load their vendor's library while the program runs, and never at import. This package needs no cgo. Tests
// have a platform without hardware, and rules that every platform keeps: device/devicetest.
//
// # Plug-ins
//
// The device plug-in of the transports seed (device_plugin_t) becomes a Platform call by call. These are alloc, free,
// memcpy_sync, query_location (Locate), get_device_count and get_device_pci_bus_id (Devices). Parts that it lacks are
// optional here: Exporter, Flushing, Streams.
package device

import (
	"fmt"
	"strings"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Platform is one kind of devices of this machine. Its methods may be called from any goroutine and any thread; they
// leave the calling thread's current device as it was. Errors are *errs.Error.
type Platform interface {
	// Name is that of the driver or plug-in, for people: "cuda".
	Name() string
	// Kind is the kind of its memory, which locations begin with. An engine has one platform of a kind.
	Kind() mem.Kind
	// Check says why this process can use no device of it, or nil. It is cheap and leaves nothing behind.
	Check() error
	// Devices lists those that this process sees, by ordinal.
	Devices() ([]Info, error)
	// Locate returns the parts of [addr, addr+size) that the platform knows, in the order of their addresses. They do
	// not overlap and do not leave the range. None means that the range is none of its business. It is called for
	// memory of all kinds, at each registration, and costs microseconds. An error means that the driver cannot say.
	Locate(addr uintptr, size uint64) ([]Span, error)
	// Allocate returns zeroed memory of a device, Free takes it back. DeviceNotFound, OutOfMemory.
	Allocate(ordinal int, size uint64) (addr uintptr, err error)
	Free(addr uintptr, size uint64) error
	// Copy copies n bytes, which do not overlap, and returns when they are there. Each end is memory of the host or of
	// a device of this platform. It waits for no stream of the program: only bytes that are final are copied.
	Copy(to, from uintptr, n uint64) error
}

// Exporter is a Platform with memory that other drivers can import.
type Exporter interface {
	// Export returns a dma-buf that holds the range. The caller closes its descriptor. An error is a reason and no
	// failure: memory of some allocators cannot be exported.
	Export(addr uintptr, size uint64) (mem.DMABuf, error)
}

// Flushing is a Platform with devices that may see the bytes of a NIC later than the NIC has placed them.
type Flushing interface {
	// Landing says how they become visible to a device, nil where they always are. Its Flush may be called for as long
	// as the process lives.
	Landing(ordinal int) *mem.Landing
}

// Streams is a Platform with queues of work. A transfer can wait for the work in one, and one for a transfer. Handles
// are the vendor's own (a CUstream), foreign to Go, or those of SplitStream. Neither call waits.
type Streams interface {
	// Gate returns a gate that opens when all work that is in the stream now has been carried out.
	Gate(stream uintptr) (Gate, error)
	// Hold makes the work that enters the stream from now on wait for the latch. TooManyRequests, or an error where the
	// driver has no such wait.
	Hold(stream uintptr) (Latch, error)
}

// Wired is a Platform that knows how its devices are connected with each other.
type Wired interface {
	// Wiring returns the known ways. An error is a reason and no failure: the vendor's library may be missing.
	Wiring() (Wiring, error)
}

// Wiring says how devices are connected.
type Wiring struct {
	// Ways has the way between each pair of devices, by ordinals, in the words of `nvidia-smi topo`. These are "NV12"
	// for twelve NVLinks, "PIX", "PXB", "PHB", "NODE" and "SYS"; "" where it is not known.
	Ways [][]string
	// Fabrics has the NVLink domain over several hosts of each device, by ordinal; nil where it is in none.
	Fabrics []*Fabric
	// Apart says why memory of a device cannot be given to other hosts by that, by ordinal; "" where it can.
	Apart []string
}

// Fabric is a domain of multi-node NVLink. Memory moves between devices whose cluster and clique are equal.
type Fabric struct {
	Cluster [16]byte
	Clique  uint32
}

// SplitStream returns the vendor's handle in a term's, and the ordinal of its device. A default stream has the same
// handle on every device (0, 1 or 2). So numbers below 2^16, where no pointer is, hold the ordinal, too:
// (ordinal+1)<<2 | handle. It is -1 where none is said: a default stream is that of the calling thread's device then.
func SplitStream(term uint64) (handle uintptr, ordinal int) {
	if term >= 1<<16 {
		return uintptr(term), -1
	}
	return uintptr(term & 3), int(term>>2) - 1
}

// Gate opens once. One goroutine uses it.
type Gate interface {
	// Open reports whether it is open, without waiting. An error ends the wait: the stream has failed.
	Open() (bool, error)
	// Close gives it back, open or not.
	Close()
}

// Latch is a word of 32 bits, 0 at first, that a stream waits for. Any goroutine may use it, one at a time.
type Latch interface {
	// Word is the address of the word for work on devices. It is theirs to read until Close.
	Word() uint64
	// Release lets the stream go on, by a value that is not 0. It is one store, so it may be done under any lock.
	Release(value uint32)
	// Close gives it back. It was released.
	Close()
}

// Info describes a device.
type Info struct {
	mem.Device
	Name string // of the product, for people
	Node int    // NUMA node that it is near to, -1 if that is not known
	// Lost is the error that has ended it for this process, nil while it works.
	Lost *errs.Error
}

// Span is a part of a range that a platform knows.
type Span struct {
	Addr    uintptr
	Size    uint64
	Ordinal int  // of the device that has it; Pinned for memory of the host
	Managed bool // the driver moves its pages between host and device: no other driver can hold them
	// Allocation is the name of the allocation that it is part of, see mem.Device.
	Allocation uint64
}

// Pinned is the ordinal of memory of the host that the driver has pinned: every transport of the host can use it.
const Pinned = -1

// Place is the owner of a range of memory.
type Place struct {
	Platform   Platform // nil: memory of the host, which is all that follows then
	Ordinal    int
	Managed    bool
	Allocation uint64 // 0 if the range has several
}

// Location is the place in words: "cuda:1", and "*" for memory of the host. The kernel knows its node.
func (p Place) Location() mem.Location {
	if p.Platform == nil {
		return mem.Wildcard
	}
	return mem.Location(fmt.Sprintf("%v:%d", p.Platform.Kind(), p.Ordinal))
}

// Unsure is the error of Find where a platform could not say.
type Unsure struct {
	Platform Platform
	Err      error
}

func (u *Unsure) Error() string {
	return fmt.Sprintf("platform %s cannot say whose memory it is: %v", u.Platform.Name(), u.Err)
}

// Unwrap returns the platform's own error.
func (u *Unsure) Unwrap() error { return u.Err }

// Find asks platforms for the owner of a range. Memory that none of them knows is the host's. The error is *Unsure, or
// InvalidArgument for a range that is not all of one device or all of the host.
func Find(platforms []Platform, addr uintptr, size uint64) (Place, error) {
	var found []owned
	for _, p := range platforms {
		spans, err := p.Locate(addr, size)
		if err != nil {
			return Place{}, &Unsure{p, err}
		}
		for _, s := range spans {
			if s.Ordinal != Pinned {
				found = append(found, owned{s, p})
			}
		}
	}
	if len(found) == 0 {
		return Place{}, nil
	}
	first := found[0]
	place := Place{first.platform, first.Ordinal, first.Managed, first.Allocation}
	next := addr
	for _, s := range found {
		if s.Addr != next || s.platform != first.platform || s.Ordinal != first.Ordinal {
			return Place{}, mixed(found, addr, size)
		}
		next += uintptr(s.Size)
		place.Managed = place.Managed || s.Managed
		if s.Allocation != place.Allocation {
			place.Allocation = 0
		}
	}
	if next != addr+uintptr(size) {
		return Place{}, mixed(found, addr, size)
	}
	return place, nil
}

// owned is a span and its platform.
type owned struct {
	Span
	platform Platform
}

// mixed is the error of a range with several owners. It names up to six parts.
func mixed(found []owned, addr uintptr, size uint64) error {
	var parts []string
	next, end := addr, addr+uintptr(size)
	part := func(of string, from, to uintptr) {
		if from < to {
			parts = append(parts, fmt.Sprintf("%s has %d bytes at %#x", of, to-from, from))
		}
	}
	for _, s := range found {
		part("the host", next, s.Addr)
		part(string(Place{Platform: s.platform, Ordinal: s.Ordinal}.Location()), s.Addr, s.Addr+uintptr(s.Size))
		next = max(next, s.Addr+uintptr(s.Size))
	}
	part("the host", next, end)
	if len(parts) > 6 {
		parts = append(parts[:6], "and so on")
	}
	return errs.New(errs.InvalidArgument, "register", "%d bytes at %#x are not of one memory: %s", size, addr,
		strings.Join(parts, ", ")).WithHint("register the part of each device, and of the host, as a region of its own")
}
