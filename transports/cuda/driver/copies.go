//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import "unsafe"

// Copies is ranges to copy: To[i] gets Bytes[i] bytes of From[i]. Ranges of one call have no order and do not overlap.
// One goroutine uses it at a time.
type Copies struct {
	To, From, Bytes []uint64
	ordinal         int
	flight          C.tc_flight
	end             error // of copies that have ended
}

// Lanes is the number of streams for copies that a device has.
const Lanes = C.TC_LANES

// Add appends a range, or makes the last one longer where both of its ends go on.
func (c *Copies) Add(to, from uintptr, bytes uint64) {
	if n := len(c.To); n > 0 && c.To[n-1]+c.Bytes[n-1] == uint64(to) && c.From[n-1]+c.Bytes[n-1] == uint64(from) {
		c.Bytes[n-1] += bytes
		return
	}
	c.To, c.From, c.Bytes = append(c.To, uint64(to)), append(c.From, uint64(from)), append(c.Bytes, bytes)
}

// Reset empties the list and keeps its memory.
func (c *Copies) Reset() { c.To, c.From, c.Bytes = c.To[:0], c.From[:0], c.Bytes[:0] }

// Post queues the ranges for the copy engines of a device, behind those of its lane. Finish must follow. Each end is
// memory of a device, or pinned memory of the host. It waits for no stream of the program. After an error nothing of it
// is under way.
func (c *Copies) Post(ordinal, lane int) error {
	l := process()
	c.ordinal, c.flight, c.end = ordinal, C.tc_flight{}, nil
	if err := l.usable("cuda.copy", ordinal); err != nil || len(c.To) == 0 {
		return err
	}
	r := C.tc_post(C.int(ordinal), C.int(lane), numbers(c.To), numbers(c.From), numbers(c.Bytes), C.size_t(len(c.To)),
		&c.flight)
	return l.failed("cuda.copy", ordinal, r)
}

// Finish returns when all ranges of Post are there, or none will come any more; after Ended at once.
func (c *Copies) Finish() error {
	if !c.Ended() {
		c.ended(C.tc_finish(&c.flight))
	}
	return c.end
}

// Ended reports whether a Round has seen the end of Post's ranges, or nothing is under way.
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

// RoundMost bounds the Copies of a Round: two for each stream of a device.
const RoundMost = 2 * Lanes

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

// Keep pins memory of the program, so that devices reach it without the driver's help. Unkeep ends that.
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

// Pinned reports whether the driver knows both ends of a range as pinned memory of the host.
func Pinned(addr uintptr, bytes uint64) bool {
	for _, at := range [...]uintptr{addr, addr + uintptr(bytes) - 1} {
		var place C.tc_place
		if r := C.tc_locate(C.uint64_t(at), &place); r.code != 0 || place._type != memoryOfHost {
			return false
		}
	}
	return true
}

// memoryOfHost is CU_MEMORYTYPE_HOST.
const memoryOfHost = 1

// Unpin gives back memory of Pin.
func Unpin(ordinal int, addr uintptr) error {
	return process().failed("cuda.unpin", ordinal, C.tc_unpin(C.int(ordinal), C.uint64_t(addr)))
}
