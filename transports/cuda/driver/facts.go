package driver

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// stickyCodes are results of the driver that stay in a context. Their source is the CUDA driver API, enum CUresult. The
// text of most says that the process must be terminated and relaunched. That of EXTERNAL_DEVICE (911) does, too, but it
// stays only where it came late, so it is none.
var stickyCodes = map[int]bool{214: true, 220: true, 226: true, 700: true, 702: true, 709: true, 710: true, 714: true,
	715: true, 716: true, 717: true, 718: true, 719: true, 721: true, 810: true, 999: true}

func sticky(code int) bool { return stickyCodes[code] }

// Results of the driver that have a code of tent's own.
const (
	outOfMemory   = 2
	invalidDevice = 101
	notPermitted  = 800
)

// codeOf gives the code of an error of the driver.
func codeOf(code int) errs.Code {
	switch code {
	case outOfMemory:
		return errs.OutOfMemory
	case invalidDevice:
		return errs.DeviceNotFound
	}
	return errs.CudaError
}

// sentence describes a result. The driver does not know every code of a newer one.
func sentence(call, told, name string, code int) string {
	if told == "" {
		told = "an error that the driver has no text for"
	}
	if name == "" {
		name = "CUresult"
	}
	return fmt.Sprintf("%s: %s (%s, %d)", call, told, name, code)
}

func location(ordinal int) mem.Location {
	return mem.Location(mem.Cuda.String() + ":" + strconv.Itoa(ordinal))
}

// text is a string of C in a buffer.
func text(buffer []byte) string {
	if end := bytes.IndexByte(buffer, 0); end >= 0 {
		buffer = buffer[:end]
	}
	return string(buffer)
}

// pages returns the pages that hold a range, by the bytes of one.
func pages(addr uintptr, size, page uint64) (from uintptr, bytes uint64) {
	from = addr &^ uintptr(page-1)
	end := (uint64(addr) + size + page - 1) &^ (page - 1)
	return from, end - uint64(from)
}
