package main

/*
#include <stdlib.h>
#include "include/tent/transfer_engine.h"
#include "last_error.h"
*/
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/pybind"
)

// notifyMs is how long tent_send_notifs waits for the peer to take a notification.
const notifyMs = 10_000

// lookMs is the time between two looks of tent_recv_notif at its engine.
const lookMs = 1000

//export go_send_notifs
func go_send_notifs(engine C.tent_engine_t, handle C.tent_segment_id_t, name, message *C.char) C.int {
	return send(engine, handle, noteOf(name, message))
}

//export go_send_notif
func go_send_notif(engine C.tent_engine_t, handle C.tent_segment_id_t, name unsafe.Pointer, nameBytes C.size_t,
	message unsafe.Pointer, messageBytes C.size_t) C.int {
	if (name == nil && nameBytes > 0) || (message == nil && messageBytes > 0) {
		return wrong("the name or the message is NULL, and has bytes")
	}
	return send(engine, handle, &request.PackedNote{Notify: 1,
		NameAddress: address(name), NameBytes: uint64(nameBytes),
		MessageAddress: address(message), MessageBytes: uint64(messageBytes)})
}

// send waits until the peer has taken a notification.
func send(engine C.tent_engine_t, handle C.tent_segment_id_t, told *request.PackedNote) C.int {
	id := number(engine)
	var pins runtime.Pinner // pybind takes an address as a number: the memory there must not move
	pins.Pin(told)
	batch, err := pybind.Notify(id, int64(handle), address(unsafe.Pointer(told)), 0, true)
	pins.Unpin()
	if err != nil {
		return failed(err)
	}
	defer func() { _, _ = pybind.FreeBatch(id, batch) }()
	state, err := pybind.Wait(id, batch, notifyMs)
	switch {
	case err != nil:
		return failed(err)
	case state == int64(C.STATUS_COMPLETED):
		return 0
	case state <= int64(C.STATUS_PENDING):
		return failed(fmt.Errorf("TIMEOUT: the peer has not taken the notification within %d ms; it goes on", notifyMs))
	}
	why, err := pybind.Failure(id, batch)
	if err != nil {
		return failed(err)
	}
	return failed(errors.New(why))
}

// letter is a notification.
type letter struct{ name, peer, message []byte }

// next takes one notification if there is one.
func next(id int64) (*letter, error) {
	buffer := make([]byte, 1024)
	defer runtime.KeepAlive(buffer)
	for {
		n, err := pybind.NoteTake(id, uint64(mem.AddressOf(buffer)), int64(len(buffer)), 1)
		switch {
		case err != nil || n == 0:
			return nil, err
		case n < 0: // it is longer
			buffer = make([]byte, -n)
			continue
		}
		names, peers, messages := int(binary.LittleEndian.Uint16(buffer[4:])),
			int(binary.LittleEndian.Uint16(buffer[6:])),
			int(binary.LittleEndian.Uint32(buffer[8:]))
		rest := buffer[16:]
		return &letter{rest[:names], rest[names : names+peers], rest[names+peers : names+peers+messages]}, nil
	}
}

//export go_recv_notifs
func go_recv_notifs(engine C.tent_engine_t, info *C.tent_notifi_info) C.int {
	if info == nil {
		return wrong("info is NULL")
	}
	*info = C.tent_notifi_info{}
	id := number(engine)
	waiting, err := pybind.NoteWait(id, 0)
	if err != nil || waiting == 0 {
		return done(err)
	}
	records := (*C.struct_tent_notifi_record)(C.calloc(C.size_t(waiting), C.sizeof_struct_tent_notifi_record))
	if records == nil {
		return wrong("no memory for %d notifications", waiting)
	}
	list := unsafe.Slice(records, int(waiting))
	n := 0
	for n < len(list) {
		l, err := next(id)
		if err != nil {
			C.free(unsafe.Pointer(records))
			return failed(err)
		}
		if l == nil { // another thread was faster
			break
		}
		fill(list[n].name[:], l.name)
		fill(list[n].msg[:], l.message)
		n++
	}
	info.records, info.num_records = records, C.int(n)
	return 0
}

// await takes one notification, for which it waits for at most limitMs. Where another thread was faster it waits for
// the next one. It looks up now and then: an engine that another thread destroys wakes nobody here.
func await(id, limitMs int64) (*letter, error) {
	limitMs = max(0, limitMs) // the rest of the least number would wrap round
	for start := time.Now(); ; {
		left := max(0, limitMs-time.Since(start).Milliseconds())
		if _, err := pybind.NoteWait(id, min(left, lookMs)); err != nil {
			return nil, err
		}
		if l, err := next(id); l != nil || err != nil || left == 0 {
			return l, err
		}
	}
}

//export go_recv_notif
func go_recv_notif(engine C.tent_engine_t, timeoutMs C.int64_t, into *C.tent_notif_t) C.int {
	if into == nil {
		return wrong("notif is NULL")
	}
	*into = C.tent_notif_t{}
	l, err := await(number(engine), int64(timeoutMs))
	if err != nil {
		return failed(err)
	}
	if l == nil {
		return 0
	}
	into.name, into.message, into.peer = C.CString(string(l.name)), C.CString(string(l.message)),
		C.CString(string(l.peer))
	into.name_bytes, into.message_bytes = C.size_t(len(l.name)), C.size_t(len(l.message))
	return 1
}
