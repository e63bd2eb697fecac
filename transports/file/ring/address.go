package ring

import "unsafe"

// address is what the kernel reads the array of vectors by. It lies in an object that Go does not move and the caller
// keeps.
func address(v *Iovec) uintptr { return uintptr(unsafe.Pointer(v)) }
