//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import (
	"os"
	"slices"
	"unsafe"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Platform is the CUDA devices of this process. Its zero value is ready; all of a process share the library. Its
// methods may be called from any goroutine and thread.
type Platform struct{}

var (
	_ device.Platform = Platform{}
	_ device.Exporter = Platform{}
	_ device.Flushing = Platform{}
	_ device.Streams  = Platform{}
)

// Name implements device.Platform.
func (Platform) Name() string { return "cuda" }

// Kind implements device.Platform.
func (Platform) Kind() mem.Kind { return mem.Cuda }

// Check implements device.Platform. The first call of a process loads the library, which stays.
func (Platform) Check() error { return process().absent }

// Devices implements device.Platform.
func (Platform) Devices() ([]device.Info, error) {
	l := process()
	list := slices.Clone(l.devices)
	for i := range list {
		list[i].Lost = l.lost[i].Load()
	}
	return list, l.absent
}

// Locate implements device.Platform. It looks at the range from its start as long as that is a device's, and then from
// its end: memory of a device has the host's around it at most.
func (Platform) Locate(addr uintptr, size uint64) ([]device.Span, error) {
	l := process()
	if l.absent != nil {
		return nil, l.absent
	}
	var front, back []device.Span
	next, end := addr, addr+uintptr(size)
	for next < end {
		s, err := l.at(next, next, end)
		if err != nil {
			return nil, err
		}
		if s.Size == 0 {
			break
		}
		front = append(front, s)
		next = s.Addr + uintptr(s.Size)
	}
	for next < end {
		s, err := l.at(end-1, next, end)
		if err != nil {
			return nil, err
		}
		if s.Size == 0 {
			break
		}
		back = append(back, s)
		end = s.Addr
	}
	slices.Reverse(back)
	return append(front, back...), nil
}

// at returns the part of [from, end) in the allocation of an address, of no bytes if no device has it. Memory of the
// host that the driver has pinned is the host's.
func (l *library) at(addr, from, end uintptr) (device.Span, error) {
	var place C.tc_place
	if r := C.tc_locate(C.uint64_t(addr), &place); r.code != 0 {
		return device.Span{}, l.failed("cuda.locate", int(place.device), r)
	}
	if place._type != C.TC_MEMORYTYPE_DEVICE {
		return device.Span{}, nil
	}
	start := max(uintptr(place.base), from)
	stop := min(uintptr(place.base)+uintptr(place.bytes), end)
	return device.Span{Addr: start, Size: uint64(stop - start), Ordinal: int(place.device),
		Managed: place.managed != 0, Allocation: uint64(place.allocation)}, nil
}

// chunkLeast is the least size for which a chunk is made: its size is a multiple of that, on today's devices.
const chunkLeast = 2 << 20

var allocations device.Allocations[allocation]

type allocation struct {
	ordinal int
	mapped  uint64 // bytes of a chunk of the VMM, 0 for memory of cuMemAlloc
}

// Allocate implements device.Platform. Large memory is a chunk, of which other processes get a descriptor; where the
// driver has no chunks that NICs reach too, and for small memory, it is of cuMemAlloc.
func (Platform) Allocate(ordinal int, size uint64) (uintptr, error) {
	l := process()
	if err := l.usable("cuda.allocate", ordinal); err != nil {
		return 0, err
	}
	if size >= chunkLeast && C.tc_nics_reach_chunks(C.int(ordinal)) != 0 {
		if addr, err := AllocateChunk(ordinal, size, Descriptors); errs.CodeOf(err) != errs.NotHere {
			return addr, err
		}
	}
	var addr C.uint64_t
	if r := C.tc_allocate(C.int(ordinal), C.uint64_t(size), &addr); r.code != 0 {
		return 0, l.failed("cuda.allocate", ordinal, r)
	}
	allocations.Add(uintptr(addr), size, allocation{ordinal: ordinal})
	return uintptr(addr), nil
}

// Free implements device.Platform.
func (Platform) Free(addr uintptr, size uint64) error {
	return allocations.Free("cuda.free", addr, size, func(a allocation) error {
		return process().failed("cuda.free", a.ordinal, a.free(addr))
	})
}

func (a allocation) free(addr uintptr) C.tc_result {
	if a.mapped != 0 {
		return C.tc_unmap(C.uint64_t(addr), C.uint64_t(a.mapped), C.uint64_t(a.mapped))
	}
	return C.tc_free(C.int(a.ordinal), C.uint64_t(addr))
}

// Copy implements device.Platform. The copy is the device's that has the first byte of the destination, or else of the
// source.
func (Platform) Copy(to, from uintptr, n uint64) error {
	if n == 0 {
		return nil
	}
	l := process()
	if l.absent != nil {
		return l.absent
	}
	for _, end := range [...]uintptr{to, from} {
		s, err := l.at(end, end, end+1)
		if err != nil {
			return err
		}
		if s.Size == 0 {
			continue
		}
		if err := l.usable("cuda.copy", s.Ordinal); err != nil {
			return err
		}
		return l.failed("cuda.copy", s.Ordinal, C.tc_copy(C.int(s.Ordinal), C.uint64_t(to), C.uint64_t(from),
			C.uint64_t(n)))
	}
	if fault := mem.Copy(mem.Bytes(to, int(n)), mem.Bytes(from, int(n))); fault != nil {
		return errs.MemoryGone("cuda.copy", errs.SideLocal)
	}
	return nil
}

// Export implements device.Exporter. The driver exports whole pages of the host, which have 64 KiB on some machines
// with arm64: the dma-buf holds the pages around the range.
func (Platform) Export(addr uintptr, size uint64) (mem.DMABuf, error) {
	l := process()
	if l.absent != nil {
		return mem.DMABuf{}, l.absent
	}
	s, err := l.at(addr, addr, addr+1)
	if err != nil {
		return mem.DMABuf{}, err
	}
	if s.Size == 0 {
		return mem.DMABuf{}, errs.New(errs.InvalidArgument, "cuda.export", "%d bytes at %#x are of no device", size,
			addr)
	}
	from, whole := pages(addr, size, uint64(os.Getpagesize()))
	var fd C.int
	r := C.tc_export(C.int(s.Ordinal), C.uint64_t(from), C.uint64_t(whole), &fd)
	if r.code != 0 {
		return mem.DMABuf{}, l.failed("cuda.export", s.Ordinal, r)
	}
	return mem.DMABuf{Fd: int(fd), Offset: uint64(addr - from)}, nil
}

// Landing implements device.Flushing. GPUs as Ampere and earlier may see the bytes of a NIC late.
func (Platform) Landing(ordinal int) *mem.Landing {
	l := process()
	if l.absent != nil {
		return nil
	}
	switch C.tc_landing(C.int(ordinal)) {
	case C.TC_SEEN:
		return nil
	case C.TC_LATE:
		return &mem.Landing{Why: errs.New(errs.NotHere, "cuda.landing", "cuda:%d may see the bytes of a NIC late, and "+
			"its driver cannot flush them", ordinal).WithHint("a driver of CUDA 11.3 or later")}
	}
	return &mem.Landing{Flush: func() error {
		if r := C.tc_flush(C.int(ordinal)); r.code != 0 {
			return l.failed("cuda.flush", ordinal, r)
		}
		return nil
	}}
}

// bytesOf is the address of a buffer of Go, for the time of one call.
func bytesOf(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }
