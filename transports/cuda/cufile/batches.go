//go:build cgo

package cufile

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"slices"
	"time"
	"unsafe"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/cuda/driver"
)

// Batches are runs that are under way at once, each in a batch of the library with one entry. One goroutine uses them
// at a time.
//
//	none --SetUp--> idle --Submit--> under way --its event--> idle
//	  ^'-----Cancel, Destroy-----refused <--'
//
// Several entries in one batch would be fewer calls. But an entry that is refused takes the events of its whole Submit
// with it, and a batch loses events when entries come while others are under way (seen with libcufile 1.14.1).
type Batches struct {
	batches []batch // by tag
	flying  []int   // tags under way, the oldest first
	params  unsafe.Pointer
	answer  *C.cf_answer // with room for one event
}

type batch struct {
	handle  unsafe.Pointer // nil: none
	ordinal int            // of its device, which has its context current in every call
}

// Status of an event, as CUfileStatus_t.
const (
	waiting  = 1
	pending  = 2
	complete = 0x10
)

// NewBatches makes room for depth runs at once, with tags below depth.
func NewBatches(depth int) *Batches {
	return &Batches{batches: make([]batch, depth), flying: make([]int, 0, depth),
		params: C.calloc(C.size_t(depth), C.sizeof_cf_io),
		answer: (*C.cf_answer)(C.calloc(1, C.sizeof_cf_answer+C.sizeof_cf_event))}
}

// Post begins a run and does not wait for it. Its tag is that of no run under way. After an error nothing of the run is
// under way.
func (b *Batches) Post(r *Run, tag int) error {
	here, err := driver.Enter(r.Ordinal)
	if err != nil {
		return err
	}
	defer here.Leave()
	at := &b.batches[tag]
	if at.handle != nil && at.ordinal != r.Ordinal {
		at.end(false)
	}
	if at.handle == nil {
		if e := C.cf_set_up(1, &at.handle); e.err != 0 {
			at.handle = nil
			return failed("cuFileBatchIOSetUp", int(e.err), int(e.cu_err))
		}
		at.ordinal = r.Ordinal
	}
	io := &unsafe.Slice((*C.cf_io)(b.params), len(b.batches))[tag]
	*io = C.cf_io{mode: 1, base: pointer(r.Base), file_offset: C.off_t(r.Offset), device_offset: C.off_t(r.Into),
		bytes: C.size_t(r.Bytes), file: pointer(r.File), cookie: pointer(uintptr(tag) + 1)}
	if r.Write {
		io.operation = 1
	}
	if e := C.cf_post(at.handle, io); e.err != 0 {
		at.end(true)
		return failed("cuFileBatchIOSubmit", int(e.err), int(e.cu_err))
	}
	b.flying = append(b.flying, tag)
	return nil
}

// end gives a batch back with nothing under way in it. One that has refused its entry is cancelled first.
func (at *batch) end(refused bool) {
	var spoiled C.int
	if refused {
		spoiled = 1
	}
	C.cf_end(at.handle, spoiled)
	at.handle = nil
}

// Collect returns runs that have ended. Where none has, it waits until the limit for the oldest one about which the
// library answers, and for a moment where there is none.
func (b *Batches) Collect(into []Ended, limit time.Duration) (n int) {
	kept, oldest := b.flying[:0], -1
	for _, tag := range b.flying {
		if n < len(into) {
			has, answered := b.ended(tag, 0, 0, &into[n])
			if has {
				n++
				continue
			}
			if answered && oldest < 0 {
				oldest = len(kept)
			}
		}
		kept = append(kept, tag)
	}
	b.flying = kept
	switch {
	case n > 0 || len(kept) == 0 || len(into) == 0:
	case oldest < 0:
		time.Sleep(again)
	default:
		if has, _ := b.ended(kept[oldest], 1, limit, &into[0]); has {
			b.flying = slices.Delete(kept, oldest, oldest+1)
			n = 1
		}
	}
	return n
}

// ended asks a batch for the end of its run. The library copies bytes that were read to the device meanwhile: without
// the device's context that fails, and the event is lost (seen with libcufile 1.14.1). So it is asked on a device that
// is lost, too. Without an answer the run stays under way: nobody can say how far it is.
func (b *Batches) ended(tag, least int, limit time.Duration, into *Ended) (has, answered bool) {
	at := &b.batches[tag]
	here, err := driver.Reenter(at.ordinal)
	if err != nil {
		return false, false
	}
	e := C.cf_status(at.handle, C.uint(least), 1, b.answer, C.int64_t(limit))
	here.Leave()
	if e.err != 0 {
		return false, false
	}
	event := (*C.cf_event)(unsafe.Add(unsafe.Pointer(b.answer), C.sizeof_cf_answer))
	if b.answer.count == 0 || event.status&(waiting|pending) != 0 || int(uintptr(event.cookie)) != tag+1 {
		return false, true
	}
	*into = endOf(tag, int(event.status), int64(event.result))
	return true, true
}

// endOf reads an event.
func endOf(tag, status int, result int64) Ended {
	switch {
	case status == complete && result >= 0:
		return Ended{Tag: tag, Bytes: uint64(result)}
	case result < 0 && result != -1:
		return Ended{Tag: tag, Err: ended("cuFileBatchIOGetStatus", result)}
	}
	return Ended{Tag: tag, Err: errs.New(errs.StorageError, "cufile", "cuFile ended the run with status %s (%#x)",
		statusWords[status], status).WithScope(errs.ScopeLink, errs.SideLocal)}
}

var statusWords = map[int]string{4: "INVALID", 8: "CANCELED", complete: "COMPLETE", 0x20: "TIMEOUT", 0x40: "FAILED"}

// Close gives the batches back. Nothing is under way.
func (b *Batches) Close() {
	for i := range b.batches {
		at := &b.batches[i]
		if at.handle == nil {
			continue
		}
		if here, err := driver.Reenter(at.ordinal); err == nil {
			at.end(false)
			here.Leave()
		}
	}
	C.free(b.params)
	C.free(unsafe.Pointer(b.answer))
}
