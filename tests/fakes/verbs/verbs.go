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
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"unsafe"
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

var built struct {
	sync.Once
	path string
	err  error
}

// Open compiles the library and loads it. Its knobs are as they were at the start when the test ends. A library that
// cannot be compiled fails the test: cgo, which this package needs, has a compiler.
func Open(t testing.TB) *Fake {
	t.Helper()
	compile(t)
	return load(t, built.path)
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

func compile(t testing.TB) {
	t.Helper()
	built.Do(func() { built.path, built.err = build() })
	if built.err != nil {
		t.Fatalf("the fake libibverbs cannot be compiled: %v", built.err)
	}
}

// Environment is that of processes with joined NICs. Each finds the library as it would find the real one, and their
// queue pairs stand in one table. A child inherits it, and gets nothing more here.
func Environment(t testing.TB) []string {
	t.Helper()
	if os.Getenv(tableName) != "" {
		return nil
	}
	compile(t)
	table := filepath.Join(t.TempDir(), "table")
	return []string{"LD_LIBRARY_PATH=" + filepath.Dir(built.path), tableName + "=" + table}
}

// build compiles the library, or finds an earlier one of the same sources in build/fakes, and returns its path.
func build() (string, error) {
	root, err := repository()
	if err != nil {
		return "", err
	}
	source, abi := filepath.Join(root, "tests/fakes/verbs/library"), filepath.Join(root, "transports/rdma/verbs")
	args := []string{"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-Wl,-soname," + soname,
		"-I" + abi}
	files, err := filepath.Glob(filepath.Join(source, "*.c"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("no source in %s", source)
	}
	hash := sha256.New()
	fmt.Fprint(hash, args)
	for _, name := range append(slices.Clone(files), filepath.Join(source, "fake.h"), filepath.Join(abi, "abi.h")) {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		_, _ = hash.Write(text)
	}
	folder := filepath.Join(root, "build/fakes", "verbs-"+hex.EncodeToString(hash.Sum(nil)[:8]))
	path := filepath.Join(folder, soname)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	fresh := fmt.Sprintf("%s.%d", folder, os.Getpid()) // another process may build it now, too
	if err := os.MkdirAll(fresh, 0o755); err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	args = append(append(args, "-o", filepath.Join(fresh, soname)), append(files, "-lpthread")...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("gcc: %w: %s", err, out)
	}
	if err := os.Rename(fresh, folder); err != nil {
		_, err = os.Stat(path) // the other one was first
		return path, err
	}
	return path, nil
}

// repository is the folder of go.mod, above that of the test. The paths of a build with -trimpath lead nowhere.
func repository() (string, error) {
	at, err := os.Getwd()
	for ; err == nil && at != "/"; at = filepath.Dir(at) {
		if _, missing := os.Stat(filepath.Join(at, "go.mod")); missing == nil {
			return at, nil
		}
	}
	return "", fmt.Errorf("no go.mod above the folder of the test: %w", err)
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
