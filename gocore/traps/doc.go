// Package traps keeps Go's handler of memory faults in front of those that others install later.
//
// Guarded copies (mem.Guard) turn a fault into an error, because Go's handler of SIGSEGV and SIGBUS sees it. A library
// that installs a handler afterwards, as faulthandler.enable() of Python does, sees the fault first and ends the
// process. Keep then puts a few instructions in front of both:
//
//	fault in Go's code        Go's handler
//	fault in other code       the handler that was installed later, as if it stood there alone
//
// An entry is installed with Go's flags and mask, and applies those of the later handler itself, for faults in other
// code alone: SA_RESETHAND ends with such a fault and not with one of Go's. SA_ONSTACK is always on.
//
// Go's code is the executable mapping that holds Go's handler, so no symbol of the runtime is needed. Each handler has
// an entry of its own: one that passes faults on to its predecessor, as crash reporters do, reaches the one that was
// there before it. A handler that comes back gets its entry back, so a test runner may switch faulthandler off and on
// for ever. Beyond as many handlers as there are entries nothing is repaired any more.
package traps
