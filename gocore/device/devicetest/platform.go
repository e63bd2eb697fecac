// Package devicetest has a platform without hardware, and the rules that every platform keeps (Run).
//
// Memory of its devices is address space that no processor can touch (PROT_NONE): code that takes it for memory of the
// host dies at its first load. Only Copy, Load and Store reach the bytes, by a second mapping that is theirs alone.
// Guard bands lie around each allocation, and CheckBands looks at them. It is for tests, and never part of a build.
package devicetest

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// Band is the number of bytes before and behind each allocation that nobody may write.
const Band = 4096

// bandByte fills the bands.
const bandByte = 0xb5

// Platform is a platform of a few devices. Its exported fields are set before its first use and not changed then. All
// methods may be called from any goroutine.
type Platform struct {
	Trouble error                          // of Locate: the driver is broken
	Absent  error                          // of Check
	Sealed  error                          // of Export: this memory cannot be exported
	Lands   func(ordinal int) *mem.Landing // nil: devices see bytes of a NIC at once

	kind  mem.Kind
	count int // of devices
	fd    int // sparse memfd with the bytes of all blocks

	mu      sync.Mutex
	end     int64    // of the part of fd that was given out; no byte of it comes twice
	blocks  []*block // in the order of their addresses
	births  uint64   // of allocations
	pinned  []device.Span
	streams map[uintptr]*stream
	gates   int // that were not given back
}

// block is allocations of one size side by side, usually one. The processor sees address space that it cannot touch;
// the bytes are elsewhere.
type block struct {
	addr  uintptr // of the first byte behind the band
	each  uint64  // bytes of an allocation
	parts []part
	space uintptr // reserved, as long as bytes
	bytes []byte  // with both bands
	at    uint64  // of bytes in the platform's file
}

// part is an allocation.
type part struct {
	ordinal int
	id      uint64
	managed bool
}

func (b *block) size() uint64 { return b.each * uint64(len(b.parts)) }

var (
	_ device.Platform = (*Platform)(nil)
	_ device.Exporter = (*Platform)(nil)
	_ device.Flushing = (*Platform)(nil)
	_ device.Streams  = (*Platform)(nil)
)

// New makes a platform of a kind with a number of devices. The end of the test checks the guard bands, and that all
// memory, gates and latches were given back.
func New(t testing.TB, kind mem.Kind, count int) *Platform {
	p := &Platform{kind: kind, count: count}
	var err error
	p.fd, err = unix.MemfdCreate("tent-device", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(p.fd, 1<<40))
	t.Cleanup(func() {
		require.NoError(t, p.CheckBands())
		require.Zero(t, p.Left(), "allocations that nobody freed")
		require.Zero(t, p.GatesLeft(), "gates that nobody closed")
		require.Zero(t, p.LatchesLeft(), "latches that nobody closed")
		require.NoError(t, unix.Close(p.fd))
	})
	return p
}

// Name implements device.Platform.
func (p *Platform) Name() string { return "fake " + p.kind.String() }

// Kind implements device.Platform.
func (p *Platform) Kind() mem.Kind { return p.kind }

// Check implements device.Platform.
func (p *Platform) Check() error { return p.Absent }

// Devices implements device.Platform. Each device has a UUID and a place of its own.
func (p *Platform) Devices() ([]device.Info, error) {
	list := make([]device.Info, p.count)
	for i := range list {
		list[i] = device.Info{Name: fmt.Sprintf("%s number %d", p.Name(), i), Node: -1}
		list[i].PCI = fmt.Sprintf("0000:%02x:00.0", i+1)
		copy(list[i].UUID[:], fmt.Sprintf("tent %v %d", p.kind, i))
	}
	return list, nil
}

// Locate implements device.Platform.
func (p *Platform) Locate(addr uintptr, size uint64) (list []device.Span, err error) {
	if p.Trouble != nil {
		return nil, p.Trouble
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	add := func(s device.Span) {
		if from, end := max(s.Addr, addr), min(s.Addr+uintptr(s.Size), addr+uintptr(size)); from < end {
			s.Addr, s.Size = from, uint64(end-from)
			list = append(list, s)
		}
	}
	for _, b := range p.blocks {
		for i, of := range b.parts {
			add(device.Span{Addr: b.addr + uintptr(uint64(i)*b.each), Size: b.each, Ordinal: of.ordinal,
				Managed: of.managed, Allocation: of.id})
		}
	}
	for _, s := range p.pinned {
		add(s)
	}
	slices.SortFunc(list, func(a, b device.Span) int { return cmp.Compare(a.Addr, b.Addr) })
	return list, nil
}

// Pin notes memory of the host as pinned by the driver.
func (p *Platform) Pin(addr uintptr, size uint64) {
	p.mu.Lock()
	p.pinned = append(p.pinned, device.Span{Addr: addr, Size: size, Ordinal: device.Pinned})
	p.mu.Unlock()
}

// Allocate implements device.Platform.
func (p *Platform) Allocate(ordinal int, size uint64) (uintptr, error) {
	return p.AllocateSide(size, ordinal)
}

// AllocateSide makes an allocation of size bytes on each of some devices, side by side, and returns the address of the
// first. Bands lie around them, not between. Free takes them back together.
func (p *Platform) AllocateSide(size uint64, ordinals ...int) (uintptr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := &block{each: size}
	for _, ordinal := range ordinals {
		if ordinal < 0 || ordinal >= p.count {
			return 0, errs.New(errs.DeviceNotFound, p.Name(), "there is no %v:%d, only %d of them", p.kind, ordinal,
				p.count)
		}
		p.births++
		b.parts = append(b.parts, part{ordinal: ordinal, id: p.births})
	}
	if err := p.create(b); err != nil {
		return 0, errs.Wrap(errs.OutOfMemory, p.Name(), err)
	}
	p.blocks = append(p.blocks, b)
	return b.addr, nil
}

// create maps the bytes of a block, and the address space under which the program knows them. The caller holds mu.
func (p *Platform) create(b *block) (err error) {
	whole := int64(b.size() + 2*Band)
	page := int64(unix.Getpagesize())
	b.at = uint64(p.end)
	p.end += (whole + page - 1) / page * page
	b.bytes, err = unix.Mmap(p.fd, int64(b.at), int(whole), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	space, err := unix.MmapPtr(-1, 0, nil, uintptr(whole), unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	b.space = uintptr(space)
	b.addr = b.space + Band
	for _, band := range b.bands() {
		for i := range band {
			band[i] = bandByte
		}
	}
	return nil
}

func (b *block) bands() [2][]byte { return [2][]byte{b.bytes[:Band], b.bytes[Band+b.size():]} }

// Manage makes the driver move the pages of the memory at an address.
func (p *Platform) Manage(addr uintptr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.blocks {
		if b.addr == addr {
			b.parts[0].managed = true
		}
	}
}

// Move puts the memory at an address on another device, as a new allocation at the same address does.
func (p *Platform) Move(addr uintptr, ordinal int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.blocks {
		if b.addr == addr {
			p.births++
			b.parts[0] = part{ordinal: ordinal, id: p.births}
		}
	}
}

// Free implements device.Platform.
func (p *Platform) Free(addr uintptr, size uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.blocks, func(b *block) bool { return b.addr == addr && b.size() == size })
	if i < 0 {
		return errs.New(errs.InvalidArgument, p.Name(), "%d bytes at %#x were not allocated here", size, addr)
	}
	b := p.blocks[i]
	p.blocks = slices.Delete(p.blocks, i, i+1)
	hole := uint32(unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE)
	_ = unix.Fallocate(p.fd, hole, int64(b.at), int64(len(b.bytes)))
	_ = unix.MunmapPtr(mem.Pointer(b.space), uintptr(len(b.bytes)))
	return unix.Munmap(b.bytes)
}

// Left returns how many blocks have not been freed.
func (p *Platform) Left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.blocks)
}

// Copy implements device.Platform.
func (p *Platform) Copy(to, from uintptr, n uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, err := p.alias(to, n)
	if err != nil {
		return err
	}
	b, err := p.alias(from, n)
	if err != nil {
		return err
	}
	if fault := mem.Copy(a, b); fault != nil {
		return errs.MemoryGone(p.Name(), errs.SideUnknown)
	}
	return nil
}

// alias returns the bytes of a range, wherever they are. The bands can be reached: a copy that is too long must be
// possible, or nobody would find it. The caller holds mu.
func (p *Platform) alias(addr uintptr, n uint64) ([]byte, error) {
	for _, b := range p.blocks {
		if addr >= b.space+uintptr(len(b.bytes)) || addr+uintptr(n) <= b.space {
			continue
		}
		if at := uint64(addr - b.space); addr >= b.space && mem.Contains(uint64(len(b.bytes)), at, n) {
			return b.bytes[at : at+n], nil
		}
		return nil, errs.New(errs.AddressNotRegistered, p.Name(), "%d bytes at %#x leave the memory of a device", n,
			addr)
	}
	return mem.Bytes(addr, int(n)), nil
}

// Load copies bytes of a device out, Store into it.
func (p *Platform) Load(into []byte, addr uintptr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	from, err := p.alias(addr, uint64(len(into)))
	copy(into, from)
	return err
}

// Store copies bytes into the memory of a device.
func (p *Platform) Store(addr uintptr, from []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	to, err := p.alias(addr, uint64(len(from)))
	copy(to, from)
	return err
}

// CheckBands returns the first allocation beside which somebody wrote.
func (p *Platform) CheckBands() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.blocks {
		for side, band := range b.bands() {
			for i, c := range band {
				if c != bandByte {
					return fmt.Errorf("byte %d of the guard band %s the allocation at %#x is %#02x, not %#02x", i,
						[...]string{"before", "behind"}[side], b.addr, c, bandByte)
				}
			}
		}
	}
	return nil
}

// Landing implements device.Flushing.
func (p *Platform) Landing(ordinal int) *mem.Landing {
	if p.Lands == nil {
		return nil
	}
	return p.Lands(ordinal)
}

// Export implements device.Exporter: the descriptor is a memfd's, which holds the same bytes.
func (p *Platform) Export(addr uintptr, size uint64) (mem.DMABuf, error) {
	if p.Sealed != nil {
		return mem.DMABuf{}, p.Sealed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.blocks {
		if addr >= b.addr && mem.Contains(b.size(), uint64(addr-b.addr), size) {
			fd, err := unix.FcntlInt(uintptr(p.fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return mem.DMABuf{}, errs.Wrap(errs.OutOfMemory, p.Name(), err)
			}
			return mem.DMABuf{Fd: fd, Offset: b.at + uint64(addr-b.space)}, nil
		}
	}
	return mem.DMABuf{}, errs.New(errs.InvalidArgument, p.Name(), "%d bytes at %#x are of no device", size, addr)
}
