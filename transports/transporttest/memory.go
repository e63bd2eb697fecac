package transporttest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
)

// band is the guard around a region: bytes of the same mapping that nobody registered. Beyond it lies a page that
// cannot be touched at all.
const band = 256

// bandTag is the pattern of guard bands.
const bandTag = 0x6261_6e64

// Memory is a region for tests with guard bands around it. Its bytes follow a pattern that depends on a tag and on the
// position, so a byte that lands in the wrong place, or comes from an earlier life, is seen: the byte oracle.
type Memory struct {
	Addr   uintptr
	Size   uint64
	device *Device
	bands  func() error // of memory that is not the host's: returns the first mistake outside the region; or nil
	around []byte       // of host memory: band, region, band
	fd     int          // of the file behind host memory, -1 if there is none
	at     uint64       // of the region in that file
	undo   func()
}

// Pool gives host memory for operands: whole zeroed pages of a mapped file, which nobody gets again in the same test.
type Pool func(t testing.TB, size int) (pages []byte, fd int, offset uint64)

// anonymous is the pool of memory that no file is behind.
func anonymous(t testing.TB, size int) []byte {
	raw, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	return raw
}

// NewMemory maps a region of the given size at an address that is a multiple of alignment and, where that is 1, odd.
// Free unmaps it.
func NewMemory(t testing.TB, size int, alignment uint64) *Memory {
	return newMemory(t, size, alignment, nil)
}

func newMemory(t testing.TB, size int, alignment uint64, pool Pool) *Memory {
	page := unix.Getpagesize()
	inner := (size + 2*band + page) / page * page
	var raw []byte
	fd, offset, undo := -1, uint64(0), func() {}
	if pool != nil {
		raw, fd, offset = pool(t, inner+2*page)
	} else {
		raw = anonymous(t, inner+2*page)
		undo = func() { _ = unix.Munmap(raw) }
	}
	require.NoError(t, unix.Mprotect(raw[:page], unix.PROT_NONE))
	require.NoError(t, unix.Mprotect(raw[page+inner:], unix.PROT_NONE))
	start := page
	if alignment == 1 {
		start++
	}
	m := &Memory{Size: uint64(size), around: raw[start : start+size+2*band], fd: fd, at: offset + uint64(start+band),
		undo: undo}
	m.Addr = mem.AddressOf(raw) + uintptr(start+band)
	Pattern(m.around[:band], bandTag, 0)
	Pattern(m.around[band+size:], bandTag, band)
	return m
}

// newDeviceMemory is a region of a device at an address that is a multiple of alignment and, where that is 1, odd. Its
// guard bands are memory of the same allocation.
func newDeviceMemory(t *testing.T, size int, alignment uint64, d *Device) *Memory {
	alignment = max(alignment, d.Alignment)
	before := (band + alignment - 1) / alignment * alignment
	if alignment == 1 {
		before++
	}
	whole := int(before) + size + band
	start := d.Allocate(t, whole)
	m := &Memory{Addr: start + uintptr(before), Size: uint64(size), device: d, fd: -1, undo: func() {}}
	if d.Free != nil {
		m.undo = func() { d.Free(start, whole) }
	}
	first, last := m.Addr-band, m.Addr+uintptr(size)
	want := make([]byte, 2*band)
	Pattern(want, bandTag, 0)
	d.Store(first, want[:band])
	d.Store(last, want[band:])
	m.bands = func() error {
		got := make([]byte, 2*band)
		d.Load(got[:band], first)
		d.Load(got[band:], last)
		return differsOutside(got, want, m.Size)
	}
	return m
}

// Free gives the memory back; only after every transport that knows it has closed.
func (m *Memory) Free() { m.undo() }

// Load copies bytes out of the region.
func (m *Memory) Load(into []byte, offset uint64) {
	if m.device != nil {
		m.device.Load(into, m.Addr+uintptr(offset))
		return
	}
	copy(into, m.around[band+offset:uint64(band)+m.Size])
}

// Store copies bytes into the region.
func (m *Memory) Store(offset uint64, from []byte) {
	if m.device != nil {
		m.device.Store(m.Addr+uintptr(offset), from)
		return
	}
	copy(m.around[band+offset:uint64(band)+m.Size], from)
}

// oracleChunk is the bytes that Fill and Check hold at a time: more would only be pages to fault in.
const oracleChunk = 32 << 10

// Fill writes the pattern of a tag into [offset, offset+length); byte i of the region gets byte i of the pattern.
func (m *Memory) Fill(tag, offset, length uint64) {
	b := make([]byte, min(length, oracleChunk))
	for end := offset + length; offset < end; offset += uint64(len(b)) {
		b = b[:min(uint64(len(b)), end-offset)]
		Pattern(b, tag, offset)
		m.Store(offset, b)
	}
}

// Check returns the first mistake in [offset, offset+length), which should hold the pattern of a tag as it is at from.
func (m *Memory) Check(tag, from, offset, length uint64) error {
	n := min(length, oracleChunk)
	got, want := make([]byte, n), make([]byte, n)
	for done := uint64(0); done < length; done += uint64(len(got)) {
		n = min(n, length-done)
		got, want = got[:n], want[:n]
		m.Load(got, offset+done)
		Pattern(want, tag, from+done)
		if bytes.Equal(got, want) {
			continue
		}
		for i := range got {
			if got[i] != want[i] {
				return fmt.Errorf("byte %d of [%d, %d) is %#02x, not %#02x", done+uint64(i), offset, offset+length,
					got[i], want[i])
			}
		}
	}
	return nil
}

// Seen is the memory as it is now, in memory of the host: many small checks of a device's memory would be a copy each.
// Memory of the host is its own.
func (m *Memory) Seen() *Memory {
	if m.device == nil {
		return m
	}
	seen := &Memory{Size: m.Size, around: make([]byte, m.Size+2*band), fd: -1, undo: func() {}}
	m.Load(seen.around[band:][:m.Size], 0)
	return seen
}

// CheckBands returns the first mistake outside the region.
func (m *Memory) CheckBands() error {
	switch {
	case m.bands != nil:
		return m.bands()
	case m.device != nil: // memory that the suite did not map
		return nil
	}
	want := make([]byte, 2*band)
	Pattern(want, bandTag, 0)
	return differsOutside(slices.Concat(m.around[:band], m.around[band+m.Size:]), want, m.Size)
}

// differsOutside compares both bands of a region of size bytes with their pattern.
func differsOutside(got, want []byte, size uint64) error {
	for i := range want {
		if got[i] == want[i] {
			continue
		}
		at := i - band
		if i >= band {
			at += int(size)
		}
		return fmt.Errorf("byte %d of a region of %d was written", at, size)
	}
	return nil
}

// Pattern fills b with the bytes that the pattern of a tag has from offset on. It is the suite's innermost loop, so the
// race detector leaves it out; its callers touch b themselves.
//
//go:norace
func Pattern(b []byte, tag, offset uint64) {
	tag *= 0xd6e8feb86659fd93
	i := 0
	for ; i < len(b) && (offset+uint64(i))%8 != 0; i++ {
		b[i] = patternByte(tag, offset+uint64(i))
	}
	for at := (offset + uint64(i)) / 8; len(b)-i >= 8; i, at = i+8, at+1 {
		binary.LittleEndian.PutUint64(b[i:], patternWord(tag, at))
	}
	for ; i < len(b); i++ {
		b[i] = patternByte(tag, offset+uint64(i))
	}
}

// patternWord is eight bytes of the pattern, by the first half of splitmix64's finalizer: neighbours and tags differ in
// about half of their bits.
func patternWord(tag, at uint64) uint64 {
	x := (tag ^ at) * 0xbf58476d1ce4e5b9
	return (x ^ x>>31) * 0x94d049bb133111eb
}

func patternByte(tag, offset uint64) byte {
	return byte(patternWord(tag, offset/8) >> (8 * (offset % 8)))
}

// Kind is the kind of the memory.
func (m *Memory) Kind() mem.Kind {
	if m.device != nil {
		return m.device.Kind
	}
	return mem.Host
}
