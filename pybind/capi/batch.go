package main

/*
#include "include/tent/transfer_engine.h"
#include "last_error.h"
*/
import "C"

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"unsafe"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/pybind"
)

// requestsMost is the longest batch that any setting of max_pending_requests allows.
const requestsMost = 1 << 24

// rooms is how many requests each batch takes: a count beyond it must not be believed before C's array is read.
var rooms struct {
	sync.Mutex
	of map[batchOf]C.size_t
}

type batchOf struct {
	engine int64
	batch  C.tent_batch_id_t
}

func (b batchOf) room() (size C.size_t, known bool) {
	rooms.Lock()
	defer rooms.Unlock()
	size, known = rooms.of[b]
	return size, known
}

//export go_allocate_batch
func go_allocate_batch(engine C.tent_engine_t, size C.size_t) C.tent_batch_id_t {
	batch, err := pybind.NewBatch(number(engine), int64(min(size, math.MaxInt64)))
	if err != nil {
		failed(err)
		return 0
	}
	rooms.Lock()
	if rooms.of == nil {
		rooms.of = map[batchOf]C.size_t{}
	}
	rooms.of[batchOf{number(engine), C.tent_batch_id_t(batch)}] = size
	rooms.Unlock()
	return C.tent_batch_id_t(batch)
}

//export go_free_batch
func go_free_batch(engine C.tent_engine_t, batch C.tent_batch_id_t) C.int {
	_, err := pybind.FreeBatch(number(engine), uint64(batch))
	if err == nil {
		rooms.Lock()
		delete(rooms.of, batchOf{number(engine), batch})
		rooms.Unlock()
	}
	return done(err)
}

// noteOf describes a notification of C's strings as pybind takes it.
func noteOf(name, message *C.char) *request.PackedNote {
	return &request.PackedNote{Notify: 1,
		NameAddress: address(unsafe.Pointer(name)), NameBytes: uint64(len(read(name))),
		MessageAddress: address(unsafe.Pointer(message)), MessageBytes: uint64(len(read(message)))}
}

// submit packs C's requests as pybind takes them. told may be nil.
func submit(engine C.tent_engine_t, batch C.tent_batch_id_t, entries *C.tent_request_t, count C.size_t,
	o *C.tent_submit_options_t,
	told *request.PackedNote) C.int {
	if count == 0 || entries == nil {
		return wrong("%d requests at %p: at least one is needed", uint64(count), entries)
	}
	room, known := (batchOf{number(engine), batch}).room()
	if !known {
		if _, err := pybind.Summary(number(engine), uint64(batch)); err != nil {
			return failed(err)
		} // the engine still finds one that was freed while it runs
		return failed(fmt.Errorf("INVALID_ENTRY: batch %d does not exist or was freed", uint64(batch)))
	}
	if count > room {
		return wrong("%d requests do not fit: the batch takes %d; allocate a larger one", uint64(count), uint64(room))
	}
	records := make([]request.Record, int(count))
	none := &C.tent_request_terms_t{}
	for i := range records {
		own := none
		if o.terms != nil {
			own = &unsafe.Slice(o.terms, int(count))[i]
		}
		records[i] = record(&unsafe.Slice(entries, int(count))[i], own, o)
	}
	var pins runtime.Pinner // pybind takes addresses as numbers: the memory there must not move
	defer pins.Unpin()
	pins.Pin(&records[0])
	if told != nil {
		pins.Pin(told)
	}
	_, err := pybind.Submit(number(engine), uint64(batch), address(unsafe.Pointer(&records[0])), int64(count),
		address(unsafe.Pointer(told)), true)
	return done(err)
}

//export go_submit
func go_submit(engine C.tent_engine_t, batch C.tent_batch_id_t, entries *C.tent_request_t, count C.size_t) C.int {
	return submit(engine, batch, entries, count, &C.tent_submit_options_t{}, nil)
}

//export go_submit_notif
func go_submit_notif(engine C.tent_engine_t, batch C.tent_batch_id_t, entries *C.tent_request_t, count C.size_t,
	name, message *C.char) C.int {
	return submit(engine, batch, entries, count, &C.tent_submit_options_t{}, noteOf(name, message))
}

//export go_submit_ex
func go_submit_ex(engine C.tent_engine_t, batch C.tent_batch_id_t, entries *C.tent_request_t, count C.size_t,
	o *C.tent_submit_options_t) C.int {
	if o == nil {
		o = &C.tent_submit_options_t{}
	}
	var told *request.PackedNote
	if o.notify != 0 || o.trace != nil {
		told = &request.PackedNote{TraceAddress: address(unsafe.Pointer(o.trace)),
			TraceBytes: uint64(len(read(o.trace)))}
	}
	if o.notify != 0 {
		if o.message == nil && o.message_bytes > 0 {
			return wrong("the message is NULL, and has bytes")
		}
		told.Notify = 1
		told.NameAddress, told.NameBytes = address(unsafe.Pointer(o.name)), uint64(len(read(o.name)))
		told.MessageAddress, told.MessageBytes = address(o.message), uint64(o.message_bytes)
	}
	return submit(engine, batch, entries, count, o, told)
}

//export go_cancel_task
func go_cancel_task(engine C.tent_engine_t, batch C.tent_batch_id_t, task C.size_t) C.int {
	if task > requestsMost {
		return wrong("task %d does not exist", uint64(task))
	}
	_, err := pybind.Cancel(number(engine), uint64(batch), int64(task))
	return done(err)
}

//export go_cancel_batch
func go_cancel_batch(engine C.tent_engine_t, batch C.tent_batch_id_t) C.int {
	_, err := pybind.Cancel(number(engine), uint64(batch), -1)
	return done(err)
}

// summary of a batch.
type summary struct {
	State int
	Bytes uint64
	Tasks int64
}

func summed(id int64, batch C.tent_batch_id_t) (summary, error) {
	return parsed[summary](pybind.Summary(id, uint64(batch)))
}

// statuses reads n tasks from first. A status that is pending lets the engine work, so a caller that polls makes
// progress.
func statuses(engine C.tent_engine_t, batch C.tent_batch_id_t, first, n int64, out *C.tent_status_t) C.int {
	if n == 0 {
		return 0
	}
	id := number(engine)
	words := make([]uint64, 2*n)
	defer runtime.KeepAlive(words)
	for try := range 2 {
		if _, err := pybind.StatusInto(id, uint64(batch), first, n, uint64(mem.AddressOf(words))); err != nil {
			return failed(err)
		}
		pending := false
		list := unsafe.Slice(out, int(n))
		for i := range list {
			list[i] = C.tent_status_t{status: C.int(words[2*i] & 0xff), transferred_bytes: C.uint64_t(words[2*i+1])}
			pending = pending || list[i].status <= C.STATUS_PENDING
		}
		if try > 0 || !pending {
			break
		}
		if found, err := pybind.Progress(id); err != nil || found == 0 {
			return done(err)
		}
	}
	return 0
}

//export go_task_status
func go_task_status(engine C.tent_engine_t, batch C.tent_batch_id_t, task C.size_t, status *C.tent_status_t) C.int {
	if status == nil || task > requestsMost {
		return wrong("task %d, status %p", uint64(task), status)
	}
	return statuses(engine, batch, int64(task), 1, status)
}

//export go_task_status_list
func go_task_status_list(engine C.tent_engine_t, batch C.tent_batch_id_t, list *C.tent_status_t,
	count *C.size_t) C.int {
	if count == nil || list == nil && *count > 0 {
		return wrong("statuses %p, count %p", list, count)
	}
	s, err := summed(number(engine), batch)
	if err != nil {
		return failed(err)
	}
	room := min(*count, C.size_t(s.Tasks)) // unsigned: a count of C may be SIZE_MAX
	*count = C.size_t(s.Tasks)
	return statuses(engine, batch, 0, int64(room), list)
}

//export go_overall_status
func go_overall_status(engine C.tent_engine_t, batch C.tent_batch_id_t, status *C.tent_status_t) C.int {
	if status == nil {
		return wrong("status is NULL")
	}
	if _, err := pybind.Progress(number(engine)); err != nil {
		return failed(err)
	}
	s, err := summed(number(engine), batch)
	if err != nil {
		return failed(err)
	}
	status.status, status.transferred_bytes = C.int(s.State), C.uint64_t(s.Bytes)
	return 0
}

//export go_wait
func go_wait(engine C.tent_engine_t, batch C.tent_batch_id_t, timeoutMs C.int64_t, status *C.tent_status_t) C.int {
	state, err := pybind.Wait(number(engine), uint64(batch), max(0, int64(timeoutMs)))
	if err != nil {
		return failed(err)
	}
	if state == int64(C.STATUS_INVALID) { // an unknown batch has this state, and no summary
		if _, err := summed(number(engine), batch); err != nil {
			return failed(err)
		}
	}
	if status != nil && go_overall_status(engine, batch, status) < 0 {
		return -1
	}
	if state <= int64(C.STATUS_PENDING) {
		return 1
	}
	return 0
}

//export go_batch_failure
func go_batch_failure(engine C.tent_engine_t, batch C.tent_batch_id_t, buf *C.char, length C.size_t) C.int {
	text, err := pybind.Failure(number(engine), uint64(batch))
	if err != nil {
		return failed(err)
	}
	return put(text, buf, length)
}
