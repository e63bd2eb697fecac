//go:build cgo

package loaded

/*
#cgo linux LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

static void *find(void *library, const char *name) { return dlsym(library, name); }
static void stats(void *f, void *into) { ((void (*)(void *))f)(into); }
static uint64_t call(void *f, uint64_t *a) {
	return ((uint64_t (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t))f)(a[0], a[1], a[2], a[3], a[4]);
}
static void inject(void *f, const char *name, long nth, int result, int stays) {
	((void (*)(const char *, long, int, int))f)(name, nth, result, stays);
}
static int peek(void *f, void *into, uint64_t at, uint64_t n, int store) {
	return ((int (*)(void *, uint64_t, uint64_t, int))f)(into, at, n, store);
}
*/
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

// Library is an emulated library in this process, a child of a test. Its methods may be called from any goroutine.
type Library struct {
	handle unsafe.Pointer
	prefix string

	Lacking func(name string) // is called for a function that the library has not, and does not return
}

// Open returns the library that an environment variable names.
func Open(variable, prefix string) (Library, error) {
	path := C.CString(os.Getenv(variable))
	defer C.free(unsafe.Pointer(path))
	handle := C.dlopen(path, C.RTLD_NOW)
	if handle == nil {
		return Library{}, fmt.Errorf("%s: dlopen: %s", variable, C.GoString(C.dlerror()))
	}
	return Library{handle: handle, prefix: prefix}, nil
}

// Find returns an exported function by its name behind the prefix.
func (l Library) Find(name string) unsafe.Pointer {
	full := l.prefix + name
	text := C.CString(full)
	defer C.free(unsafe.Pointer(text))
	f := C.find(l.handle, text)
	if f == nil {
		if l.Lacking != nil {
			l.Lacking(full)
		}
		panic("the emulated library has no " + full)
	}
	return f
}

// Number calls a function of integers, and returns its result.
func (l Library) Number(name string, arguments ...uint64) uint64 {
	var all [5]C.uint64_t
	for i, a := range arguments {
		all[i] = C.uint64_t(a)
	}
	return uint64(C.call(l.Find(name), &all[0]))
}

// Code calls a function of integers with an int for a result, which is an error but for 0.
func (l Library) Code(name string, arguments ...uint64) error {
	return failed(name, int32(l.Number(name, arguments...)))
}

func failed(name string, code int32) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s: error %d", name, code)
}

// Switch calls a function that turns something on or off.
func (l Library) Switch(name string, on bool) { l.Number(name, Flag(on)) }

// Flag is a truth value among the integers of a call.
func Flag(on bool) uint64 {
	if on {
		return 1
	}
	return 0
}

// Hold holds the work of the library back, so that nothing ends, or lets it go on.
func (l Library) Hold(on bool) { l.Switch("hold", on) }

// Counters writes the library's counters into a structure of as many int64.
func (l Library) Counters(into unsafe.Pointer) { C.stats(l.Find("stats"), into) }

// Inject makes the nth call of a function from now on fail. stays means that the error comes back from later calls.
func (l Library) Inject(function string, nth, result int, stays bool) {
	name := C.CString(function)
	defer C.free(unsafe.Pointer(name))
	C.inject(l.Find("inject"), name, C.long(nth), C.int(result), C.int(Flag(stays)))
}

// Peek reads bytes of any memory. No copy of the vendor's is involved.
func (l Library) Peek(into []byte, at uintptr) error { return l.peek("peek", into, at, 0) }

// Poke writes bytes of any memory.
func (l Library) Poke(at uintptr, from []byte) error { return l.peek("poke", from, at, 1) }

func (l Library) peek(name string, b []byte, at uintptr, store C.int) error {
	return failed(name, int32(C.peek(l.Find("peek"), unsafe.Pointer(unsafe.SliceData(b)), C.uint64_t(at),
		C.uint64_t(len(b)), store)))
}
