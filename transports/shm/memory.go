package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
)

// memory is the allocations of Allocate, including those that could not be given back.
type memory struct {
	mu     sync.Mutex
	byAddr map[uintptr]*allocation
	serial int  // of files under cxl_mount_path
	closed bool // nothing is added any more
}

// hugeLeast is the least allocation that asks for huge pages. A smaller one would have a page larger than itself.
const hugeLeast = 2 << 20

// allocation is a mapping of a file that peers map too: a memfd, or a file under cxl_mount_path.
type allocation struct {
	addr     uintptr
	size     uint64 // of the mapping: whole pages
	huge     bool   // these are huge pages
	fd       int    // -1 once the transport is closed
	readable int    // the same file, opened for reading: for peers that may not write; -1 until it is needed
	named    bool   // it began as a file under cxl_mount_path, which cannot be sealed
	names    []hazard.Region
	keep     bool // somebody may touch it for as long as we live
}

// Allocate maps zeroed memory that peers can map. Each page comes with its first use, it cannot be made shorter under a
// peer's hands (a memfd is sealed against it), and a forked child does not have it. The caller gives it back by Free.
func (t *Transport) Allocate(wanted transport.Allocation) (mem.Region, error) {
	size, location := wanted.Size, wanted.Location
	kind, node, err := location.Parse()
	switch {
	case err != nil:
		return mem.Region{}, errs.Wrap(errs.InvalidArgument, "shm.allocate", err)
	case kind != mem.Host:
		return mem.Region{}, errs.New(errs.DeviceNotFound, "shm.allocate", "%s is not memory of the host", location)
	case size == 0 || size > 1<<46:
		return mem.Region{}, errs.New(errs.InvalidArgument, "shm.allocate", "the size %d is not between 1 and 2^46",
			size)
	case t.life.Closed():
		return mem.Region{}, kit.Closed("shm.allocate")
	}
	huge := wanted.HugePage != 0
	if huge && t.settings.CXLMountPath != "" {
		return mem.Region{}, errs.New(errs.InvalidArgument, "shm.allocate",
			"files under transports/shm/cxl_mount_path have the pages of their file system")
	}
	page := max(wanted.HugePage, uint64(unix.Getpagesize()))
	a := &allocation{size: (size + page - 1) / page * page, huge: huge, fd: -1, readable: -1}
	if err := t.create(a, node); err != nil {
		a.release()
		return mem.Region{}, errs.Wrap(t.shortage(), "shm.allocate", err)
	}
	r := mem.Region{Addr: a.addr, Size: size, Kind: mem.Host, Location: location, Fd: a.fd}
	if !t.memory.add(a) {
		a.release()
		return mem.Region{}, kit.Closed("shm.allocate")
	}
	return r, nil
}

// shortage is the code for memory that there is not. No other place will do for a folder that somebody named.
func (t *Transport) shortage() errs.Code {
	if t.settings.CXLMountPath != "" {
		return errs.NoSpace
	}
	return errs.OutOfMemory
}

// add enters an allocation. It reports false when the transport has closed meanwhile.
func (m *memory) add(a *allocation) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	if m.byAddr == nil {
		m.byAddr = map[uintptr]*allocation{}
	}
	m.byAddr[a.addr] = a
	return true
}

func (t *Transport) create(a *allocation, node int) (err error) {
	if folder := t.settings.CXLMountPath; folder != "" {
		err = t.memory.createFile(a, folder)
	} else {
		err = a.createMemfd()
	}
	if err != nil {
		return err
	}
	at, err := unix.MmapPtr(a.fd, 0, nil, uintptr(a.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap of %d bytes: %w", a.size, err)
	}
	a.addr = uintptr(at)
	if err := madvise(a.addr, uintptr(a.size), unix.MADV_DONTFORK); err != nil {
		return fmt.Errorf("madvise(MADV_DONTFORK): %w", err)
	}
	if !a.huge && a.size >= hugeLeast {
		_ = madvise(a.addr, uintptr(a.size), unix.MADV_HUGEPAGE) // a wish, which the kernel's policy may refuse
	}
	prefer(a.addr, a.size, node)
	return nil
}

func (a *allocation) createMemfd() (err error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if a.huge {
		flags |= unix.MFD_HUGETLB
	}
	if a.fd, err = unix.MemfdCreate("tent", flags); err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	if err = unix.Ftruncate(a.fd, int64(a.size)); err != nil {
		return fmt.Errorf("a memfd of %d bytes: %w", a.size, err)
	}
	_, err = unix.FcntlInt(uintptr(a.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	return err
}

// createFile makes a new file: one that exists is somebody's data, and is never opened. Its name goes at once, so that
// the file goes with the last process that has it, also where that is killed. Peers come by the descriptor.
func (m *memory) createFile(a *allocation, folder string) (err error) {
	for range 1 << 16 {
		m.mu.Lock()
		m.serial++
		path := cxlPath(folder, m.serial)
		m.mu.Unlock()
		err = uninterrupted(func() (err error) {
			a.fd, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
			return err
		})
		if err == unix.EEXIST {
			continue
		}
		if err != nil {
			return fmt.Errorf("transports/shm/cxl_mount_path: %s: %w", path, err)
		}
		a.named = true
		if err = unix.Unlink(path); err != nil {
			return fmt.Errorf("transports/shm/cxl_mount_path: %s cannot be removed again: %w", path, err)
		}
		err = uninterrupted(func() error { return unix.Fallocate(a.fd, 0, 0, int64(a.size)) })
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = unix.Ftruncate(a.fd, int64(a.size)) // grows: the file is new
		}
		if err != nil {
			return fmt.Errorf("%s: %d bytes: %w", path, a.size, err)
		}
		return nil
	}
	return fmt.Errorf("transports/shm/cxl_mount_path: every name in %s is taken", folder)
}

// checkFolder makes a file of a page and gives it back, so that a folder that takes none is found before it is needed.
func (m *memory) checkFolder(folder string) error {
	if folder == "" {
		return nil
	}
	a := &allocation{size: uint64(unix.Getpagesize()), fd: -1, readable: -1}
	defer a.release()
	if err := m.createFile(a, folder); err != nil {
		return errs.Wrap(errs.InvalidArgument, "shm.open", err).
			WithHint("name a folder in which this process may make files, or leave the setting empty")
	}
	return nil
}

// uninterrupted makes a call again that a signal has interrupted. Profilers and timers of the program send some, and
// file systems answer EINTR then.
func uninterrupted(call func() error) (err error) {
	for err = unix.EINTR; err == unix.EINTR; {
		err = call()
	}
	return err
}

func cxlPath(folder string, serial int) string {
	return filepath.Join(folder, fmt.Sprintf("tent-%d-%d", os.Getpid(), serial))
}

// prefer asks for pages of a NUMA node. It is a wish: a node that is not there, or is full, gives pages of another one.
func prefer(addr uintptr, size uint64, node int) {
	const preferred = 1 // MPOL_PREFERRED
	if node < 0 || node >= 64 {
		return
	}
	mask := uint64(1) << node
	_, _, _ = unix.Syscall6(unix.SYS_MBIND, addr, uintptr(size), preferred, uintptr(unsafe.Pointer(&mask)), 65, 0)
	runtime.KeepAlive(&mask)
}

// share adds to a region's entry how peers can map it, if they can.
func (t *Transport) share(d *manifest.Region, m *mem.Region, r *region) {
	t.memory.mu.Lock()
	defer t.memory.mu.Unlock()
	fd := -1
	if a := t.memory.holdingLocked(m.Addr, m.Size); a != nil && a.fd >= 0 {
		d.At, d.Named, fd = uint64(m.Addr-a.addr), a.named, a.fd
		if m.Permission == mem.GlobalReadOnly {
			fd = a.forReaders()
		}
		a.names = append(a.names, r.name)
		r.of = a
	} else if m.Fd >= 0 && sealed(m.Fd) {
		d.At, fd = m.FdOffset, m.Fd
	}
	var st unix.Stat_t
	if fd < 0 || unix.Fstat(fd, &st) != nil || !mem.Contains(uint64(st.Size), d.At, m.Size) {
		return
	}
	d.Shared, d.File = true, vm.File{Fd: uint32(fd), Dev: st.Dev, Ino: st.Ino}
}

// sealed reports whether a file cannot become shorter than it is.
func sealed(fd int) bool {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil && seals&unix.F_SEAL_SHRINK != 0
}

// holdingLocked returns the allocation that holds a range, nil if there is none.
func (m *memory) holdingLocked(addr uintptr, size uint64) *allocation {
	if a := m.byAddr[addr]; a != nil && size <= a.size {
		return a
	}
	for _, a := range m.byAddr { // a part of one: not on the hot path
		if addr >= a.addr && mem.Contains(a.size, uint64(addr-a.addr), size) {
			return a
		}
	}
	return nil
}

// forReaders returns a descriptor by which the memory can only be read.
func (a *allocation) forReaders() int {
	if a.readable < 0 {
		fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", a.fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return a.fd // peers map for reading only all the same
		}
		a.readable = fd
	}
	return a.readable
}

// Free gives memory of Allocate back; nobody in this process uses it any more. While a peer that was stopped in the
// middle of a copy may still touch it, it is kept, and the error names the peer: a later Free tries again.
func (t *Transport) Free(r mem.Region) error {
	a, err := t.takeOut(r.Addr)
	if err != nil {
		return err
	}
	a.release() // without the lock: it takes long for much memory
	return nil
}

// takeOut takes an allocation off the list that nobody touches.
func (t *Transport) takeOut(addr uintptr) (*allocation, error) {
	m := &t.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.byAddr[addr]
	if a == nil {
		return nil, errs.New(errs.InvalidArgument, "shm.free", "nothing was allocated at %#x", addr)
	}
	if a.keep {
		return nil, errs.New(errs.Timeout, "shm.free",
			"%d bytes stay: when the transport closed, a peer was inside a copy with them", a.size).
			WithScope(errs.ScopeSlice, errs.SideRemote)
	}
	for _, name := range a.names {
		if h, held := t.Table.Held(name); held {
			return nil, errs.New(errs.Timeout, "shm.free",
				"%d bytes stay: process %d is inside a copy with them (slot %d)", a.size, h.PID, h.Slot).
				WithScope(errs.ScopeSlice, errs.SideRemote).WithHint("continue or end that process, then free again")
		}
	}
	delete(m.byAddr, addr)
	return a, nil
}

// release gives everything back. Peers may map the file for a while longer, so its pages are taken out of it.
func (a *allocation) release() {
	if a.fd >= 0 {
		// a file system that cannot waits for the peers
		_ = uninterrupted(func() error {
			return unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(a.size))
		})
	} else if a.addr != 0 {
		_ = madvise(a.addr, uintptr(a.size), unix.MADV_REMOVE) // the same, by the mapping
	}
	if a.addr != 0 {
		_ = unix.MunmapPtr(mem.Pointer(a.addr), uintptr(a.size))
	}
	a.closeFiles()
}

func (a *allocation) closeFiles() {
	for _, fd := range []*int{&a.fd, &a.readable} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}

// closeFiles closes the descriptors of all allocations: no peer comes any more. The memory stays until it is freed.
func (m *memory) closeFiles() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, a := range m.byAddr {
		a.closeFiles()
	}
}

// forget takes a name from an allocation that nobody enters under it any more.
func (m *memory) forget(a *allocation, name hazard.Region) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(a.names, name); i >= 0 {
		a.names = slices.Delete(a.names, i, i+1)
	}
}

// keepAll keeps all memory that peers have ever seen: they could not be waited for.
func (m *memory) keepAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.byAddr {
		a.keep = a.keep || len(a.names) > 0
	}
}
