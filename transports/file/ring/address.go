package ring

import "unsafe"

// address is the address by which the kernel reads the array of vectors. It lies in an object that Go does not move and
// the caller keeps.
func address(v *Iovec) uintptr { return uintptr(unsafe.Pointer(v)) }
