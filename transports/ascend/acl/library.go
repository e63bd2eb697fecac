package acl

/*
#cgo linux LDFLAGS: -ldl -lpthread
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/nic"
)

// library is libascendcl in this process. All engines share it.
type library struct {
	absent  error // why it cannot be used
	devices []device.Info
}

// process loads the library at its first call.
var process = sync.OnceValue(load)

func load() *library {
	why := make([]byte, 1024)
	switch C.ta_load((*C.char)(bytesOf(why)), C.size_t(len(why))) {
	case -1:
		return &library{absent: errs.New(errs.DeviceNotFound, "acl", "no CANN runtime: %s", text(why)).
			WithHint("source set_env.sh of the toolkit, or name the library in TENT_LIBASCENDCL")}
	case -2:
		return &library{absent: errs.New(errs.DeviceNotFound, "acl", "the CANN runtime lacks %s", text(why)).
			WithHint("CANN 8.1 has all that is needed")}
	}
	l := &library{}
	var count C.uint32_t
	if r := C.ta_init(&count); r.code != 0 {
		l.absent = errs.New(errs.DeviceNotFound, "acl", "%s", words(r))
		return l
	}
	for i := range int(count) {
		l.devices = append(l.devices, describe(i))
	}
	if count == 0 {
		l.absent = errs.New(errs.DeviceNotFound, "acl", "the CANN runtime sees no device").
			WithHint("ASCEND_RT_VISIBLE_DEVICES may hide them")
	}
	return l
}

// describe asks for the facts of a device. Older toolkits do not tell its place on the bus.
func describe(ordinal int) device.Info {
	info := device.Info{Name: "Ascend NPU", Node: -1}
	if product := C.GoString(C.ta_product()); product != "" {
		info.Name = product
	}
	pci := make([]byte, 64)
	if r := C.ta_describe(C.int(ordinal), (*C.char)(bytesOf(pci)), C.size_t(len(pci))); r.code == 0 {
		info.PCI = strings.ToLower(text(pci))
		info.Node = nic.BusNode(os.DirFS("/"), info.PCI)
	}
	return info
}

// Results of the library that have a code of tent's own.
const (
	invalidDevice = 107001
	outOfMemory   = 207001
)

// words describe the end of a call: the function, the library's report and its code.
func words(r C.ta_result) string {
	call := C.GoString(r.call)
	switch r.code {
	case C.TA_FORKED:
		return call + ": the process was forked after it had loaded the library, which cannot be used then"
	case C.TA_NO_THREAD:
		return call + ": no memory or no thread for the call"
	}
	told := C.GoString(&r.text[0])
	if told == "" {
		told = "it does not say why"
	}
	return fmt.Sprintf("%s: %s (aclError %d)", call, told, int(r.code))
}

// failed makes the error of a call about a device; -1 is none.
func failed(op string, ordinal int, r C.ta_result) error {
	if r.code == 0 {
		return nil
	}
	code := errs.Internal
	switch r.code {
	case outOfMemory:
		code = errs.OutOfMemory
	case invalidDevice:
		code = errs.DeviceNotFound
	}
	cause := words(r)
	if ordinal >= 0 {
		cause = string(location(ordinal)) + ": " + cause
	}
	return errs.New(code, op, "%s", cause)
}

// usable returns why a device cannot be used.
func (l *library) usable(op string, ordinal int) error {
	if l.absent != nil {
		return l.absent
	}
	if ordinal < 0 || ordinal >= len(l.devices) {
		return errs.New(errs.DeviceNotFound, op, "there is no %s: the CANN runtime sees %d devices", location(ordinal),
			len(l.devices))
	}
	return nil
}

func location(ordinal int) mem.Location {
	return mem.Location(mem.Npu.String() + ":" + strconv.Itoa(ordinal))
}

// bytesOf is the address of a buffer of Go, for the time of one call.
func bytesOf(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// text is a string of C in a buffer.
func text(buffer []byte) string {
	if end := bytes.IndexByte(buffer, 0); end >= 0 {
		buffer = buffer[:end]
	}
	return string(buffer)
}
