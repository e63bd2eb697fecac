package plugin

/*
#include <stdlib.h>
#include "port.h"
*/
import "C"

import (
	"unsafe"

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
	for i, s := range list {
		unsafe.Slice(array, len(list))[i] = a.text(s)
	}
	return array
}

// peer makes the peer for a call.
func (a *arena) peer(p transport.Peer) *C.tent_peer {
	c := &C.tent_peer{size: C.uint32_t(unsafe.Sizeof(C.tent_peer{})), version: C.uint16_t(p.Version),
		address: a.text(p.Address), name: a.text(p.Name), machine_id: a.text(p.MachineID), network: a.text(p.Network),
		identity: a.text(p.Identity), host: a.text(p.Host), addresses: a.text(""), protects: C.uint64_t(p.Protects),
		self: asFlag(p.Self)}
	copy(unsafe.Slice((*byte)(&c.id[0]), len(p.ID)), p.ID[:])
	return c
}

// region makes the region for a call.
func (a *arena) region(m *mem.Region) *C.tent_region {
	c := &C.tent_region{size: C.uint32_t(unsafe.Sizeof(C.tent_region{})), kind: C.uint8_t(m.Kind),
		permission: C.uint8_t(m.Permission), id: C.uint64_t(m.ID), address: C.uint64_t(m.Addr),
		bytes: C.uint64_t(m.Size), fd: C.int32_t(m.Fd), dmabuf: -1, fd_offset: C.uint64_t(m.FdOffset),
		allocation: C.uint64_t(m.Device.Allocation), location: a.text(string(m.Location)), pci: a.text(m.Device.PCI),
		name: a.text(m.Name), read_only: asFlag(m.ReadOnly)}
	if m.DMABuf != nil {
		c.dmabuf, c.dmabuf_offset = C.int32_t(m.DMABuf.Fd), C.uint64_t(m.DMABuf.Offset)
	}
	copy(unsafe.Slice((*byte)(&c.device_uuid[0]), len(m.Device.UUID)), m.Device.UUID[:])
	return c
}

func asFlag(is bool) C.uint8_t {
	if is {
		return 1
	}
	return 0
}

// errorTo copies an error for a plug-in.
func errorTo(e *errs.Error) (c C.tent_error) {
	c.size, c.code = C.uint32_t(unsafe.Sizeof(c)), C.uint16_t(e.Code)
	c.scope, c.side, c.collateral = C.uint8_t(e.Scope), C.uint8_t(e.Side), asFlag(e.Collateral)
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
