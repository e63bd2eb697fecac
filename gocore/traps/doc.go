// Package traps keeps Go's handler of memory faults in front of those that others install later.
//
// Guarded copies (mem.Guard) turn a fault into an error, because Go's handler of SIGSEGV and SIGBUS sees it. A library
// that installs a handler afterwards, as faulthandler.enable() of Python does, sees the fault first and ends the
// process. Keep then puts a few instructions in front of both:
//
//	fault in Go's code        Go's handler
//	fault in other code       the handler that was installed later, as if it stood there alone
//
// Go's code is the executable mapping that holds Go's handler, so no symbol of the runtime is needed. Each repair uses
// an entry of its own: a handler that passes faults on to its predecessor, as crash reporters do, reaches the one that
// was there before it, and never itself. After the last entry is used nothing is repaired any more.
package traps
