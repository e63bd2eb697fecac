// Package acl is the platform of Ascend NPUs: libascendcl.so of CANN, loaded by dlopen when an engine opens, never at
// import.
//
// The API is declared again in shim.h, so that a build needs no header of the vendor and runs with old and new
// toolkits. A machine without the library, without a needed symbol or without a device has a reason in Check. Memory of
// the host stays memory of the host then, and every other transport works.
//
// It was tested with an emulated library alone (tests/fakes/ascend), never on hardware.
//
// # Contexts
//
// The current context belongs to a thread, and a thread that has one can never be without again: no call takes it back.
// So shim.c makes the context of a device current on a thread that has one, works, and restores it. Work of a thread
// without a context is handed to a few threads of our own, for torch_npu takes a thread's context for the device that
// its user chose. Transports keep threads too, which have a context for good (Adopt).
//
// The context of a device is the one that aclrtSetDevice makes, which frameworks use as well. It is asked for when a
// call about the device comes, and kept as long as the process.
//
// # Places
//
// aclrtPointerGetAttributes names the device of an address. Newer toolkits also tell its allocation. Where they do not,
// Locate looks at an address in each 2 MiB, the largest page, and finds borders by bisection.
//
// # Costs
//
// A call on a thread with a context costs one crossing of cgo, and the library's own time. Handing work to a thread of
// our own costs two switches more, some 10 µs, beside copies of a megabyte that take as long.
//
// # Kept for the process
//
// The library opens device files and starts threads, and has no way back while a framework may use it (rule f of
// package transport). A process that was forked after that may not use it: calls fail and say so.
package acl
