package acl

/*
#include "shim.h"
*/
import "C"

import (
	"runtime"
	"slices"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Platform is the NPUs of this process. Its zero value is ready; all of a process share the library. Its methods may be
// called from any goroutine and thread.
type Platform struct{}

var _ device.Platform = Platform{}

// Name implements device.Platform: the API's.
func (Platform) Name() string { return "acl" }

// Kind implements device.Platform.
func (Platform) Kind() mem.Kind { return mem.Npu }

// Check implements device.Platform. The first call of a process loads the library, which stays.
func (Platform) Check() error { return process().absent }

// Devices implements device.Platform.
func (Platform) Devices() ([]device.Info, error) {
	l := process()
	return slices.Clone(l.devices), l.absent
}

// Current returns the device of the calling thread, or -1 if nobody chose one there.
func Current() int {
	if process().absent != nil {
		return -1
	}
	return int(C.ta_current())
}

// Usable returns why a device cannot be used, nil if it can.
func Usable(ordinal int) error { return process().usable("acl", ordinal) }

// Adopt makes the context of a device current on the calling goroutine's thread, for good. The goroutine has locked its
// thread and never unlocks it, so the thread ends with the goroutine.
func Adopt(ordinal int) error {
	if err := process().usable("acl.adopt", ordinal); err != nil {
		return err
	}
	return failed("acl.adopt", ordinal, C.ta_adopt(C.int(ordinal)))
}

// Pinned reports whether the library knows both ends of a range as memory of the host that it has pinned.
func Pinned(addr uintptr, bytes uint64) bool {
	for _, at := range [...]uintptr{addr, addr + uintptr(bytes) - 1} {
		var place C.ta_place
		if r := C.ta_locate(C.uint64_t(at), &place); r.code != 0 || place._type != C.TA_HOST {
			return false
		}
	}
	return true
}

// spot is the device that has an address, -1 for the host. [base, end) around the address is of one allocation, as far
// as the library knows.
type spot struct {
	ordinal   int
	managed   bool
	base, end uintptr
}

func (a spot) same(b spot) bool { return a.ordinal == b.ordinal && a.managed == b.managed }

// at asks for one address.
func at(addr uintptr) (spot, error) {
	var place C.ta_place
	if r := C.ta_locate(C.uint64_t(addr), &place); r.code != 0 {
		return spot{}, failed("acl.locate", -1, r)
	}
	s := spot{ordinal: int(place.device), managed: place._type == C.TA_MANAGED, base: addr, end: addr + 1}
	if base, end := uintptr(place.base), uintptr(place.base)+uintptr(place.bytes); base <= addr && addr < end {
		s.base, s.end = base, end
	}
	return s, nil
}

// stepBytes is the largest page of a device. Memory of two devices does not share one.
const stepBytes = 2 << 20

// Locate implements device.Platform. Of memory of the host it looks at both ends alone: memory of a device has the
// host's around it at most.
func (Platform) Locate(addr uintptr, size uint64) (spans []device.Span, err error) {
	if l := process(); l.absent != nil {
		return nil, l.absent
	}
	end := addr + uintptr(size)
	first, err := at(addr)
	if err != nil || size == 0 {
		return nil, err
	}
	last, err := at(end - 1)
	if err != nil || first.ordinal < 0 && last.ordinal < 0 {
		return nil, err
	}
	for next, here := addr, first; next < end; {
		stop, after, err := extent(next, end, here)
		if err != nil {
			return nil, err
		}
		if here.ordinal >= 0 {
			spans = append(spans, device.Span{Addr: next, Size: uint64(stop - next), Ordinal: here.ordinal,
				Managed: here.managed})
		}
		next, here = stop, after
	}
	return spans, nil
}

// extent returns the end of the memory at next, at most limit, and the memory behind it.
func extent(next, limit uintptr, here spot) (stop uintptr, after spot, err error) {
	if stop = min(here.end, limit); stop > next+1 { // the allocation is known
		if stop < limit {
			after, err = at(stop)
		}
		return stop, after, err
	}
	for known := next; known < limit-1; {
		look := min(known+stepBytes, limit-1)
		there, err := at(look)
		switch {
		case err != nil:
			return 0, spot{}, err
		case !there.same(here):
			return border(known, look, here)
		}
		known = look
	}
	return limit, spot{}, nil
}

// border finds the first address behind low with memory of another kind than here; there is some at high.
func border(low, high uintptr, here spot) (stop uintptr, after spot, err error) {
	if after, err = at(high); err != nil {
		return 0, after, err
	}
	for high-low > 1 {
		middle := low + (high-low)/2
		there, err := at(middle)
		switch {
		case err != nil:
			return 0, there, err
		case there.same(here):
			low = middle
		default:
			high, after = middle, there
		}
	}
	return high, after, nil
}

var allocations device.Allocations[int] // the ordinal of each

// Allocate implements device.Platform.
func (Platform) Allocate(ordinal int, size uint64) (uintptr, error) {
	if err := process().usable("acl.allocate", ordinal); err != nil {
		return 0, err
	}
	var addr C.uint64_t
	if r := C.ta_allocate(C.int(ordinal), C.uint64_t(size), &addr); r.code != 0 {
		return 0, failed("acl.allocate", ordinal, r)
	}
	allocations.Add(uintptr(addr), size, ordinal)
	return uintptr(addr), nil
}

// Free implements device.Platform.
func (Platform) Free(addr uintptr, size uint64) error {
	return allocations.Free("acl.free", addr, size, func(ordinal int) error {
		return failed("acl.free", ordinal, C.ta_free(C.int(ordinal), C.uint64_t(addr)))
	})
}

// Copy implements device.Platform. Between two devices the bytes go through memory of the host.
func (Platform) Copy(to, from uintptr, n uint64) error {
	if n == 0 {
		return nil
	}
	if l := process(); l.absent != nil {
		return l.absent
	}
	var ordinal C.int
	r := C.ta_copy(C.uint64_t(to), C.uint64_t(from), C.uint64_t(n), &ordinal)
	switch r.code {
	case C.TA_HOSTS:
		if fault := mem.Copy(mem.Bytes(to, int(n)), mem.Bytes(from, int(n))); fault != nil {
			return errs.MemoryGone("acl.copy", errs.SideLocal)
		}
		return nil
	case C.TA_DEVICES:
		return through(to, from, n)
	}
	return failed("acl.copy", int(ordinal), r)
}

// throughBytes is the part of a copy between two devices that is in memory of the host at once.
const throughBytes = 4 << 20

// through copies from one device to another by way of the host.
func through(to, from uintptr, n uint64) error {
	room := make([]byte, min(n, throughBytes))
	between := mem.AddressOf(room)
	for done := uint64(0); done < n; done += uint64(len(room)) {
		some := min(n-done, uint64(len(room)))
		for _, leg := range [...][2]uintptr{{between, from + uintptr(done)}, {to + uintptr(done), between}} {
			var ordinal C.int
			r := C.ta_copy(C.uint64_t(leg[0]), C.uint64_t(leg[1]), C.uint64_t(some), &ordinal)
			if r.code != 0 {
				return failed("acl.copy", int(ordinal), r)
			}
		}
	}
	runtime.KeepAlive(room)
	return nil
}
