//go:build cgo

package cufile

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"time"
	"unsafe"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/cuda/driver"
)

// Batches are runs that are under way at once, by the library's batches. One goroutine uses them at a time.
//
//	open --as many posted as it has entries--> full --its last event--> open
//	  '--an entry was refused--> spoiled --its last event--> destroyed
//
// An open batch without anything under way is kept for the next run.
type Batches struct {
	depth  int
	list   []*batch
	of     []*batch // by tag: the batch of a run that is under way
	params unsafe.Pointer
	answer *C.cf_answer // with depth events
}

type batch struct {
	handle   unsafe.Pointer
	posted   int // since nothing was under way
	underWay int
	spoiled  bool
}

// Status of an event, as CUfileStatus_t.
const (
	waiting  = 1
	pending  = 2
	complete = 0x10
)

// NewBatches makes room for depth runs at once, with tags below a bound.
func NewBatches(depth, tags int) *Batches {
	return &Batches{depth: depth, of: make([]*batch, tags), params: C.calloc(C.size_t(tags), C.sizeof_cf_io),
		answer: (*C.cf_answer)(C.calloc(1, C.sizeof_cf_answer+C.size_t(depth)*C.sizeof_cf_event))}
}

// Post begins a run and does not wait for it. Its tag is not under way, and fewer than depth are. After an error
// nothing of the run is under way.
func (b *Batches) Post(r *Run, tag int) error {
	at, err := b.open()
	if err != nil {
		return err
	}
	io := &unsafe.Slice((*C.cf_io)(b.params), len(b.of))[tag]
	*io = C.cf_io{mode: 1, base: pointer(r.Base), file_offset: C.off_t(r.Offset), device_offset: C.off_t(r.Into),
		bytes: C.size_t(r.Bytes), file: pointer(r.File), cookie: pointer(uintptr(tag) + 1)}
	if r.Write {
		io.operation = 1
	}
	here, err := driver.Enter(r.Ordinal)
	if err != nil {
		return err
	}
	e := C.cf_post(at.handle, io)
	here.Leave()
	if e.err != 0 {
		at.spoiled = true
		b.sweep()
		return failed("cuFileBatchIOSubmit", int(e.err), int(e.cu_err))
	}
	at.posted++
	at.underWay++
	b.of[tag] = at
	return nil
}

// open returns a batch with room.
func (b *Batches) open() (*batch, error) {
	for _, at := range b.list {
		if !at.spoiled && at.posted < b.depth {
			return at, nil
		}
	}
	at := &batch{}
	if e := C.cf_set_up(C.uint(b.depth), &at.handle); e.err != 0 {
		return nil, failed("cuFileBatchIOSetUp", int(e.err), int(e.cu_err))
	}
	b.list = append(b.list, at)
	return at, nil
}

// Collect returns runs that have ended. It waits for one until the limit, where some are under way.
func (b *Batches) Collect(into []Ended, limit time.Duration) (n int) {
	for _, at := range b.list {
		if at.underWay == 0 || n == len(into) {
			continue
		}
		least := 0
		if n == 0 {
			least = 1
		}
		n += b.collect(at, into[n:], least, limit)
		if n > 0 {
			limit = 0
		}
	}
	b.sweep()
	return n
}

// collect asks one batch.
func (b *Batches) collect(at *batch, into []Ended, least int, limit time.Duration) (n int) {
	e := C.cf_status(at.handle, C.uint(least), C.uint(min(len(into), at.underWay, b.depth)), b.answer,
		C.int64_t(limit))
	if e.err != 0 { // its runs stay under way, until the library answers again
		time.Sleep(again)
		return 0
	}
	events := unsafe.Slice((*C.cf_event)(unsafe.Add(unsafe.Pointer(b.answer), C.sizeof_cf_answer)), b.depth)
	for _, event := range events[:min(int(b.answer.count), len(into), b.depth)] {
		tag := int(uintptr(event.cookie)) - 1
		if event.status&(waiting|pending) != 0 || tag < 0 || tag >= len(b.of) || b.of[tag] != at {
			continue // it is not the end of a run of this batch
		}
		b.of[tag] = nil
		at.underWay--
		into[n] = endOf(tag, int(event.status), int64(event.result))
		n++
	}
	if at.underWay == 0 {
		at.posted = 0
	}
	return n
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

// sweep destroys spoiled batches with nothing under way.
func (b *Batches) sweep() {
	kept := b.list[:0]
	for _, at := range b.list {
		if at.spoiled && at.underWay == 0 {
			C.cf_end(at.handle, 1)
			continue
		}
		kept = append(kept, at)
	}
	clear(b.list[len(kept):])
	b.list = kept
}

// Close gives the batches back. Nothing is under way.
func (b *Batches) Close() {
	for _, at := range b.list {
		C.cf_end(at.handle, 0)
	}
	b.list = nil
	C.free(b.params)
	C.free(unsafe.Pointer(b.answer))
}
