package main

/*
#include <stdlib.h>
#include "include/tent/transfer_engine.h"
#include "last_error.h"
*/
import "C"

import (
	"slices"
	"strings"
	"unsafe"

	"github.com/tent-engine/tent/pybind"
)

//export go_open_segment
func go_open_segment(engine C.tent_engine_t, handle *C.tent_segment_id_t, name *C.char) C.int {
	if handle == nil {
		return wrong("handle is NULL")
	}
	if name == nil { // as getenv() gives it; "" is the engine's own memory
		return wrong("segment_name is NULL")
	}
	segment, err := pybind.OpenSegment(number(engine), read(name), "", false, false, openMs)
	if err != nil {
		return failed(err)
	}
	*handle = C.tent_segment_id_t(segment)
	return 0
}

//export go_close_segment
func go_close_segment(engine C.tent_engine_t, handle C.tent_segment_id_t) C.int {
	_, err := pybind.CloseSegment(number(engine), int64(handle))
	return done(err)
}

//export go_probe_peer
func go_probe_peer(engine C.tent_engine_t, handle C.tent_segment_id_t, timeoutMs C.int64_t) C.int {
	alive, err := pybind.Alive(number(engine), int64(handle), max(0, int64(timeoutMs)))
	if err != nil {
		return failed(err)
	}
	return C.int(alive)
}

//export go_get_segment_info
func go_get_segment_info(engine C.tent_engine_t, handle C.tent_segment_id_t, into *C.tent_segment_info_t) C.int {
	if into == nil {
		return wrong("info is NULL")
	}
	*into = C.tent_segment_info_t{}
	type region struct {
		Address, Size uint64
		Location      string
		Lease         bool
	}
	found, err := parsed[struct {
		Address string
		Regions []region
	}](pybind.Segment(number(engine), int64(handle), true))
	if err != nil {
		return failed(err)
	}
	if strings.HasPrefix(found.Address, "file:") {
		into._type = C.TYPE_FILE
	}
	list := slices.DeleteFunc(found.Regions, func(r region) bool { return r.Lease }) // it has no address
	if len(list) == 0 {
		return 0
	}
	buffers := (*C.struct_tent_buffer_info)(C.calloc(C.size_t(len(list)), C.sizeof_struct_tent_buffer_info))
	if buffers == nil {
		return wrong("no memory for %d regions", len(list))
	}
	for i, r := range list {
		b := &unsafe.Slice(buffers, len(list))[i]
		b.base, b.length = C.uint64_t(r.Address), C.uint64_t(r.Size)
		fill(b.location[:], []byte(r.Location))
	}
	into.buffers, into.num_buffers = buffers, C.int(len(list))
	return 0
}

// fill copies text into an array of C, cut so that a 0 follows.
func fill(to []C.char, text []byte) {
	n := min(len(text), len(to)-1)
	for i := range n {
		to[i] = C.char(text[i])
	}
	to[n] = 0
}
