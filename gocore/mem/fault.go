package mem

import "runtime/debug"

// Fault says that memory was not there, or not for this use.
type Fault struct {
	Addr uintptr // that was touched; 0 if the processor does not tell
}

// Guard ends a function that touches memory which may be gone: unmapped by its user, or of a file that was cut short.
// It makes the fault an answer instead of the end of the process:
//
//	func touch() (fault *mem.Fault) {
//		defer mem.Guard(&fault, debug.SetPanicOnFault(true))
//		...
//	}
//
// Panics that are no faults go on: they are mistakes of ours. It costs some 7 ns a call.
func Guard(fault **Fault, before bool) {
	debug.SetPanicOnFault(before)
	switch r := recover().(type) {
	case nil:
	case interface{ Addr() uintptr }:
		*fault = &Fault{r.Addr()}
	default:
		panic(r)
	}
}

// Copy copies between two ranges of the host of one length, and returns where one of them was not there.
func Copy(to, from []byte) (fault *Fault) {
	defer Guard(&fault, debug.SetPanicOnFault(true))
	copy(to, from)
	return nil
}
