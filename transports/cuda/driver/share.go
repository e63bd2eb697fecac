//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

// HandleBytes is the size of a legacy handle.
const HandleBytes = 64

// Block is an allocation of a device as another process of the host opens it. Its handle or its descriptor names it.
// Both are rights to all of it: a holder reads and writes the whole allocation.
type Block struct {
	Addr   uintptr // of its first byte, in the owner's process
	Size   uint64
	Handle [HandleBytes]byte // legacy, of cuMemAlloc; or of a chunk of the VMM, if Fabric
	Fd     int               // of a chunk of the VMM, as an expandable segment has them; -1: the handle counts
	Fabric bool
}

// Chunk reports whether the block is a chunk of the VMM.
func (b *Block) Chunk() bool { return b.Fd >= 0 || b.Fabric }

// Share returns the blocks that hold a range of a device, in the order of their addresses. The caller closes their
// descriptors by CloseBlocks. NotHere: no other process can map it.
func Share(addr uintptr, size uint64, ordinal int) ([]Block, error) {
	return shareBy(addr, size, ordinal, 0)
}

// ShareByFabric is Share for processes of other hosts: each block has a fabric handle. NotHere: none of them can map
// it.
func ShareByFabric(addr uintptr, size uint64, ordinal int) ([]Block, error) {
	return shareBy(addr, size, ordinal, 1)
}

func shareBy(addr uintptr, size uint64, ordinal int, fabric C.int) (blocks []Block, err error) {
	l := process()
	if err := l.usable("cuda.share", ordinal); err != nil {
		return nil, err
	}
	for next, end := addr, addr+uintptr(size); next < end; {
		var b C.tc_block
		r := C.tc_share(C.int(ordinal), C.uint64_t(next), fabric, &b)
		if r.code == 0 && len(blocks) > 0 && (b.fd < 0 && b.fabric == 0 || !blocks[0].Chunk()) {
			err = errs.New(errs.NotHere, "cuda.share", "%d bytes at %#x lie in several allocations", size, addr).
				WithHint("register the part of each allocation as a region of its own")
		} else if r.code != 0 {
			e := *errs.From("cuda.share", l.failed("cuda.share", ordinal, r))
			if !sticky(int(r.code)) {
				e.Code = errs.NotHere
			}
			err = &e
		}
		if err != nil {
			CloseBlocks(blocks)
			return nil, err
		}
		block := Block{Addr: uintptr(b.base), Size: uint64(b.bytes), Fd: int(b.fd), Fabric: b.fabric != 0}
		copy(block.Handle[:], unsafe.Slice((*byte)(unsafe.Pointer(&b.handle.bytes[0])), HandleBytes))
		blocks = append(blocks, block)
		next = block.Addr + uintptr(block.Size)
	}
	return blocks, nil
}

// CloseBlocks closes the descriptors of blocks.
func CloseBlocks(blocks []Block) {
	for _, b := range blocks {
		if b.Fd >= 0 {
			_ = unix.Close(b.Fd)
		}
	}
}

// Mapping is memory of another process's device in this one. Any goroutine may call it.
type Mapping struct {
	block  Block    // the legacy one
	offset uintptr  // of the range in the blocks
	owner  [16]byte // UUID of the device that has the memory, zero for one of another host

	chunks   uintptr // address of those of the VMM, 0 for a legacy block
	reserved uint64

	closing sync.Mutex // of Close; before mu
	mu      sync.Mutex // held while a device is opened, and not while the driver unmaps
	closed  bool
	on      []atomic.Uintptr // by device: address of the range there, 0 until it was asked for
}

// Map maps the range at an address of the owner, which lies in the blocks. Their descriptors stay the caller's. The
// UUID is that of the owner's device; zero: another host has it, and its NVLink domain is the way.
func Map(blocks []Block, addr uintptr, owner [16]byte) (*Mapping, error) {
	l := process()
	if l.absent != nil {
		return nil, l.absent
	}
	if len(blocks) == 0 || addr < blocks[0].Addr {
		return nil, errs.New(errs.Protocol, "cuda.map", "no block holds the memory at %#x", addr)
	}
	m := &Mapping{offset: addr - blocks[0].Addr, owner: owner, on: make([]atomic.Uintptr, len(l.devices))}
	if !blocks[0].Chunk() {
		m.block = blocks[0]
		return m, nil
	}
	return m, m.mapChunks(l, blocks)
}

// mapChunks maps chunks side by side.
func (m *Mapping) mapChunks(l *library, blocks []Block) error {
	for _, b := range blocks {
		m.reserved += b.Size
	}
	var at C.uint64_t
	if r := C.tc_reserve(C.uint64_t(m.reserved), &at); r.code != 0 {
		return l.failed("cuda.map", -1, r)
	}
	m.chunks = uintptr(at)
	mapped := uint64(0)
	for i := range blocks {
		b := &blocks[i]
		r := C.tc_map(at+C.uint64_t(mapped), C.uint64_t(b.Size), C.int(b.Fd), unsafe.Pointer(&b.Handle[0]))
		if r.code != 0 {
			_ = C.tc_unmap(at, C.uint64_t(mapped), C.uint64_t(m.reserved))
			return l.failed("cuda.map", -1, r)
		}
		mapped += b.Size
	}
	return nil
}

// On returns the address at which the copy engines of a device reach the range. The first call for a device opens the
// memory there; the next ones cost a load. NotHere: the device has no peer access to the owner's.
func (m *Mapping) On(ordinal int) (uintptr, error) {
	if ordinal >= 0 && ordinal < len(m.on) {
		if at := m.on[ordinal].Load(); at != 0 {
			return at, nil
		}
	}
	l := process()
	if err := l.usable("cuda.map", ordinal); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if at := m.on[ordinal].Load(); at != 0 {
		return at, nil
	}
	if m.closed {
		return 0, errs.New(errs.AddressNotRegistered, "cuda.map", "the peer's memory is not mapped any more")
	}
	at, err := m.open(l, ordinal)
	if err == nil {
		m.on[ordinal].Store(at)
	}
	return at, err
}

// open makes a device reach the range. The driver is asked about the pair first where this process sees both: it has
// no word of its own for chunks without a way.
func (m *Mapping) open(l *library, ordinal int) (uintptr, error) {
	name := strangerOf(m.owner)
	if owner, seen := OrdinalOf(m.owner); seen {
		name = l.nameOf(owner)
		if err := Reach(ordinal, owner); err != nil {
			return 0, err
		}
	}
	at := C.uint64_t(m.chunks)
	var r C.tc_result
	if m.chunks != 0 {
		r = C.tc_allow(C.int(ordinal), at, C.uint64_t(m.reserved))
	} else {
		r = C.tc_open(C.int(ordinal), unsafe.Pointer(&m.block.Handle[0]), &at)
	}
	return uintptr(at) + m.offset, l.unreached("cuda.map", ordinal, name, r)
}

// Close takes the mapping down. No copy uses it any more. A call after one that failed tries again, and one after a
// success does nothing. The driver unmaps chunks behind the work of all streams, and On does not wait for that.
func (m *Mapping) Close() (first error) {
	l := process()
	m.closing.Lock()
	defer m.closing.Unlock()
	m.mu.Lock()
	m.closed = true // On opens for no device any more
	m.mu.Unlock()
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	for ordinal := range m.on {
		at := m.on[ordinal].Load()
		if at != 0 && m.chunks == 0 {
			r := C.tc_close(C.int(ordinal), C.uint64_t(at-m.offset))
			if keep(l.failed("cuda.unmap", ordinal, r)); r.code != 0 {
				continue
			}
		}
		m.on[ordinal].Store(0)
	}
	if m.chunks != 0 {
		r := C.tc_unmap(C.uint64_t(m.chunks), C.uint64_t(m.reserved), C.uint64_t(m.reserved))
		if keep(l.failed("cuda.unmap", -1, r)); r.code == 0 {
			m.chunks = 0
		}
	}
	return first
}
