package plugin

/*
#cgo nocallback tp_submit
#cgo nocallback tp_poll
#cgo nocallback tp_arm
#cgo noescape tp_withdraw
#cgo nocallback tp_withdraw
#include "port.h"
*/
import "C"

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// slots is the number of slices that one transport has accepted and not completed, over all links.
const slots = 4096

// flights are the accepted slices. Slot i of the slab of C holds the copy of list[i].
//
//	free ──take──▶ offered ──the plug-in takes it──▶ accepted ──complete──▶ free
//	               offered ──it does not, giveBack────────────────────────▶ free
type flights struct {
	slab  []C.tent_slice
	chain []C.uint32_t // by slot: the next one of its batch, as C reads it

	mu      sync.Mutex
	list    [slots]flight
	free    []uint32
	starved []transport.Rail // that found no slot: they are owed Ready
}

type flight struct {
	slice      *transport.Slice // nil: free
	id         uint64
	length     uint64
	before     uint64         // of Scratch[0]: a slice that was not accepted is left as it was
	generation uint32         // of the slot's life; in the cookie
	pinned     bool           // pins holds the offsets of pieces, which C reads where they are
	pins       runtime.Pinner // of a slice with pieces
}

func (f *flights) init(c *C.tp_port) {
	f.slab, f.chain = unsafe.Slice(C.tp_slab(c), slots), unsafe.Slice(C.tp_chain(c), slots)
	f.free = make([]uint32, slots)
	for i := range f.free {
		f.free[i] = uint32(slots - 1 - i)
	}
}

// buffers are those of the one goroutine that takes ends out; port.draining guards them.
type buffers struct {
	ends  [C.TP_BATCH]C.tp_end
	list  [C.TP_BATCH]transport.Completion
	ready []transport.Rail
}

// Submit implements transport.Transport.
func (p *port) Submit(list []*transport.Slice) (accepted int) {
	if len(list) == 0 || p.links.Lookup(list[0].Rail.Link) == nil || p.condemned.Load() != nil || !p.enter() {
		return 0
	}
	for len(list) > 0 {
		first, n := p.flights.take(list[:min(len(list), C.TP_BATCH)])
		if n == 0 {
			break // take has remembered the rail
		}
		taken := int(C.tp_submit(p.c, first, C.size_t(n)))
		if taken < n {
			p.flights.giveBack(list[taken:n])
		}
		accepted += taken
		if taken < n {
			break // the plug-in owes Ready
		}
		list = list[n:]
	}
	p.leave()
	return accepted
}

// take fills a chain of slots with a prefix of slices, and returns the first slot and the length.
func (f *flights) take(list []*transport.Slice) (first C.uint32_t, n int) {
	f.mu.Lock()
	n = min(len(list), len(f.free))
	if n < len(list) {
		f.starved = append(f.starved, list[0].Rail)
	}
	before := &first
	for _, s := range list[:n] {
		last := len(f.free) - 1
		slot := f.free[last]
		f.free = f.free[:last]
		own := &f.list[slot]
		if own.generation++; own.generation == 0 {
			own.generation = 1
		}
		own.slice, own.id, own.length, own.before = s, s.Id, s.Length, s.Scratch[0]
		cookie := uint64(own.generation)<<32 | uint64(slot)
		s.Scratch[0] = cookie
		own.fill(&f.slab[slot], s, cookie)
		*before = C.uint32_t(slot)
		before = &f.chain[slot]
	}
	f.mu.Unlock()
	return first, n
}

// fill copies a slice for the plug-in.
func (own *flight) fill(c *C.tent_slice, s *transport.Slice, cookie uint64) {
	*c = C.tent_slice{size: C.uint32_t(unsafe.Sizeof(*c)), op: C.uint8_t(s.Op), priority: C.uint8_t(s.Class),
		cookie: C.uint64_t(cookie), rail: railTo(s.Rail), local_key: C.uint64_t(s.LocalKey),
		remote_key: C.uint64_t(s.RemoteKey), local: C.uint64_t(s.Local), remote: C.uint64_t(s.Remote),
		length: C.uint64_t(s.Length), epoch: C.uint64_t(s.Epoch)}
	if s.Checked {
		c.checked = 1
	}
	if s.Pieces == nil {
		return
	}
	local, remote := &s.Pieces.LocalAt[s.First], &s.Pieces.RemoteAt[s.First]
	own.pins.Pin(local)
	own.pins.Pin(remote)
	own.pinned = true
	c.pieces.bytes, c.pieces.count = C.uint64_t(s.Pieces.Bytes), C.uint64_t(s.Length/s.Pieces.Bytes)
	c.pieces.local_at = (*C.uint64_t)(unsafe.Pointer(local))
	c.pieces.remote_at = (*C.uint64_t)(unsafe.Pointer(remote))
}

// freeLocked ends the life of a slot.
func (f *flights) freeLocked(slot uint32) {
	own := &f.list[slot]
	own.slice = nil
	if own.pinned {
		own.pins.Unpin()
		own.pinned = false
	}
	f.free = append(f.free, slot)
}

// giveBack frees the slots of slices that the plug-in did not accept.
func (f *flights) giveBack(list []*transport.Slice) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range list {
		slot := uint32(s.Scratch[0])
		s.Scratch[0] = f.list[slot].before
		f.freeLocked(slot)
	}
}

// Withdraw implements transport.Transport.
func (p *port) Withdraw(list []*transport.Slice) {
	if !p.enter() {
		return
	}
	var batch [C.TP_BATCH]C.uint64_t
	for len(list) > 0 {
		n := min(len(list), len(batch))
		if found := p.flights.find(list[:n], &batch); found > 0 {
			C.tp_withdraw(p.api, p.t, &batch[0], C.size_t(found))
		}
		list = list[n:]
	}
	p.leave()
}

// find returns the cookies of those slices that have not completed.
func (f *flights) find(list []*transport.Slice, batch *[C.TP_BATCH]C.uint64_t) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range list {
		cookie := s.Scratch[0]
		slot := uint32(cookie)
		if slot >= slots || f.list[slot].slice != s || f.list[slot].id != s.Id ||
			uint64(f.list[slot].generation) != cookie>>32 {
			continue
		}
		batch[n] = C.uint64_t(cookie)
		n++
	}
	return n
}

// Poll implements transport.Poller. While another waiter hands completions over, it finds none. It calls the plug-in
// only where that works in poll, and no end waits already.
func (p *port) Poll(budget int, _ transport.Classes) (done int) {
	if !p.draining.TryLock() {
		return 0
	}
	if !p.shut {
		if at := (*uint32)(&p.ends.polling); atomic.LoadUint32(at) == 0 {
			atomic.StoreUint32(at, 1) // from now on complete wakes nobody; Arm looks again
		}
		n := p.takeEnds()
		if n == 0 && p.api.poll != nil {
			C.tp_poll(p.c, C.size_t(max(budget, 0)))
			n = p.takeEnds()
		}
		done = p.deliver(n)
	}
	p.draining.Unlock()
	return done
}

// Arm implements transport.Poller.
func (p *port) Arm() {
	if p.enter() {
		C.tp_arm(p.c)
		p.leave()
	}
}

// takeEnds copies ends of slices that wait in C's memory to the buffer, and returns how many. The caller holds
// draining. Its count is stored before their slots are free: the next end of a slot needs a place.
func (p *port) takeEnds() int {
	taken := uint32(p.ends.taken) // only we write it
	n := min(atomic.LoadUint32((*uint32)(&p.ends.put))-taken, C.TP_BATCH)
	if n == 0 {
		return 0
	}
	list := unsafe.Slice(p.ends.list, slots)
	for i := range n {
		p.buffers.ends[i] = list[(taken+i)%slots]
	}
	atomic.StoreUint32((*uint32)(&p.ends.taken), taken+n)
	return int(n)
}

// deliver hands n ends over to the sink. The caller holds draining, and not the gate.
func (p *port) deliver(n int) int {
	if n == 0 {
		return 0
	}
	b, f := &p.buffers, &p.flights
	f.mu.Lock()
	for i := range b.ends[:n] {
		slot := uint32(b.ends[i].slot)
		own := &f.list[slot]
		b.list[i] = transport.Completion{Slice: own.slice, Id: own.id, Bytes: own.length}
		f.freeLocked(slot)
	}
	b.ready = append(b.ready[:0], f.starved...)
	f.starved = f.starved[:0]
	f.mu.Unlock()
	for i := range b.ends[:n] {
		if e := &b.ends[i]; e.error != 0 || uint64(e.bytes) != b.list[i].Bytes {
			p.failedSlice(&b.list[i], e)
		}
	}
	p.sink.Complete(b.list[:n])
	for _, rail := range b.ready {
		p.sink.Ready(rail)
	}
	return n
}

// failedSlice words the end of a slice that has failed, or that says to have moved another number of bytes than it has.
func (p *port) failedSlice(end *transport.Completion, e *C.tp_end) {
	length := end.Bytes
	end.Bytes = uint64(e.bytes)
	if end.Bytes >= length || e.error == 0 {
		end.Bytes = 0
	}
	if e.error == 0 {
		end.Err = p.senseless("a slice of %d bytes ended without an error and with %d bytes", length, uint64(e.bytes))
		end.Err.Scope = errs.ScopeSlice
		return
	}
	words := (*C.tent_error)(mem.Pointer(uintptr(e.error)))
	end.Err = p.takeError("slice", words)
	freeError(words)
}

// out reports whether slices are accepted that have not completed.
func (f *flights) out() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.free) < slots
}

// abandon ends the slices that the plug-in has closed without.
func (p *port) abandon() {
	f := &p.flights
	f.mu.Lock()
	var left []transport.Completion
	for slot := range f.list {
		if own := &f.list[slot]; own.slice != nil {
			left = append(left, transport.Completion{Slice: own.slice, Id: own.id, Err: kit.Closed(p.op("slice"))})
			f.freeLocked(uint32(slot))
		}
	}
	f.mu.Unlock()
	if len(left) > 0 {
		p.breach("it has closed without the ends of %d slices", len(left))
		p.sink.Complete(left)
	}
}
