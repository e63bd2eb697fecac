// Package verbs is libibverbs for Go, loaded when it is asked for and never linked. A machine without the library, or
// without devices, is a state with a reason (State); nothing of it shows when the extension is imported.
//
//	Load ── Library ── Open ── Device ── Register ── Memory        pinned pages and their keys
//	                             │   └── NewQueue ── Queue         completions, with a Bell to sleep on
//	                             └────── NewPair ── Pair           a reliable connected queue pair
//
// # The border
//
// Only shim.c calls the library, by the binary interface that abi.h declares. Builds need no rdma headers: a test
// compares the declarations with the real header. Pair.Post takes a chain of at most Batch work requests in one
// crossing, Queue.Poll as many completions. Neither allocates, and no pointer of Go is kept on the other side. A pair's
// chain is memory of C, where work requests are written in the library's own form.
//
// # Threads
//
// The library locks its queues itself, so any goroutine may call anything. An object must not be used once its Close
// was called; the caller makes sure of that. Changes of a pair's state and registrations are system calls that may
// last a second (ARP, pages to fault in): they are no work for a goroutine that others wait for.
package verbs

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra
#cgo linux LDFLAGS: -ldl

#cgo noescape tv_post
#cgo nocallback tv_post
#cgo noescape tv_poll
#cgo nocallback tv_poll
#cgo nocallback tv_arm
#include <errno.h>
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"unsafe"
)

// Soname is the library's name for the dynamic linker.
const Soname = "libibverbs.so.1"

// Batch is the most work requests or completions of one crossing.
const Batch = C.TV_BATCH

// State says how far RDMA is there on this machine.
type State uint8

// States of a machine.
const (
	Ready     State = iota // there are devices
	NoLibrary              // the library is not installed
	Unusable               // it is damaged, or too old
	NoDevices              // it finds no device, or the kernel has no RDMA
)

// Missing is the error for a machine without RDMA.
type Missing struct {
	State State
	Why   string
}

func (m *Missing) Error() string { return m.Why }

// Library is libibverbs, loaded. It is never unloaded.
type Library struct{ c *C.tv_library }

var loaded struct {
	sync.Mutex
	by map[string]*Library
}

// Load loads the library, once for each path. An empty path is the soname, as the dynamic linker finds it. The error is
// a *Missing.
func Load(path string) (*Library, error) {
	loaded.Lock()
	defer loaded.Unlock()
	if l := loaded.by[path]; l != nil {
		return l, nil
	}
	name := path
	if name == "" {
		name = Soname
	}
	if err := whole(name); err != nil {
		return nil, err
	}
	text, why := C.CString(name), make([]byte, 512)
	defer C.free(unsafe.Pointer(text))
	c := C.tv_load(text, (*C.char)(unsafe.Pointer(&why[0])), C.size_t(len(why)))
	if c == nil {
		return nil, refused(C.GoString((*C.char)(unsafe.Pointer(&why[0]))))
	}
	l := &Library{c}
	if loaded.by == nil {
		loaded.by = map[string]*Library{}
	}
	loaded.by[path] = l
	return l, nil
}

// Relaxes reports whether the library passes the right Relaxed on to devices.
func (l *Library) Relaxes() bool { return l.c.ibv_reg_mr_iova2 != nil }

// refused keeps apart a library that is not there and one that cannot be used.
func refused(why string) *Missing {
	if strings.Contains(why, "No such file") {
		return &Missing{NoLibrary, Soname + " is not installed: the package is libibverbs1 or rdma-core"}
	}
	return &Missing{Unusable, why}
}

// Devices returns the names of the devices, one at least. The error is a *Missing.
func (l *Library) Devices() ([]string, error) {
	buffer := make([]byte, 64<<10)
	n := C.tv_devices(l.c, (*C.char)(unsafe.Pointer(&buffer[0])), C.size_t(len(buffer)))
	switch {
	case n == -C.ENOSYS:
		return nil, &Missing{NoDevices, "no RDMA device: the kernel has no RDMA, or its modules are not loaded"}
	case n < 0:
		return nil, &Missing{NoDevices, fmt.Sprintf("no RDMA device: %v", syscall.Errno(-n))}
	case n == 0:
		return nil, &Missing{NoDevices, "no RDMA device: the kernel knows RDMA, and /sys/class/infiniband is empty"}
	}
	text, _, _ := strings.Cut(string(buffer), "\x00")
	names := strings.Fields(text)
	if len(names) == 0 {
		return nil, &Missing{NoDevices, fmt.Sprintf("no RDMA device: none of %d is of InfiniBand or RoCE. Those of "+
			"iWARP, EFA and usNIC connect queue pairs in other ways", n)}
	}
	return names, nil
}

// failure makes the error of a call that returned a negative errno.
func failure(call string, r C.int) error {
	if r >= 0 {
		return nil
	}
	return &Error{call, syscall.Errno(-r)}
}

// Error is a call of the library that failed.
type Error struct {
	Call  string
	Errno syscall.Errno
}

func (e *Error) Error() string { return e.Call + ": " + e.Errno.Error() }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

func errnoOf(call string, err error) error {
	if errno, is := err.(syscall.Errno); is && errno != 0 {
		return &Error{call, errno}
	}
	return &Error{call, syscall.EIO}
}
