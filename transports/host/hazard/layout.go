package hazard

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
)

// Slots is how many copiers of one peer can touch an owner's memory at the same time. More than there are cores is of
// no use; those that find no slot go to the copy workers' queue.
const Slots = 64

// RegionsMax bounds the regions of an owner. Pages are sparse: unused parts cost no memory.
const RegionsMax = 1 << 20

const (
	magic       = 0x7a61_685f_746e_6574 // "tent_haz", little endian
	version     = 2
	headerBytes = 4096
	slotBytes   = 128 // two cache lines: the prefetcher of some processors fetches pairs
	slotsEnd    = headerBytes + Slots*slotBytes
	permitBytes = 16 // a permit and, on the same cache line, the floor behind it
)

// header begins a page. It is written before the page is handed over. Two words change afterwards: the owner's epoch,
// and left.
type header struct {
	layout
	epoch atomic.Uint64 // the newest that the peer may use; see Table.Revoke
	left  atomic.Uint64 // 0 or one of the values below
}

// layout is the part of a header that never changes.
type layout struct {
	magic   uint64
	version uint32
	slots   uint32
	regions uint64
}

// Values of header.left.
const (
	quit     = 1 // of the peer: see View.Quit
	withheld = 2 // of the owner, in place of 0 only: see Page.Withhold
)

// Region names a region of an owner to its peers; it travels in descriptors.
type Region struct {
	Index      uint32
	Generation uint32 // never 0
}

// name is the word of a slot while the region is touched, never 0.
func (r Region) name() uint64 { return uint64(r.Index+1)<<32 | uint64(r.Generation) }

// Epoch counts the fences of an owner, of all its regions. A task that began in one may not touch a region that was
// fenced in a later one. It is the transport.Epoch.
type Epoch uint64

// ForGood is the epoch of a revocation after which nobody enters.
const ForGood Epoch = 0

// Permit is the owner's permission for a peer to touch a region now; 0 is none.
type Permit uint64

func permit(generation, turn uint32) Permit { return Permit(generation)<<32 | Permit(turn) }

func (p Permit) generation() uint32 { return uint32(p >> 32) }

// shared is a mapped page.
type shared struct {
	addr    uintptr
	size    uintptr
	regions uint32
}

func sizeOf(regions uint32) uintptr {
	return (slotsEnd + uintptr(regions)*permitBytes + 4095) &^ 4095
}

// slot is the word of a slot; i must be below Slots.
func (s *shared) slot(i uint32) *atomic.Uint64 {
	return (*atomic.Uint64)(mem.Pointer(s.addr + headerBytes + uintptr(i)*slotBytes))
}

// permit is the word of a region; i must be below regions.
func (s *shared) permit(i uint32) *atomic.Uint64 {
	return (*atomic.Uint64)(mem.Pointer(s.addr + slotsEnd + uintptr(i)*permitBytes))
}

// floor is the epoch of a region's last fence for the peer. It changes only while the permit is 0.
func (s *shared) floor(i uint32) *atomic.Uint64 {
	return (*atomic.Uint64)(mem.Pointer(s.addr + slotsEnd + uintptr(i)*permitBytes + 8))
}

func (s *shared) header() *header { return (*header)(mem.Pointer(s.addr)) }

func (s *shared) unmap() {
	if s.addr != 0 {
		_, _, _ = unix.Syscall(unix.SYS_MUNMAP, s.addr, s.size, 0)
		s.addr = 0
	}
}

// create makes a page for a number of regions, sealed so that no process can make it shorter under another's hands.
func create(regions uint32) (fd int, s shared, err error) {
	fd, err = unix.MemfdCreate("tent-hazard", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, s, fmt.Errorf("memfd_create: %w", err)
	}
	size := sizeOf(regions)
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed)
	}
	if err == nil {
		s, err = mapped(fd, size)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, s, fmt.Errorf("a page of %d bytes: %w", size, err)
	}
	s.regions = regions
	s.header().layout = layout{magic, version, Slots, uint64(regions)}
	return fd, s, nil
}

const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// open maps a page that somebody else made, after checking that it is one.
func open(fd int) (s shared, err error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return s, fmt.Errorf("the page is not a sealed memfd (seals %#x, %v)", seals, err)
	}
	// Somebody may take the huge pages out of a memfd, and the kernel have no others: a touch would end the process.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type == unix.HUGETLBFS_MAGIC {
		return s, fmt.Errorf("the page is made of huge pages (%v)", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return s, fmt.Errorf("fstat of the page: %w", err)
	}
	if st.Size < slotsEnd || st.Size > int64(sizeOf(RegionsMax)) {
		return s, fmt.Errorf("the page has %d bytes", st.Size)
	}
	if s, err = mapped(fd, uintptr(st.Size)); err != nil {
		return s, err
	}
	h := *(*layout)(mem.Pointer(s.addr)) // read once: its owner may go on to write it
	if h.magic != magic || h.version != version || h.slots != Slots || h.regions > RegionsMax ||
		sizeOf(uint32(h.regions)) != s.size {
		s.unmap()
		return s, fmt.Errorf("the header of the page says version %d with %d slots, expected version %d with %d",
			h.version, h.slots, version, Slots)
	}
	s.regions = uint32(h.regions)
	return s, nil
}

// mapped maps a page, not to be inherited by a forked child: that is another process, for which no slot speaks.
func mapped(fd int, size uintptr) (shared, error) {
	addr, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED,
		uintptr(fd), 0)
	if errno != 0 {
		return shared{}, fmt.Errorf("mmap of the page: %w", errno)
	}
	s := shared{addr: addr, size: size}
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, addr, size, unix.MADV_DONTFORK); errno != 0 {
		s.unmap()
		return shared{}, fmt.Errorf("madvise(MADV_DONTFORK) of the page: %w", errno)
	}
	// The first use of a slot should not be a page fault. An older kernel that cannot populate gives the faults.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, addr, slotsEnd, unix.MADV_POPULATE_WRITE)
	return s, nil
}

// Hint spreads callers that have no number of their own over the slots: goroutines have stacks of their own.
func Hint() uint32 {
	var here byte
	return uint32(uint64(uintptr(unsafe.Pointer(&here))>>11) * 0x9e37_79b9_7f4a_7c15 >> 48)
}
