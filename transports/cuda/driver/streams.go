//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
)

// streamOf returns the handle of a stream, and the device of a default stream or -1.
func (l *library) streamOf(op string, stream uintptr) (handle C.uint64_t, ordinal C.int, err error) {
	if l.absent != nil {
		return 0, 0, l.absent
	}
	at, number := device.SplitStream(uint64(stream))
	switch {
	case at == 3: // the driver would take it for a pointer
		err = errs.New(errs.InvalidArgument, op, "%d is the handle of no stream", stream)
	case number >= 0:
		err = l.usable(op, number)
	}
	return C.uint64_t(at), C.int(number), err
}

// refused makes the error of a call about a stream.
func (l *library) refused(op string, r C.tc_result) error {
	switch r.code {
	case C.TC_CAPTURING:
		return errs.New(errs.InvalidArgument, op, "%s", words(r)).WithHint("start the transfer outside of the capture")
	case C.TC_WHICH:
		return errs.New(errs.InvalidArgument, op, "%s", words(r)).
			WithHint("give the framework's object of the stream, or set the device")
	case C.TC_MANY:
		return errs.New(errs.TooManyRequests, op, "%s", words(r)).WithHint("wait for some of them")
	}
	return l.failed(op, -1, r)
}

// Gate implements device.Streams. A default stream (0, 1 or 2) is that of the context that is current on the calling
// thread. On a thread without one it means the default streams of all devices that are in use.
func (Platform) Gate(stream uintptr) (device.Gate, error) {
	l := process()
	handle, ordinal, err := l.streamOf("cuda.stream", stream)
	if err != nil {
		return nil, err
	}
	g := &gate{library: l}
	if r := C.tc_record(handle, ordinal, &g.events); r.code != 0 {
		return nil, l.refused("cuda.stream", r)
	}
	return g, nil
}

// gate is events behind the work of a stream. One goroutine uses it.
type gate struct {
	library *library
	events  *C.tc_gate // nil: closed
}

// Open implements device.Gate.
func (g *gate) Open() (bool, error) {
	var passed C.int
	r := C.tc_passed(g.events, &passed)
	return passed != 0, g.library.failed("cuda.stream", -1, r)
}

// Close implements device.Gate.
func (g *gate) Close() {
	if g.events != nil {
		C.tc_forget(g.events)
		g.events = nil
	}
}

// Hold implements device.Streams: the stream's front end looks at a word of pinned memory (cuStreamWaitValue32). A
// host function of the stream (cuLaunchHostFunc) would hold up those of all others: the driver has one thread for them.
func (Platform) Hold(stream uintptr) (device.Latch, error) {
	l := process()
	handle, ordinal, err := l.streamOf("cuda.wait", stream)
	if err != nil {
		return nil, err
	}
	h := &latch{}
	if r := C.tc_hold(handle, ordinal, &h.held); r.code != 0 {
		return nil, l.refused("cuda.wait", r)
	}
	return h, nil
}

// latch is a word that a stream waits for.
type latch struct{ held C.tc_latch }

// Word implements device.Latch.
func (h *latch) Word() uint64 { return uint64(h.held.address) }

// Release implements device.Latch. All stores of the transfer come before this one.
func (h *latch) Release(value uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(h.held.word)), value)
}

// Close implements device.Latch.
func (h *latch) Close() { C.tc_let_go(&h.held) }
