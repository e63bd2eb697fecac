//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import "unsafe"

// Copies is ranges to copy: To[i] gets Bytes[i] bytes of From[i]. Ranges of one call have no order and do not overlap.
type Copies struct{ To, From, Bytes []uint64 }

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

// Carry copies the ranges by the copy engines of a device, and returns when all have ended, also after an error. Each
// end is memory of a device, or pinned memory of the host. It waits for no stream of the program.
func (c *Copies) Carry(ordinal int) error {
	l := process()
	if err := l.usable("cuda.copy", ordinal); err != nil || len(c.To) == 0 {
		return err
	}
	r := C.tc_copies(C.int(ordinal), numbers(c.To), numbers(c.From), numbers(c.Bytes), C.size_t(len(c.To)))
	return l.failed("cuda.copy", ordinal, r)
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

// Unpin gives back memory of Pin.
func Unpin(ordinal int, addr uintptr) error {
	return process().failed("cuda.unpin", ordinal, C.tc_unpin(C.int(ordinal), C.uint64_t(addr)))
}
