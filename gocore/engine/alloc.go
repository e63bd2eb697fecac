package engine

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/gocore/vmem"
)

// allocations is the memory that Allocate made and FreeMemory has not taken back.
type allocations struct {
	kernel vmem.Files // its word on free memory

	mu      sync.Mutex
	byID    map[mem.RegionID]*region
	pending uint64 // bytes of calls under way
}

func (a *allocations) init() { a.kernel, a.byID = vmem.Kernel, make(map[mem.RegionID]*region) }

// Sizes of Allocate.
const (
	allocateMost  = 1 << 46
	lookFrom      = 1 << 20  // smaller ones do not look for free memory, which costs more than they do
	populateBytes = 64 << 20 // between two looks while pages are made
)

// Allocate maps zeroed memory and registers it. It comes from the first transport that can share such memory with
// peers, else from the platform of the location's kind, or from an anonymous mapping. More than the machine or a cgroup
// has left is refused with OutOfMemory, before anything is touched; memory of earlier calls that nobody has touched yet
// counts as taken.
//
// The kernel gives each page at its first use, which then costs many times the copy; with Prefault that happens here.
// Nothing is set aside without it: to reserve pages is to take them (fallocate of a memfd counts them, and meets the
// OOM killer of a cgroup, as touching does). So memory that others take between the call and the first use is missing
// then, as for any program. It is never a SIGBUS: neither a memfd nor an anonymous mapping has a size limit of its own,
// and files of transports/shm/cxl_mount_path get their blocks in the call.
func (e *Engine) Allocate(m Memory) (mem.RegionID, mem.Region, error) {
	if err := e.usable(); err != nil {
		return 0, mem.Region{}, err
	}
	kind, node, err := m.Location.Parse()
	if err != nil {
		return 0, mem.Region{}, errs.Wrap(errs.InvalidArgument, "allocate", err)
	}
	if kind != mem.Host && m.HugePages {
		return 0, mem.Region{}, errs.New(errs.InvalidArgument, "allocate", "huge pages are of the host, not of %s",
			m.Location).WithHint("leave hugepages out: a device chooses its pages itself")
	}
	if err := e.regions.nameFree(m.Name); err != nil { // before pages are made, which may take a minute
		return 0, mem.Region{}, err
	}
	if kind == mem.Host && m.Size >= lookFrom && !m.HugePages { // the kernel reserves pages of their pool in the call
		if err := e.allocations.promise(m.Size); err != nil {
			return 0, mem.Region{}, err
		}
		defer e.allocations.settle(m.Size)
	}
	if m.Size == 0 || m.Size > allocateMost { // behind the look: more than there is, is OutOfMemory
		return 0, mem.Region{}, errs.New(errs.InvalidArgument, "allocate", "the size %d is not between 1 and 2^46",
			m.Size)
	}
	rule, err := e.rules.of(e, m)
	if err != nil {
		return 0, mem.Region{}, err
	}
	r, err := e.mapFor(m, kind, node)
	if err != nil {
		return 0, mem.Region{}, err
	}
	r.rule, r.Peers = rule, rule.peers()
	r.Name, r.Permission = m.Name, m.Permission
	r.engine = e
	id, err := e.prepare(r, &m)
	if err != nil {
		e.advance(r, eventFreed)
		return 0, mem.Region{}, err
	}
	e.allocations.mu.Lock()
	e.allocations.byID[id] = r
	e.allocations.mu.Unlock()
	return id, r.Region, nil
}

func (e *Engine) prepare(r *region, m *Memory) (mem.RegionID, error) {
	if kind, _, _ := r.Location.Parse(); (m.Prefault || m.HugePages) && kind == mem.Host {
		if err := e.allocations.populate(r.Addr, r.Size, m.HugePages, e.usable); err != nil {
			return 0, err
		}
	}
	return e.register(r)
}

// promise counts size bytes as taken until settle, or returns OutOfMemory.
func (a *allocations) promise(size uint64) *errs.Error {
	room, known := a.kernel.Room()
	a.mu.Lock()
	defer a.mu.Unlock()
	promised := a.pending
	for _, r := range a.byID {
		promised += owed(&r.Region)
	}
	if known && size > room.Bytes-min(room.Bytes, promised) {
		err := errs.New(errs.OutOfMemory, "allocate", "%d bytes are more than the %d that are left %s", size,
			room.Bytes, room.Limit).WithHint("ask for less, free other memory, or raise the limit")
		if promised > 0 {
			err.Cause += fmt.Sprintf("; %d of those are for memory of earlier calls that was not touched yet", promised)
		}
		return err
	}
	a.pending += size
	return nil
}

func (a *allocations) settle(size uint64) {
	a.mu.Lock()
	a.pending -= size
	a.mu.Unlock()
}

// owed returns the bytes of a region of Allocate that the kernel has given no pages for yet.
func owed(r *mem.Region) uint64 {
	if r.Kind != mem.Host {
		return 0
	}
	var st unix.Stat_t
	if r.Fd >= 0 && unix.Fstat(r.Fd, &st) == nil {
		return r.Size - min(r.Size, uint64(st.Blocks)*512)
	}
	return r.Size - min(r.Size, vmem.Resident(r.Addr, r.Size))
}

// populate makes pages present, step by step while the engine is usable and there is room for the next two. Huge pages
// are reserved already; a limit of a cgroup can still refuse them, here and not by a SIGBUS at their first use.
func (a *allocations) populate(addr uintptr, size uint64, huge bool, usable func() error) error {
	for done := uint64(0); done < size; {
		if err := usable(); err != nil {
			return err
		}
		step := min(size-done, populateBytes)
		if room, known := a.kernel.Room(); !huge && known && size >= lookFrom && room.Bytes < 2*step {
			return errs.New(errs.OutOfMemory, "allocate", "prefault: %d bytes of %d are there, and only %d are left %s",
				done, size, room.Bytes, room.Limit).WithHint("ask for less, free other memory, or raise the limit")
		}
		switch err := vmem.Populate(addr+uintptr(done), step); err {
		case nil:
			done += step
		case unix.EINTR:
		case unix.EINVAL: // Linux before 5.14 leaves it to the first use
			return nil
		default:
			return errs.Wrap(errs.OutOfMemory, "allocate", fmt.Errorf("prefault: %d bytes of %d are there: %w", done,
				size, err))
		}
	}
	return nil
}

// mapFor finds the memory for a region. Where the place that a setting names is full, no other one will do.
func (e *Engine) mapFor(m Memory, kind mem.Kind, node int) (*region, error) {
	wanted := transport.Allocation{Size: m.Size, Location: m.Location}
	if m.HugePages {
		wanted.HugePage = e.allocations.kernel.HugePages().Size
	}
	for _, p := range e.ports {
		if a, ok := transport.Find[transport.Allocator](p.transport); ok {
			got, err := a.Allocate(wanted)
			if err == nil {
				return &region{Region: got, owner: a}, nil
			}
			if errs.CodeOf(err) == errs.NoSpace {
				return nil, err
			}
			e.log.Debug("allocate", "transport", p.name, "err", err)
		}
	}
	if kind != mem.Host {
		return e.mapOnDevice(m, kind, node)
	}
	return e.mapAnonymous(&wanted, node)
}

// mapAnonymous maps memory of the host that only this process has.
func (e *Engine) mapAnonymous(a *transport.Allocation, node int) (*region, error) {
	flags, huge := unix.MAP_PRIVATE|unix.MAP_ANON, a.HugePage != 0
	if huge {
		flags |= unix.MAP_HUGETLB
	}
	size := roundUp(a.Size, max(a.HugePage, uint64(os.Getpagesize())))
	start, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil && huge {
		return nil, e.allocations.kernel.NoHugePages(a.Size, err)
	} else if err != nil {
		return nil, unmappable(size, err)
	}
	addr := uintptr(start)
	prefer(addr, size, node)
	if !huge {
		_ = unix.Madvise(mem.Bytes(addr, int(size)), unix.MADV_HUGEPAGE) // fewer faults and TLB misses; a hint
	}
	return &region{Region: mem.Region{Addr: addr, Size: a.Size, Location: a.Location, Fd: -1},
		owner: ownMapping(size)}, nil
}

// ownMapping is the size of a mapping of the engine: whole pages.
type ownMapping uintptr

// Free implements freer.
func (size ownMapping) Free(r mem.Region) error {
	return unix.MunmapPtr(mem.Pointer(r.Addr), uintptr(size))
}

// unmappable makes the error of an mmap that failed: the limits of address space and of commitments, not of memory.
func unmappable(size uint64, cause error) *errs.Error {
	err := errs.Wrap(errs.OutOfMemory, "allocate", fmt.Errorf("mmap of %d bytes: %w", size, cause))
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &limit) == nil && limit.Cur < 1<<62 {
		return err.WithHint("the address space of this process is limited to %d bytes: raise ulimit -v", limit.Cur)
	}
	return err.WithHint("look at vm.overcommit_memory, and at CommitLimit and Committed_AS of /proc/meminfo")
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
	e.advance(r, eventFreed)
	return nil
}

// Allocations returns the number of ranges of Allocate that FreeMemory has not taken back.
func (e *Engine) Allocations() int {
	e.allocations.mu.Lock()
	defer e.allocations.mu.Unlock()
	return len(e.allocations.byID)
}

// advance moves a region on in its life, and gives its memory back where that was the last step.
func (e *Engine) advance(r *region, event regionEvent) {
	if to, moved := r.life.advance(event); moved && to == regionUnmapped {
		if err := r.owner.Free(r.Region); err != nil {
			e.log.Warn("free", "region", r.Name, "err", err)
		}
	}
}
