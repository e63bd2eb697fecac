package engine

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Allocate maps zeroed memory and registers it. It comes from the first transport that can share such memory with
// peers, else from an anonymous mapping, prefaulted so that the first transfer does not pay for page faults.
func (e *Engine) Allocate(m Memory) (mem.RegionID, mem.Region, error) {
	if err := e.usable(); err != nil {
		return 0, mem.Region{}, err
	}
	kind, node, err := m.Location.Parse()
	if err != nil {
		return 0, mem.Region{}, errs.Wrap(errs.InvalidArgument, "allocate", err)
	}
	if m.Size == 0 || m.Size > 1<<46 {
		return 0, mem.Region{}, errs.New(errs.InvalidArgument, "allocate", "the size %d is not between 1 and 2^46",
			m.Size)
	}
	r, err := e.mapFor(m, kind, node)
	if err != nil {
		return 0, mem.Region{}, err
	}
	r.Name, r.Permission, r.allocated = m.Name, m.Permission, true
	r.engine = e
	id, err := e.register(r)
	if err != nil {
		r.life.advance(eventFreed)
		e.unmap(r)
		return 0, mem.Region{}, err
	}
	e.allocations.mu.Lock()
	e.allocations.byID[id] = r
	e.allocations.mu.Unlock()
	return id, r.Region, nil
}

// mapFor finds the memory for a region.
func (e *Engine) mapFor(m Memory, kind mem.Kind, node int) (*region, error) {
	for _, p := range e.ports {
		if p.transport == nil {
			continue
		}
		if a, ok := transport.Find[transport.Allocator](p.transport); ok {
			if got, err := a.Allocate(m.Size, m.Location); err == nil {
				return &region{Region: got, owner: a}, nil
			} else if kind != mem.Host {
				e.log.Debug("allocate", "transport", p.name, "err", err)
			}
		}
	}
	if kind != mem.Host {
		return nil, errs.New(errs.DeviceNotFound, "allocate", "no transport of this build allocates memory at %q",
			m.Location).
			WithHint("allocate it with your framework and register it")
	}
	size := roundUp(m.Size, uint64(os.Getpagesize()))
	start, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, errs.Wrap(errs.OutOfMemory, "allocate", err)
	}
	addr := uintptr(start)
	bytes := mem.Bytes(addr, int(size))
	prefer(addr, size, node)
	_ = unix.Madvise(bytes, unix.MADV_HUGEPAGE) // fewer faults and TLB misses where the system has them; a hint
	if err := unix.Madvise(bytes, unix.MADV_POPULATE_WRITE); err == unix.ENOMEM {
		_ = unix.MunmapPtr(start, uintptr(size))
		return nil, errs.Wrap(errs.OutOfMemory, "allocate", err)
	}
	return &region{Region: mem.Region{Addr: addr, Size: m.Size, Location: m.Location, Fd: -1}}, nil
}

func roundUp(n, to uint64) uint64 { return (n + to - 1) / to * to }

// FreeMemory gives memory of Allocate back. The region must be closed; the mapping goes when no transfer uses it any
// more. The caller guarantees that no view of the bytes is used afterwards.
func (e *Engine) FreeMemory(id mem.RegionID) error {
	e.allocations.mu.Lock()
	r := e.allocations.byID[id]
	e.allocations.mu.Unlock()
	if r == nil {
		return errs.New(errs.InvalidEntry, "free", "the region is not one that Allocate made, or was freed")
	}
	if r.life.state() == regionOpen {
		return errs.New(errs.InvalidArgument, "free", "the region %s is open", r.label()).WithHint("close it first")
	}
	e.allocations.mu.Lock()
	delete(e.allocations.byID, id)
	e.allocations.mu.Unlock()
	if to, moved := r.life.advance(eventFreed); moved && to == regionUnmapped {
		e.unmap(r)
	}
	return nil
}

// unmap gives the bytes back. The caller has moved the region to regionUnmapped.
func (e *Engine) unmap(r *region) {
	if r.owner != nil {
		if err := r.owner.Free(r.Region); err != nil {
			e.log.Warn("free", "region", r.Name, "err", err)
		}
		return
	}
	size := roundUp(r.Size, uint64(os.Getpagesize()))
	if err := unix.MunmapPtr(mem.Pointer(r.Addr), uintptr(size)); err != nil {
		e.log.Warn("free", "region", r.Name, "err", err)
	}
}
