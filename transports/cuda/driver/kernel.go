//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import (
	_ "embed"
	"unsafe"
)

// copyPTX is the kernel for devices of compute capability 7.0 and later: the driver compiles it for its own.
//
//go:embed copy.ptx
var copyPTX string

// PrepareKernel loads the kernel that copies ranges of a device's memory, once a process. It may wait for work of the
// program, so it is called when memory is registered, and not when bytes are to move.
func PrepareKernel(ordinal int) error {
	l := process()
	if err := l.usable("cuda.kernel", ordinal); err != nil {
		return err
	}
	image := append([]byte(copyPTX), 0)
	return l.failed("cuda.kernel", ordinal, C.tc_prepare(C.int(ordinal), (*C.char)(unsafe.Pointer(&image[0]))))
}
