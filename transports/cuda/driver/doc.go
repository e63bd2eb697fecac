// Package driver is the platform of CUDA devices: libcuda.so.1, loaded by dlopen when an engine opens, never at import.
//
// The API is declared again in shim.h, so that a build needs no header of the vendor and runs with old and new drivers.
// A library without a symbol that is needed is a reason of Check, as a machine without a driver or a device is. Memory
// of the host stays memory of the host then, and every other transport works.
//
// # Contexts
//
// The current context belongs to a thread, and goroutines change threads. So each function of shim.c makes the primary
// context of a device current, works, and takes it back: frameworks use the same context, and find their own device
// unchanged. A context costs hundreds of megabytes of its device. One is retained when a call about memory of that
// device comes, never for all devices, and it is kept as long as the process: the framework shares it.
//
// # Streams of the program
//
// A gate is events behind the work of a stream, of those that are kept for the next one. A latch is a word of a page of
// pinned memory, which stays: to free it, the driver would wait for the streams that look at it.
//
// # Errors
//
// Some errors stay in a context (illegal address, ECC, a lost device): each later call there returns the same, until
// the process ends. The first of them is kept as the device's end, and calls about that device fail by it. Other
// devices and the host go on.
//
// cudaDeviceReset ends all of a device's context, ours with it: the device is lost as soon as a call hears of it. No
// program may call it beside a library that uses the device, and ours cannot find out in time when one does so and goes
// on: record 0196.
//
// # Kept for the process
//
// The driver opens /dev/nvidia* and starts threads of its own, and has no way back (rule f of package transport). A
// process that was forked after that may not use it: calls fail and say so.
//
// # Costs
//
// Locate makes two calls of the driver for memory of the host, at its first and its last byte. It makes two for each
// allocation of a device. A call is one crossing of cgo, about 50 ns, and the driver's own time.
package driver
