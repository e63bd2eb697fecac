//go:build cgo

package driver

/*
#cgo linux LDFLAGS: -ldl
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/nic"
)

// library is libcuda in this process. There is one: the driver has no second instance, whatever number of engines asks.
type library struct {
	absent  error // why it cannot be used
	version int   // 13000 for CUDA 13.0
	devices []device.Info
	lost    []atomic.Pointer[errs.Error] // by device: the first error that stays
	peers   peers
}

// process loads the library at its first call.
var process = sync.OnceValue(load)

func load() *library {
	why := make([]byte, 1024)
	switch C.tc_load((*C.char)(bytesOf(why)), C.size_t(len(why))) {
	case -1:
		return &library{absent: errs.New(errs.DeviceNotFound, "cuda", "no driver: %s", text(why))}
	case -2:
		return &library{absent: errs.New(errs.DeviceNotFound, "cuda", "the driver is too old: it lacks %s", text(why)).
			WithHint("CUDA 11.4 has all that is needed")}
	}
	l := &library{}
	var version, count C.int
	if r := C.tc_init(&version, &count); r.code != 0 {
		l.absent = errs.New(errs.DeviceNotFound, "cuda", "%s", words(r))
		return l
	}
	l.version = int(version)
	l.lost = make([]atomic.Pointer[errs.Error], count)
	for i := range int(count) {
		info, err := describe(i)
		if err != nil {
			l.absent = err
			return l
		}
		l.devices = append(l.devices, info)
	}
	if count == 0 {
		l.absent = errs.New(errs.DeviceNotFound, "cuda", "the driver sees no device").
			WithHint("CUDA_VISIBLE_DEVICES may hide them")
	}
	return l
}

// describe asks for the facts of a device that stay.
func describe(ordinal int) (info device.Info, err error) {
	name, pci := make([]byte, 256), make([]byte, 256)
	r := C.tc_describe(C.int(ordinal), (*C.char)(bytesOf(name)), (*C.char)(bytesOf(pci)), C.size_t(len(name)),
		(*C.uchar)(bytesOf(info.UUID[:])))
	if r.code != 0 {
		return info, errs.New(errs.CudaError, "cuda", "cuda:%d: %s", ordinal, words(r))
	}
	info.Name, info.PCI = text(name), strings.ToLower(text(pci))
	info.Node = nic.BusNode(os.DirFS("/"), info.PCI)
	return info, nil
}

// words describe the end of a call: the function, the driver's text and its code.
func words(r C.tc_result) string {
	call := C.GoString(r.call)
	switch r.code {
	case C.TC_FORKED:
		return call + ": the process was forked after it had loaded the driver, which cannot be used then"
	case C.TC_CAPTURING:
		return call + ": the stream, or one before it, is being captured into a graph: nothing in it is carried out now"
	case C.TC_MANY:
		return call + ": 1024 streams wait for transfers that have not been forgotten"
	case C.TC_WHICH:
		return call + ": this thread has no current device, so a default stream is none in particular"
	case C.TC_NO_FABRIC:
		return call + ": the device gives no fabric handles (attribute 128 is 0)"
	case C.TC_NO_HANDLE:
		return call + ": its allocator asked for no fabric handle, by which other hosts can map it"
	case C.TC_APART:
		return call + " says 0"
	case C.TC_ELSEWHERE:
		return call + ": devices reach registered memory by another address than the processor (attribute 91 is 0)"
	case C.TC_OWN:
		return call + ": no other process can map memory of cudaMallocAsync, of cudaMallocManaged or of a third process"
	case C.TC_PRIVATE:
		return call + ": its allocator asked for no handle by which other processes can map it"
	}
	var name *C.char
	told := C.tc_words(r.code, &name)
	return sentence(call, C.GoString(told), C.GoString(name), int(r.code))
}

// failed makes the error of a call about a device; -1 is none. An error that stays ends the device.
func (l *library) failed(op string, ordinal int, r C.tc_result) error {
	if r.code == 0 {
		return nil
	}
	code := int(r.code)
	err := errs.New(codeOf(code), op, "%s", words(r))
	if ordinal >= 0 && ordinal < len(l.lost) {
		err.Cause = string(location(ordinal)) + ": " + err.Cause
		if sticky(code) {
			err = err.WithHint("the driver gives this error until the process ends: restart it")
			l.lost[ordinal].CompareAndSwap(nil, err)
		}
	}
	return err
}

// Lost returns the error that has ended a device for this process, nil while it works. It costs a load.
func Lost(ordinal int) *errs.Error {
	if l := process(); ordinal >= 0 && ordinal < len(l.lost) {
		return l.lost[ordinal].Load()
	}
	return nil
}

// seen returns that there is no such device, nil if there is.
func (l *library) seen(op string, ordinal int) error {
	if l.absent != nil {
		return l.absent
	}
	if ordinal < 0 || ordinal >= len(l.devices) {
		return errs.New(errs.DeviceNotFound, op, "there is no %s: the driver sees %d devices", location(ordinal),
			len(l.devices))
	}
	return nil
}

// usable returns the end of a device, or that there is no such device.
func (l *library) usable(op string, ordinal int) error {
	if err := l.seen(op, ordinal); err != nil {
		return err
	}
	if err := l.lost[ordinal].Load(); err != nil {
		return err
	}
	return nil // not the pointer: it would be an error that is not nil
}
