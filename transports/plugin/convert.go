package plugin

/*
#include <stdlib.h>
#include "port.h"
*/
import "C"

import (
	"math/bits"
	"unsafe"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func railTo(r transport.Rail) C.tent_rail {
	return C.tent_rail{link: C.uint64_t(r.Link), generation: C.uint32_t(r.Generation), index: C.uint16_t(r.Index)}
}

func railFrom(r C.tent_rail) transport.Rail {
	return transport.Rail{Link: transport.Link(r.link), Index: uint16(r.index), Generation: uint32(r.generation)}
}

// arena holds memory of C for one call.
type arena struct{ owned []unsafe.Pointer }

func (a *arena) free() {
	for _, p := range a.owned {
		C.free(p)
	}
}

func (a *arena) text(s string) *C.char {
	c := C.CString(s)
	a.owned = append(a.owned, unsafe.Pointer(c))
	return c
}

func (a *arena) texts(list []string) **C.char {
	array := (**C.char)(C.calloc(C.size_t(len(list)+1), C.size_t(unsafe.Sizeof((*C.char)(nil)))))
	a.owned = append(a.owned, unsafe.Pointer(array))
	for i, s := range unsafe.Slice(array, len(list)) {
		_ = s
		unsafe.Slice(array, len(list))[i] = a.text(list[i])
	}
	return array
}

// peer makes the peer for a call.
func (a *arena) peer(p transport.Peer) *C.tent_peer {
	c := &C.tent_peer{size: C.uint32_t(unsafe.Sizeof(C.tent_peer{})), version: C.uint16_t(p.Version),
		address: a.text(p.Address), name: a.text(p.Name), machine_id: a.text(p.MachineID), network: a.text(p.Network)}
	if p.Self {
		c.self = 1
	}
	copy(unsafe.Slice((*byte)(&c.id[0]), len(p.ID)), p.ID[:])
	return c
}

// region makes the region for a call.
func (a *arena) region(m *mem.Region) *C.tent_region {
	c := &C.tent_region{size: C.uint32_t(unsafe.Sizeof(C.tent_region{})), kind: C.uint8_t(m.Kind),
		permission: C.uint8_t(m.Permission), id: C.uint64_t(m.ID), address: C.uint64_t(m.Addr),
		bytes: C.uint64_t(m.Size), fd: C.int32_t(m.Fd), dmabuf: -1, fd_offset: C.uint64_t(m.FdOffset),
		allocation: C.uint64_t(m.Device.Allocation), location: a.text(string(m.Location)), pci: a.text(m.Device.PCI),
		name: a.text(m.Name)}
	if m.ReadOnly {
		c.read_only = 1
	}
	if m.DMABuf != nil {
		c.dmabuf, c.dmabuf_offset = C.int32_t(m.DMABuf.Fd), C.uint64_t(m.DMABuf.Offset)
	}
	copy(unsafe.Slice((*byte)(&c.device_uuid[0]), len(m.Device.UUID)), m.Device.UUID[:])
	return c
}

// errorTo copies an error for a plug-in.
func errorTo(e *errs.Error) (c C.tent_error) {
	c.size, c.code = C.uint32_t(unsafe.Sizeof(c)), C.uint16_t(e.Code)
	c.scope, c.side = C.uint8_t(e.Scope), C.uint8_t(e.Side)
	if e.Collateral {
		c.collateral = 1
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&c.cause[0])), len(c.cause)-1), e.Cause)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&c.hint[0])), len(c.hint)-1), e.Hint)
	return c
}

// takeError makes an error of a plug-in's words. One without sense is a defect, and says so.
func (p *port) takeError(call string, c *C.tent_error) *errs.Error {
	code := errs.Code(c.code)
	if code == errs.OK || code.Help() == "" || c.scope > C.TENT_SCOPE_TRANSPORT || c.side > C.TENT_SIDE_PATH {
		p.breach("%s ended with an error without sense: code %d, scope %d, side %d", call, uint16(c.code),
			uint8(c.scope), uint8(c.side))
		return errs.New(errs.Internal, p.op(call), "the plug-in %s gave an error without sense", p.library.path)
	}
	cause := textOf(&c.cause[0], len(c.cause))
	if cause == "" {
		cause = "the plug-in gives no reason"
	}
	e := errs.New(code, p.op(call), "%s", cause).WithScope(errs.Scope(c.scope), errs.Side(c.side))
	e.Hint, e.Collateral, e.Transport = textOf(&c.hint[0], len(c.hint)), c.collateral != 0, p.library.name
	return e
}

// failed makes the error of a call. Where the plug-in filled none in, its result is the code.
func (p *port) failed(call string, result C.int, c *C.tent_error) *errs.Error {
	if c.code != 0 {
		return p.takeError(call, c)
	}
	if code := errs.Code(result); result > 0 && result < 1<<16 && code.Help() != "" {
		return errs.New(code, p.op(call), "the plug-in gives no reason")
	}
	return errs.New(errs.Internal, p.op(call), "the plug-in %s failed with %d and gave no reason", p.library.path,
		int(result))
}

// senseless is the error of a call that succeeded with results that cannot be; it is a breach.
func (p *port) senseless(format string, args ...any) *errs.Error {
	p.breach(format, args...)
	e := refused(p.library.path, format, args...)
	e.Code = errs.Internal
	return e
}

const (
	featuresKnown = C.TENT_VECTORS | C.TENT_CHECKSUMS | C.TENT_SAME_HOST | C.TENT_COPIES | C.TENT_PINS
	bytesMost     = 1 << 40
)

// takeInfo checks the plug-in's account of itself.
func (p *port) takeInfo(c *C.tent_info) error {
	power := func(n uint64) bool { return bits.OnesCount64(n) == 1 }
	most, best, unit := uint64(c.slice_max), uint64(c.slice_best), uint64(c.alignment)
	switch {
	case c.features&^featuresKnown != 0:
		return p.senseless("it has features %#x, and this tent knows %#x", uint32(c.features), uint32(featuresKnown))
	case !power(unit) || unit > 1<<20:
		return p.senseless("its alignment is %d, which is no power of two up to 1 MiB", unit)
	case most == 0 || most > bytesMost || most%unit != 0 || best == 0 || best > most:
		return p.senseless("its slices have up to %d bytes, best %d, with alignment %d", most, best, unit)
	case c.slices_max == 0 || c.slices_max > 1<<20:
		return p.senseless("it takes %d slices a rail", uint32(c.slices_max))
	case c.version_first > c.version_last:
		return p.senseless("it speaks versions %d to %d", uint16(c.version_first), uint16(c.version_last))
	}
	has := func(feature C.uint32_t) bool { return c.features&feature != 0 }
	p.info = transport.Info{Name: p.library.name, Vectors: has(C.TENT_VECTORS), Checksums: has(C.TENT_CHECKSUMS),
		Versions: transport.Versions{First: uint16(c.version_first), Last: uint16(c.version_last)},
		SameHost: has(C.TENT_SAME_HOST), Copies: has(C.TENT_COPIES), Pins: has(C.TENT_PINS), SliceMax: most,
		SliceBest: best, Alignment: unit, SlicesMax: min(int(c.slices_max), slots)}
	moves := false
	for local := range mem.File { // files are no peers of plug-ins
		for remote := range mem.File {
			p.info.Pairs[local][remote] = c.pairs[local][remote] != 0
			moves = moves || p.info.Pairs[local][remote]
		}
	}
	if !moves {
		return p.senseless("it moves no kind of memory")
	}
	return nil
}

// watched is a port of a plug-in that hears of its peers.
type watched struct{ *port }

// Heard implements transport.Witness.
func (w watched) Heard(rail transport.Rail) (signs transport.Signs) {
	if w.links.Lookup(rail.Link) == nil || !w.enter() {
		return signs
	}
	defer w.leave()
	var c C.tent_signs
	c.size = C.uint32_t(unsafe.Sizeof(c))
	if C.tp_heard(w.api, w.t, railTo(rail), &c) == 0 {
		return signs
	}
	now := clock.Now()
	at := func(ns C.uint64_t) clock.Time { return clock.Time(min(uint64(ns), uint64(now))) }
	return transport.Signs{Heard: at(c.heard), Moved: at(c.moved), Spoke: at(c.spoke), Held: c.held != 0}
}

// withOptions returns the port with the optional interfaces that its plug-in has.
func (p *port) withOptions() transport.Transport {
	if p.api.heard != nil {
		return watched{p}
	}
	return p
}
