//go:build cgo

package loaded

/*
#cgo linux LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

static void *find(void *library, const char *name) { return dlsym(library, name); }
static void one(void *f, int a) { ((void (*)(int))f)(a); }
static void stats(void *f, void *into) { ((void (*)(void *))f)(into); }
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
}

// Open returns the library that an environment variable names.
func Open(variable, prefix string) (Library, error) {
	path := C.CString(os.Getenv(variable))
	defer C.free(unsafe.Pointer(path))
	handle := C.dlopen(path, C.RTLD_NOW)
	if handle == nil {
		return Library{}, fmt.Errorf("%s: dlopen: %s", variable, C.GoString(C.dlerror()))
	}
	return Library{handle, prefix}, nil
}

// Find returns an exported function by its name behind the prefix. One that is not there is a mistake of the caller.
func (l Library) Find(name string) unsafe.Pointer {
	full := l.prefix + name
	text := C.CString(full)
	defer C.free(unsafe.Pointer(text))
	f := C.find(l.handle, text)
	if f == nil {
		panic("the emulated library has no " + full)
	}
	return f
}

// Hold holds the work of the library back, so that nothing ends, or lets it go on.
func (l Library) Hold(on bool) {
	var value C.int
	if on {
		value = 1
	}
	C.one(l.Find("hold"), value)
}

// Counters writes the library's counters into a structure of as many int64.
func (l Library) Counters(into unsafe.Pointer) { C.stats(l.Find("stats"), into) }
