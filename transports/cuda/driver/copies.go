//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"github.com/tent-engine/tent/gocore/mem"
)

// Copies are ranges that a Burst has posted. One goroutine uses them at a time.
type Copies struct {
	ordinal int
	flight  C.tc_flight
	end     error // of copies that have ended
}

// Lanes is the number of streams for copies that a device has.
const Lanes = C.TC_LANES

// Burst posts several Copies by one call of C. One goroutine uses it at a time.
type Burst struct {
	to, from, bytes []uint64 // ranges of all of them
	of              [BurstMost]*Copies
	list            [BurstMost]C.tc_copies
	n               int
}

// BurstMost bounds the Copies of a Burst.
const BurstMost = 8

// Begin lists Copies, which a device makes behind those of its lane; Add lists their ranges. It fails, and lists
// nothing, where the device is not to be used.
func (b *Burst) Begin(c *Copies, ordinal, lane int) error {
	c.ordinal, c.flight, c.end = ordinal, C.tc_flight{}, nil
	if err := process().usable("cuda.copy", ordinal); err != nil {
		return err
	}
	b.of[b.n] = c
	b.list[b.n] = C.tc_copies{device: C.int(ordinal), lane: C.int(lane), first: C.size_t(len(b.to))}
	b.n++
	return nil
}

// ByKernel lets the kernel of PrepareKernel copy the ranges of the last Begin, where they are several short ones. All
// of it is memory of devices, open to the one that copies: a kernel that reaches other memory ends its device.
func (b *Burst) ByKernel() { b.list[b.n-1].by_kernel = 1 }

// Add appends a range to the Copies of the last Begin: to gets that many bytes of from. A range that goes on at both
// ends makes the one before it longer. Ranges of one Copies have no order and do not overlap. Each end is memory of a
// device, or pinned memory of the host.
func (b *Burst) Add(to, from uintptr, bytes uint64) {
	c := &b.list[b.n-1]
	if n := len(b.to); c.count > 0 && b.to[n-1]+b.bytes[n-1] == uint64(to) && b.from[n-1]+b.bytes[n-1] == uint64(from) {
		b.bytes[n-1] += bytes
		return
	}
	b.to, b.from, b.bytes = append(b.to, uint64(to)), append(b.from, uint64(from)), append(b.bytes, bytes)
	c.count++
}

// Post queues all that is listed, in order, and empties the list. It waits for no stream of the program. Those that
// fail have ended, alone, and nothing of them is under way. Copies.Finish must follow for each.
func (b *Burst) Post() {
	if b.n > 0 {
		C.tc_post(&b.list[0], C.size_t(b.n), numbers(b.to), numbers(b.from), numbers(b.bytes))
	}
	for i, c := range b.of[:b.n] {
		b.of[i] = nil
		if flight := &b.list[i].flight; flight.code == 0 {
			c.flight = *flight
		} else {
			c.ended(C.tc_end(flight))
		}
	}
	b.n, b.to, b.from, b.bytes = 0, b.to[:0], b.from[:0], b.bytes[:0]
}

// Finish returns when all ranges are there, or none will come any more; after Ended at once.
func (c *Copies) Finish() error {
	if !c.Ended() {
		c.ended(C.tc_finish(&c.flight))
	}
	return c.end
}

// Ended reports whether the ranges have failed or a Round has seen their end, or nothing is under way.
func (c *Copies) Ended() bool { return c.flight.event == 0 }

func (c *Copies) ended(r C.tc_result) {
	c.flight, c.end = C.tc_flight{}, process().failed("cuda.copy", c.ordinal, r)
}

// Round asks for the ends of several Copies by one call of C. One goroutine uses it at a time.
type Round struct {
	of      [RoundMost]*Copies
	flights [RoundMost]C.tc_flight
	n       int
}

// RoundMost bounds the Copies of a Round: eight for each stream of a device.
const RoundMost = 8 * Lanes

// Add lists Copies to ask about; those that have ended are left out.
func (r *Round) Add(c *Copies) {
	if !c.Ended() {
		r.of[r.n], r.flights[r.n] = c, c.flight
		r.n++
	}
}

// Ask asks about the listed Copies and empties the list. It does not block; see Copies.Ended.
func (r *Round) Ask() {
	if r.n > 0 {
		C.tc_ended(&r.flights[0], C.size_t(r.n))
	}
	for i, c := range r.of[:r.n] {
		switch r.of[i] = nil; r.flights[i].code {
		case 0:
			c.flight, c.end = C.tc_flight{}, nil
		case C.TC_NOT_READY:
		default:
			c.ended(C.tc_end(&r.flights[i]))
		}
	}
	r.n = 0
}

func numbers(list []uint64) *C.uint64_t { return (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(list))) }

// Pin allocates memory of the host that devices reach without the driver's help. Unpin gives it back.
func Pin(ordinal int, bytes uint64) (uintptr, error) {
	l := process()
	if err := l.usable("cuda.pin", ordinal); err != nil {
		return 0, err
	}
	var addr C.uint64_t
	err := l.failed("cuda.pin", ordinal, C.tc_pin(C.int(ordinal), C.uint64_t(bytes), &addr))
	return uintptr(addr), err
}

// InUse returns a device that this process uses already, -1 if there is none. Another one would get a context, which
// takes hundreds of megabytes of it.
func InUse() int {
	l := process()
	for i := range l.devices {
		if l.usable("cuda.keep", i) == nil && C.tc_in_use(C.int(i)) != 0 {
			return i
		}
	}
	return -1
}

// Keep pins memory of the program, so that devices reach it without the driver's help. Unkeep ends that. It fails where
// a device would need another address for it.
func Keep(ordinal int, addr uintptr, bytes uint64) error {
	l := process()
	if err := l.usable("cuda.keep", ordinal); err != nil {
		return err
	}
	return l.failed("cuda.keep", ordinal, C.tc_keep(C.int(ordinal), C.uint64_t(addr), C.uint64_t(bytes)))
}

// Unkeep lets memory go that Keep has pinned. The driver waits for all copies of the process.
func Unkeep(ordinal int, addr uintptr) error {
	return process().failed("cuda.unkeep", ordinal, C.tc_unkeep(C.int(ordinal), C.uint64_t(addr)))
}

// Pinned reports whether the driver knows all of a range as one piece of pinned memory of the host. Devices know it by
// the same address. No copy lies in two registrations, or in one and beside it: CUDA driver API, cuMemcpyAsync.
func Pinned(addr uintptr, bytes uint64) bool {
	var place C.tc_place
	r := C.tc_locate(C.uint64_t(addr), &place)
	first, size := uint64(place.base), uint64(place.bytes)
	return r.code == 0 && place._type == C.TC_MEMORYTYPE_HOST && uint64(addr) >= first &&
		mem.Contains(size, uint64(addr)-first, bytes) && C.tc_elsewhere() == 0
}

// Unpin gives back memory of Pin.
func Unpin(ordinal int, addr uintptr) error {
	return process().failed("cuda.unpin", ordinal, C.tc_unpin(C.int(ordinal), C.uint64_t(addr)))
}
