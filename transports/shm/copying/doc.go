// Package copying moves bytes between addresses that this process has mapped, at the speed of the machine, and survives
// memory that is not there. A fault is an answer, not the end of the process.
//
// # Which copy
//
// Go's memmove is the fastest copy for bytes that fit into the caches, but it changes to non-temporal stores at 1 MiB a
// call, also inside a larger transfer. Those pass the caches by, and cost twice as much where the bytes would have
// stayed there. So the decision is made by the size of the transfer (total), not of the piece:
//
//	total below 1 MiB, or pieces below 64 KiB   memmove, in chunks of at most 512 KiB
//	above                                       whichever of memmove and non-temporal stores is the faster one here
//
// The last line is not a constant: it depends on the processor, on the number of cores that copy, and on the bytes in
// the caches. With 64 MiB on a Zen 3, non-temporal stores were 1.6 times as fast as memmove; with 4 MiB 0.7 times
// where the same buffers came again, and 1.8 times where others did. An earlier copy by such stores was at 1.6 on a
// Zen 4, and at 0.9 on a Cascade Lake. So a Copier times its chunks, prefers the way that was faster, and tries the
// other now and then. It has two learners: one for transfers from a third of the last cache on, and one for those
// below, which fit. (Decisions 0041, 0143 and 0197.)
//
// # Faults
//
// A user may unmap a buffer without unregistering it; a file may become shorter than its mapping. (The memfds of tent
// cannot: they are sealed.) Touching such memory raises SIGSEGV or SIGBUS. Go turns these into a panic of the goroutine
// where it is told to (debug.SetPanicOnFault), and the guard around each call turns the panic into a Fault. It works on
// threads that came from Python or C, as long as Go's signal handlers are the ones in place: a program that installs
// its own for SIGSEGV later without calling the one before it (faulthandler enabled after the first Engine) gets the
// crash instead. The guard costs some 7 ns a call (BenchmarkGuard), so there is one a slice, not one a piece.
package copying
