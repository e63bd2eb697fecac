package manifest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/transports/host/vm"
)

// ID names an engine, as transport.ID does.
type ID = [16]byte

// Region is an owner's word about one of its regions.
type Region struct {
	Addr   uint64 // in the owner's process
	Size   uint64
	Allows mem.Permission
	Fixed  bool    // not even the owner writes it
	Shared bool    // peers can map it:
	File   vm.File // that has it
	Named  bool    // the file is one of a file system, which cannot be sealed
	At     uint64  // of its first byte there
}

// Manifest is the owner's side. Any goroutine may call its methods; after Close, changes have no effect.
type Manifest struct {
	View
	file vm.File
	mu   sync.Mutex // of writers and Close
}

// CountMax is the largest number of regions in a manifest.
const CountMax = 1 << 20

const (
	name       = "tent-manifest"
	magic      = 0x6e61_6d5f_746e_6574 // "tent_man", little endian
	version    = 1
	headBytes  = 4096
	turnAt     = 64 // of the count of Turn, in the page of the head
	entryBytes = 64
	seals      = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
)

// head begins the file. It is not changed once peers can see it.
type head struct {
	magic   uint64
	version uint32
	count   uint32
	id      ID
}

// entry is a region's place in the file. Its words are read while they may be written.
type entry struct {
	generation atomic.Uint64 // 0: none
	addr, size atomic.Uint64
	flags      atomic.Uint64 // permission and the flags below, descriptor<<32
	dev, ino   atomic.Uint64
	at         atomic.Uint64
	_          uint64
}

const (
	flagFixed  = 1 << 8
	flagShared = 1 << 9
	flagNamed  = 1 << 10
)

// New makes the manifest of an engine, with room for a number of regions, CountMax at most. Unused entries cost no
// memory.
func New(id ID, count uint32) (*Manifest, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	m, err := create(fd, id, count)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("a manifest of %d regions: %w", count, err)
	}
	return m, nil
}

func create(fd int, id ID, count uint32) (*Manifest, error) {
	size := sizeOf(count)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, err
	}
	m := &Manifest{View: View{size: size, count: count}}
	at, err := unix.MmapPtr(fd, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	m.addr = uintptr(at)
	*(*head)(at) = head{magic, version, count, id}
	m.turn().Store(1)
	// A forked child is another process: it must not write in our name.
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, m.addr, size, unix.MADV_DONTFORK)
	if errno != 0 {
		err = errno
	} else {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err == nil {
		m.file, err = vm.FileOf(fd)
	}
	if err != nil {
		m.Unmap()
		return nil, err
	}
	return m, nil
}

// File is the descriptor that peers are to open. It stays the Manifest's.
func (m *Manifest) File() vm.File { return m.file }

// Write lists a region under its index, which is below the count, in place of the one before it. generation is not 0.
func (m *Manifest) Write(index, generation uint32, r *Region) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.addr == 0 {
		return
	}
	e := m.entry(index)
	if e.generation.Swap(0) != 0 {
		defer m.turn().Add(1)
	}
	e.addr.Store(r.Addr)
	e.size.Store(r.Size)
	e.flags.Store(uint64(r.Allows) | uint64(r.File.Fd)<<32 | when(r.Fixed, flagFixed) |
		when(r.Shared, flagShared) | when(r.Named, flagNamed))
	e.dev.Store(r.File.Dev)
	e.ino.Store(r.File.Ino)
	e.at.Store(r.At)
	e.generation.Store(uint64(generation))
}

func when(set bool, flag uint64) uint64 {
	if set {
		return flag
	}
	return 0
}

// Erase takes a region off the list.
func (m *Manifest) Erase(index uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.addr != 0 {
		m.entry(index).generation.Store(0)
		m.turn().Add(1)
	}
}

// Close gives the file back. Peers that map it keep their view.
func (m *Manifest) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.addr != 0 {
		m.Unmap()
		_ = unix.Close(int(m.file.Fd))
	}
}

func sizeOf(count uint32) uintptr { return (headBytes + uintptr(count)*entryBytes + 4095) &^ 4095 }

// View is a mapped manifest. Any goroutine may read it until Unmap.
type View struct {
	addr, size uintptr
	count      uint32
}

// Find returns the owner's word about a region, false if it is not listed (any more).
func (v *View) Find(index, generation uint32) (r Region, listed bool) {
	if index >= v.count || generation == 0 {
		return Region{}, false
	}
	e := v.entry(index)
	if e.generation.Load() != uint64(generation) {
		return Region{}, false
	}
	flags := e.flags.Load()
	r = Region{Addr: e.addr.Load(), Size: e.size.Load(), Allows: mem.Permission(flags), Fixed: flags&flagFixed != 0,
		Shared: flags&flagShared != 0, Named: flags&flagNamed != 0,
		File: vm.File{Fd: uint32(flags >> 32), Dev: e.dev.Load(), Ino: e.ino.Load()}, At: e.at.Load()}
	sound := r.Addr != 0 && r.Size != 0 && r.Addr+r.Size > r.Addr && r.Allows <= mem.GlobalReadWrite &&
		r.At+r.Size >= r.At
	return r, sound && e.generation.Load() == uint64(generation)
}

// Turn counts the regions that their owner has taken off the list or listed anew, each after the change. While it is as
// before a look at the list, regions that were listed then are listed still. 0: the owner does not count.
func (v *View) Turn() uint64 { return v.turn().Load() }

func (v *View) turn() *atomic.Uint64 { return (*atomic.Uint64)(mem.Pointer(v.addr + turnAt)) }

// entry is the place of a region; index must be below count.
func (v *View) entry(index uint32) *entry {
	return (*entry)(mem.Pointer(v.addr + headBytes + uintptr(index)*entryBytes))
}

// Unmap takes the mapping down. No method may be running or be called afterwards.
func (v *View) Unmap() {
	if v.addr != 0 {
		_ = unix.MunmapPtr(mem.Pointer(v.addr), v.size)
		v.addr = 0
	}
}

var _ [entryBytes]struct{} = [unsafe.Sizeof(entry{})]struct{}{}
