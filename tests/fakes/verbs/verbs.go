// Package verbs is a libibverbs.so.1 without hardware, for tests: the library folder holds it in C, and Open compiles
// it. An earlier build is used again while the sources are the same. Transports load it through the same shim as the
// real one, in the same process or in several.
//
// It moves bytes between queue pairs, and is as strict as a NIC: states, paths, keys, rights, domains, the room of send
// and completion queues. They are those of one process, or of all processes that Environment joins: a process that is
// stopped is served there, and one that was killed answers no more. A dma-buf of the emulated drivers is reached by its
// file, so memory of their devices is, too. Its knobs (Fake.Control) make events that Soft-RoCE never shows: a device
// that dies or is pulled, each status of a completion, completions that are lost or come twice, calls that find no
// memory, keys that come back at once, and WRITEs that are acknowledged before they are placed, until a READ of their
// memory on their pair pushes them. One makes a fault of Soft-RoCE certain: a READ on a pair that has carried WRITEs
// out is reported as done halfway. To end a queue or a pair whose events were taken and not acknowledged, in which the
// real library hangs, ends the process.
//
// It is never shipped. Its rules are our belief about NICs: a test that passes here was not run on one.
package verbs

/*
#cgo linux LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

static long call(void *control, const char *text) { return ((long (*)(const char *))control)(text); }
*/
import "C"

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/tent-engine/tent/tests/fakes/compiled"
)

const (
	soname    = "libibverbs.so.1"
	tableName = "TENT_FAKE_VERBS_TABLE" // the file of Environment
)

// Fake is the library, compiled and loaded.
type Fake struct {
	Path    string
	control unsafe.Pointer
}

// Open compiles the library and loads it. Its knobs are as they were at the start when the test ends. A library that
// cannot be compiled fails the test: cgo, which this package needs, has a compiler.
func Open(t testing.TB) *Fake {
	t.Helper()
	return load(t, build(t))
}

// Joined returns the library in a process that was given an Environment. Its knobs are those of this process.
func Joined(t testing.TB) *Fake {
	t.Helper()
	if os.Getenv(tableName) == "" {
		t.Fatal("this process was given no Environment")
	}
	return load(t, soname)
}

func load(t testing.TB, file string) *Fake {
	t.Helper()
	path := C.CString(file)
	defer C.free(unsafe.Pointer(path))
	name := C.CString("fake_control")
	defer C.free(unsafe.Pointer(name))
	handle := C.dlopen(path, C.RTLD_NOW)
	if handle == nil {
		t.Fatalf("the fake libibverbs cannot be loaded: %s", C.GoString(C.dlerror()))
	}
	f := &Fake{file, C.dlsym(handle, name)}
	f.Control(t, "reset")
	t.Cleanup(func() { f.Control(t, "reset") })
	return f
}

// Environment is that of processes with joined NICs. Each finds the library as it would find the real one, and their
// queue pairs stand in one table. A child inherits it, and gets nothing more here.
func Environment(t testing.TB) []string {
	t.Helper()
	if os.Getenv(tableName) != "" {
		return nil
	}
	table := filepath.Join(t.TempDir(), "table")
	return []string{"LD_LIBRARY_PATH=" + filepath.Dir(build(t)), tableName + "=" + table}
}

// build compiles the library and returns its path.
func build(t testing.TB) string {
	t.Helper()
	const source, abi = "tests/fakes/verbs/library/", "transports/rdma/verbs/"
	l := &compiled.Library{Soname: soname, Sources: []string{source + "*.c"},
		Headers:  []string{source + "*.h", abi + "abi.h"},
		Compiler: []string{"gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-I" + abi}}
	return l.Build(t)
}

// Control turns a knob or asks for a figure, as fake_control in library/wire.c says.
func (f *Fake) Control(t testing.TB, format string, args ...any) int {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	c := C.CString(text)
	defer C.free(unsafe.Pointer(c))
	result := int(C.call(f.control, c))
	if result < 0 {
		t.Fatalf("the fake libibverbs has no knob %q", text)
	}
	return result
}
