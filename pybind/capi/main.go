// Command capi is libtent.so: the calls of include/tent/transfer_engine.h over the flat surface of package pybind. It
// is built by `make capi` with -buildmode=c-shared and has no life of its own.
//
// A call of C enters by calls.c, which refuses it in a forked child, and is here under its name with go_ for tent_.
//
// A handle is the number of an engine plus one, so NULL is none, and a handle of a destroyed engine is an error and not
// another engine. Errors are the sentences of gocore/errs; the text is kept by thread, on the C side, since a call from
// C runs on its caller's thread to its end. C's memory is read during a call only.
package main

/*
#cgo CFLAGS: -DTENT_TYPES_ONLY
#include <stdlib.h>
#include "include/tent/transfer_engine.h"
#include "last_error.h"
*/
import "C"

import (
	"encoding/json"
	"fmt"
	"unsafe"

	"github.com/tent-engine/tent/gocore/config"
)

func main() {}

// failed keeps the error of this thread and returns -1.
func failed(err error) C.int {
	var e struct{ Code, Message string } // the message has its hint
	text := err.Error()
	if json.Unmarshal([]byte(text), &e) == nil && e.Message != "" {
		text = e.Code + ": " + e.Message
	}
	C.tent_set_error((*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.size_t(len(text)))
	return -1
}

// noError forgets the error of this thread, for a call that has no result of its own.
func noError() { C.tent_set_error(nil, 0) }

// done returns 0, or -1 after keeping the error: the result of a call that has no other.
func done(err error) C.int {
	if err != nil {
		return failed(err)
	}
	return 0
}

// parsed reads an answer of pybind.
func parsed[T any](text string, err error) (answer T, _ error) {
	if err == nil {
		err = json.Unmarshal([]byte(text), &answer)
	}
	return answer, err
}

func wrong(format string, args ...any) C.int {
	return failed(fmt.Errorf("INVALID_ARGUMENT: "+format, args...))
}

// number is the engine of a handle; -1, which no engine has, for NULL.
func number(engine C.tent_engine_t) int64 { return int64(uintptr(engine)) - 1 }

// put writes a string and a 0 into a buffer of C.
func put(text string, buf *C.char, length C.size_t) C.int {
	if buf == nil || uint64(length) < uint64(len(text)+1) {
		return wrong("a buffer of %d bytes is too short for %d and a 0", uint64(length), len(text))
	}
	out := unsafe.Slice((*byte)(unsafe.Pointer(buf)), len(text)+1)
	copy(out, text)
	out[len(text)] = 0
	return 0
}

// read is a string of C, "" for NULL.
func read(text *C.char) string {
	if text == nil {
		return ""
	}
	return C.GoString(text)
}

// nameID is the packed form of a name; 0 for NULL and "".
func nameID(name *C.char) uint64 {
	if name == nil {
		return 0
	}
	return config.PolicyID(C.GoString(name))
}

// address of memory of C, which Go does not own.
func address(p unsafe.Pointer) uint64 { return uint64(uintptr(p)) }
