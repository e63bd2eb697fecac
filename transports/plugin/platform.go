package plugin

/*
#include <stdlib.h>
#include "port.h"
*/
import "C"

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/nic"
)

// devicesMax bounds the devices of one plug-in; zeroBytes are cleared by one copy.
const (
	devicesMax = 64
	zeroBytes  = 1 << 20
)

// platform is a device.Platform of a plug-in with tent_device.h. All of a process share it. Any goroutine and thread
// may call it.
type platform struct {
	path, name, class string
	kind              mem.Kind
	table             *C.device_plugin_t // a copy of our own, in memory of C
	plugin            unsafe.Pointer     // the plug-in's

	allocations device.Allocations[struct{}]
}

// Platforms returns the devices of the plug-ins that the setting "plugins" names. Those that cannot be used are
// Factories of Load, with the reason.
func Platforms(paths []string) (list []device.Platform) {
	for _, file := range files(paths) {
		if l := opened(file); l.err == nil && l.devices != nil {
			list = append(list, l.devices)
		}
	}
	return list
}

// devicesOf registers the devices of a library; nil if it has none.
func devicesOf(path, name string, library unsafe.Pointer) (*platform, error) {
	p := &platform{path: path, name: name}
	p.table = (*C.device_plugin_t)(C.calloc(1, C.size_t(unsafe.Sizeof(C.device_plugin_t{})))) // stays: libraries do
	var why [textMax]C.char
	switch C.td_register(library, p.table, &p.plugin, &why[0], textMax) {
	case 0:
		C.free(unsafe.Pointer(p.table))
		return nil, nil
	case -1:
		return nil, refused(path, "%s", textOf(&why[0], textMax))
	}
	p.class = textOf(p.table.class_name, textMax)
	for _, kind := range []mem.Kind{mem.Cuda, mem.Rocm, mem.Npu, mem.Tpu} {
		if strings.HasPrefix(strings.ToLower(p.class), kind.String()) {
			p.kind = kind
			return p, nil
		}
	}
	return nil, refused(path, "the class of its devices, %q, begins with none of cuda, rocm, npu, tpu", p.class)
}

// Name implements device.Platform.
func (p *platform) Name() string { return p.name }

// Kind implements device.Platform.
func (p *platform) Kind() mem.Kind { return p.kind }

// Check implements device.Platform.
func (p *platform) Check() error {
	_, err := p.count()
	return err
}

func (p *platform) count() (int, error) {
	switch n := int(C.td_count(p.table, p.plugin)); {
	case n <= 0:
		return 0, p.wrong(errs.DeviceNotFound, "it sees no device: get_device_count returned %d", n)
	case n > devicesMax:
		return 0, p.wrong(errs.DeviceNotFound, "it has %d devices, and %d are the limit", n, devicesMax)
	default:
		return n, nil
	}
}

func (p *platform) wrong(code errs.Code, format string, args ...any) *errs.Error {
	e := refused(p.path, format, args...)
	e.Code = code
	return e
}

// Devices implements device.Platform.
func (p *platform) Devices() ([]device.Info, error) {
	n, err := p.count()
	if err != nil {
		return nil, err
	}
	list := make([]device.Info, n)
	for i := range list {
		list[i] = device.Info{Name: p.class, Node: -1}
		var text [32]C.char
		if C.td_bus(p.table, p.plugin, C.int(i), &text[0], C.size_t(len(text))) == 0 {
			list[i].PCI = strings.ToLower(textOf(&text[0], len(text)))
			list[i].Node = nic.BusNode(os.DirFS("/"), list[i].PCI)
		}
	}
	return list, nil
}

// Locate implements device.Platform. An answer without sense is an error: memory of a device must not pass for the
// host's.
func (p *platform) Locate(addr uintptr, size uint64) ([]device.Span, error) {
	var parts [C.TENT_LOCATIONS_MAX]C.location_t
	for i := range parts {
		parts[i].location[0] = 0
	}
	n := int(C.td_locate(p.table, p.plugin, C.uintptr_t(addr), C.size_t(size), &parts[0]))
	if n < 0 || n > len(parts) {
		return nil, p.wrong(errs.Internal, "it cannot say whose memory %d bytes at %#x are: query_location returned %d",
			size, addr, n)
	}
	var spans []device.Span
	for i := range parts[:n] {
		s, err := p.span(&parts[i], addr, size)
		if err != nil {
			return nil, err
		}
		if s.Size > 0 {
			spans = append(spans, s)
		}
	}
	slices.SortFunc(spans, func(a, b device.Span) int { return cmp.Compare(a.Addr, b.Addr) })
	for i := 1; i < len(spans); i++ {
		if spans[i-1].Addr+uintptr(spans[i-1].Size) > spans[i].Addr {
			return nil, p.wrong(errs.Internal, "two of its devices have the byte at %#x", spans[i].Addr)
		}
	}
	return spans, nil
}

// span checks one part of an answer, and cuts it to the range. Memory of the host is no part.
func (p *platform) span(c *C.location_t, addr uintptr, size uint64) (s device.Span, err error) {
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&c.location[0])), len(c.location))
	end := bytes.IndexByte(raw, 0)
	if end < 0 {
		return s, p.wrong(errs.Internal, "a location has no end: %q", errs.Printable(string(raw), len(raw)))
	}
	kind, ordinal, err := mem.Location(raw[:end]).Parse()
	switch {
	case err == nil && kind == mem.Host:
		return s, nil
	case err != nil || kind != p.kind || ordinal < 0:
		return s, p.wrong(errs.Internal, "a location is %q, and its devices are %v:N",
			errs.Printable(string(raw[:end]), len(raw)), p.kind)
	}
	start := uintptr(unsafe.Pointer(c.start))
	stop := start + uintptr(c.length)
	if stop < start {
		return s, p.wrong(errs.Internal, "a part of %d bytes begins at %#x", uint64(c.length), start)
	}
	start, stop = max(start, addr), min(stop, addr+uintptr(size))
	if start < stop {
		s = device.Span{Addr: start, Size: uint64(stop - start), Ordinal: ordinal}
	}
	return s, nil
}

// Allocate implements device.Platform. Plug-ins need not clear memory, so we do.
func (p *platform) Allocate(ordinal int, size uint64) (uintptr, error) {
	n, err := p.count()
	switch {
	case err != nil:
		return 0, err
	case ordinal < 0 || ordinal >= n:
		return 0, p.wrong(errs.DeviceNotFound, "it has no device %v:%d", p.kind, ordinal)
	}
	var texts arena
	defer texts.free()
	location := texts.text(string(device.Place{Platform: p, Ordinal: ordinal}.Location()))
	var addr C.uintptr_t
	if r := C.td_allocate(p.table, p.plugin, &addr, C.size_t(size), location); r != 0 || addr == 0 {
		return 0, p.wrong(errs.OutOfMemory, "alloc of %d bytes at %v:%d returned %d", size, p.kind, ordinal, int(r))
	}
	p.allocations.Add(uintptr(addr), size, struct{}{})
	if err := p.clear(uintptr(addr), size); err != nil {
		_ = p.Free(uintptr(addr), size) // the error of the copy counts
		return 0, err
	}
	return uintptr(addr), nil
}

func (p *platform) clear(addr uintptr, size uint64) error {
	zeroes := C.calloc(1, zeroBytes)
	defer C.free(zeroes)
	for at := uint64(0); at < size; at += zeroBytes {
		if err := p.copy(addr+uintptr(at), uintptr(zeroes), min(zeroBytes, size-at)); err != nil {
			return err
		}
	}
	return nil
}

// Free implements device.Platform.
func (p *platform) Free(addr uintptr, size uint64) error {
	return p.allocations.Free("plug-in "+p.path, addr, size, func(struct{}) error {
		if r := C.td_free(p.table, p.plugin, C.uintptr_t(addr), C.size_t(size)); r != 0 {
			return p.wrong(errs.Internal, "free of %d bytes at %#x returned %d", size, addr, int(r))
		}
		return nil
	})
}

// Copy implements device.Platform. The plug-in copies where one end is a device's; memory of the host is copied here.
func (p *platform) Copy(to, from uintptr, n uint64) error {
	if n == 0 {
		return nil
	}
	for _, end := range [...]uintptr{to, from} {
		spans, err := p.Locate(end, 1)
		if err != nil {
			return err
		}
		if len(spans) > 0 {
			return p.copy(to, from, n)
		}
	}
	if fault := mem.Copy(mem.Bytes(to, int(n)), mem.Bytes(from, int(n))); fault != nil {
		return errs.MemoryGone(p.name+".copy", errs.SideLocal)
	}
	return nil
}

func (p *platform) copy(to, from uintptr, n uint64) error {
	if r := C.td_copy(p.table, p.plugin, C.uintptr_t(to), C.uintptr_t(from), C.size_t(n)); r != 0 {
		return p.wrong(errs.Internal, "memcpy_sync of %d bytes from %#x to %#x returned %d", n, from, to, int(r))
	}
	return nil
}
