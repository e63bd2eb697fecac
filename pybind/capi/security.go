package main

/*
#include "include/tent/transfer_engine.h"
#include "last_error.h"
*/
import "C"

import (
	"encoding/json"
	"strings"
	"unsafe"

	"github.com/tent-engine/tent/pybind"
)

// patterns turns texts with spaces between into a list in JSON; NULL is none.
func patterns(text *C.char) string {
	if text == nil {
		return ""
	}
	list, err := json.Marshal(append([]string{}, strings.Fields(read(text))...))
	if err != nil {
		return "" // cannot be: texts have JSON
	}
	return string(list)
}

//export go_open_segment_of
func go_open_segment_of(engine C.tent_engine_t, handle *C.tent_segment_id_t, name, identity *C.char) C.int {
	if handle == nil {
		return wrong("handle is NULL")
	}
	segment, err := pybind.OpenSegment(number(engine), read(name), patterns(identity), true, false, openMs)
	if err != nil {
		return failed(err)
	}
	*handle = C.tent_segment_id_t(segment)
	return 0
}

//export go_register_memory_for
func go_register_memory_for(engine C.tent_engine_t, addr unsafe.Pointer, size C.size_t,
	opts *C.tent_memory_options_t, peers *C.char) C.int {
	location, permission := options(opts)
	return register(engine, addr, size, location, rights{permission: permission, peers: patterns(peers)})
}

//export go_disconnect
func go_disconnect(engine C.tent_engine_t, who *C.char) C.int {
	n, err := pybind.Disconnect(number(engine), read(who), openMs)
	if err != nil {
		return failed(err)
	}
	return C.int(n)
}

//export go_reload_security
func go_reload_security(engine C.tent_engine_t) C.int {
	changed, err := pybind.ReloadSecurity(number(engine), "", closeMs)
	if err != nil {
		return failed(err)
	}
	return C.int(changed)
}
