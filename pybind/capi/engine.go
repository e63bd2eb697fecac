package main

/*
#include <stdlib.h>
#include "include/tent/transfer_engine.h"
#include "last_error.h"
*/
import "C"

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/pybind"
)

const (
	openMs  = 10_000
	closeMs = 30_000
)

// pending are settings for the next engine of a thread, by thread; an engine takes them. Threads that set something and
// never make an engine leave a few words behind.
var pending struct {
	sync.Mutex
	byThread map[uintptr]*draft
}

// draft holds the settings of a thread so far: a tree, and why a part of it could not be read.
type draft struct {
	tree map[string]any
	err  error
}

func change(use func(*draft)) {
	pending.Lock()
	defer pending.Unlock()
	if pending.byThread == nil {
		pending.byThread = map[uintptr]*draft{}
	}
	d := pending.byThread[thread()]
	if d == nil {
		d = &draft{tree: map[string]any{}}
		pending.byThread[thread()] = d
	}
	use(d)
}

// thread is a number of the calling thread, which a call from C stays on.
func thread() uintptr { return uintptr(C.tent_thread()) }

// set puts a value at a key with slashes.
func set(tree map[string]any, key string, value any) {
	for {
		head, rest, deeper := strings.Cut(key, "/")
		if !deeper {
			tree[head] = value
			return
		}
		next, is := tree[head].(map[string]any)
		if !is {
			next = map[string]any{}
			tree[head] = next
		}
		tree, key = next, rest
	}
}

// merge lays a tree over another.
func merge(into, from map[string]any) {
	for key, value := range from {
		branch, is := value.(map[string]any)
		old, was := into[key].(map[string]any)
		if is && was {
			merge(old, branch)
		} else {
			into[key] = value
		}
	}
}

//export go_load_config_from_file
func go_load_config_from_file(path *C.char) {
	name := read(path)
	change(func(d *draft) {
		tree, err := config.Document(name)
		if err != nil {
			d.err = fmt.Errorf("tent_load_config_from_file: %w", err)
			return
		}
		merge(d.tree, tree)
	})
}

//export go_set_config
func go_set_config(key, value *C.char) {
	k, v := read(key), read(value)
	change(func(d *draft) {
		value, err := config.Value(v)
		if err != nil {
			d.err = fmt.Errorf("tent_set_config %s: %w", k, err)
			return
		}
		set(d.tree, k, value)
	})
}

// environment is pybind.Open's: our variables, as the program has them now.
func environment() string {
	found := map[string][]byte{} // in JSON a string of any bytes would not stay as it is
	for _, name := range config.Variables() {
		key := C.CString(name)
		if value := C.getenv(key); value != nil {
			found[name] = []byte(C.GoString(value))
		}
		C.free(unsafe.Pointer(key))
	}
	text, err := json.Marshal(found)
	if err != nil {
		return "" // cannot be: texts have JSON
	}
	return string(text)
}

//export go_create_engine
func go_create_engine() C.tent_engine_t {
	var d *draft
	change(func(now *draft) {
		d = now
		delete(pending.byThread, thread())
	})
	if d.err != nil {
		wrong("%v", d.err)
		return nil
	}
	arguments := ""
	if len(d.tree) > 0 {
		text, err := json.Marshal(d.tree)
		if err != nil {
			failed(err)
			return nil
		}
		arguments = string(text)
	}
	id, err := pybind.Open(environment(), arguments, "", "")
	if err != nil {
		failed(err)
		return nil
	}
	return C.tent_engine_t(C.tent_handle(C.uintptr_t(id + 1)))
}

//export go_destroy_engine
func go_destroy_engine(engine C.tent_engine_t) {
	id := number(engine)
	left, err := parsed[struct{ Held []string }](pybind.Close(id, closeMs, true))
	if err == nil {
		_, err = pybind.Forget(id) // not while another thread still closes it
	}
	if err == nil {
		forget(id)
	}
	switch {
	case err != nil:
		failed(err)
	case len(left.Held) > 0:
		failed(fmt.Errorf("TIMEOUT: the engine has ended, but not everything came back: %s: memory that was "+
			"registered with it must stay where it is", strings.Join(left.Held, "; ")))
	default:
		noError()
	}
}

// told is an engine's description of itself.
type told struct {
	Address string
	Config  json.RawMessage
	Numbers map[string]int
}

func info(id int64) (told, error) { return parsed[told](pybind.Info(id)) }

//export go_available
func go_available(engine C.tent_engine_t) C.int {
	if _, err := pybind.Info(number(engine)); err != nil {
		return 0
	}
	return 1
}

//export go_transport_number
func go_transport_number(engine C.tent_engine_t, name *C.char) C.int {
	t, err := info(number(engine))
	if err != nil {
		return failed(err)
	}
	wanted := read(name)
	if n := t.Numbers[wanted]; n != 0 {
		return C.int(n)
	}
	return wrong("no transport of this engine is called %q", wanted)
}

//export go_segment_name
func go_segment_name(engine C.tent_engine_t, buf *C.char, length C.size_t) C.int {
	t, err := info(number(engine))
	if err != nil {
		return failed(err)
	}
	return put(t.Address, buf, length)
}

//export go_rpc_server_addr_port
func go_rpc_server_addr_port(engine C.tent_engine_t, buf *C.char, length C.size_t, port *C.uint16_t) C.int {
	t, err := info(number(engine))
	if err != nil {
		return failed(err)
	}
	host, text, err := net.SplitHostPort(t.Address)
	if err != nil {
		return failed(err)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return failed(err)
	}
	if port != nil {
		*port = C.uint16_t(n)
	}
	return put(host, buf, length)
}

//export go_describe
func go_describe(engine C.tent_engine_t, what *C.char) *C.char {
	id := number(engine)
	var text string
	var err error
	switch kind := read(what); kind {
	case "metrics":
		text, err = pybind.MetricsText(id)
	case "topology":
		text, err = pybind.Topology(id)
	case "peers":
		text, err = pybind.Peers(id)
	case "config":
		var t told
		t, err = info(id)
		text = string(t.Config)
	default:
		wrong("%q is not \"metrics\", \"topology\", \"peers\" or \"config\"", kind)
		return nil
	}
	if err != nil {
		failed(err)
		return nil
	}
	return C.CString(text)
}
