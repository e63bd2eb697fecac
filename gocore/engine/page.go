package engine

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// cell is the part of a batch that any thread may read without a call and without a lock. It is 32 bytes of the shared
// page at the index of the batch's slot. word changes with every visible change: generation<<32 | version(24 bit)<<8 |
// state. Only the holder of the engine's mutex writes.
type cell struct {
	word    uint64
	bytes   uint64
	elapsed uint64 // ns from the first submit to the end; 0 while pending
	pending uint64
}

const cellBytes = 32

// page is the table of cells, in memory that Go's collector does not own, since Python reads it by address.
type page struct {
	addr uintptr
	size uintptr
}

func newPage(batches int) (*page, error) {
	size := uintptr(batches * cellBytes)
	start, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, errs.Wrap(errs.OutOfMemory, "engine: shared page", err)
	}
	return &page{addr: uintptr(start), size: size}, nil
}

func (p *page) cell(slot uint32) *cell {
	return (*cell)(mem.Pointer(p.addr + uintptr(slot)*cellBytes))
}

// state returns the batch's state as the page has it. A batch that was freed since, and an id that never was one, is
// INVALID.
func (p *page) state(b dispatch.BatchID) dispatch.State {
	if uintptr(b.Slot()) >= p.size/cellBytes {
		return dispatch.Invalid
	}
	word := atomic.LoadUint64(&p.cell(b.Slot()).word)
	if uint32(word>>32) != uint32(b>>32) {
		return dispatch.Invalid
	}
	return dispatch.State(word & 0xff)
}

// publish writes a batch's cell. word is stored last, with release order, so a reader that sees the new state also sees
// the byte count.
func (p *page) publish(b dispatch.BatchID, state dispatch.State, bytes uint64, pending int, elapsed int64) {
	c := p.cell(b.Slot())
	version := (c.word >> 8) + 1
	c.bytes, c.pending, c.elapsed = bytes, uint64(pending), uint64(elapsed)
	atomic.StoreUint64(&c.word, uint64(b)>>32<<32|version&0xffffff<<8|uint64(state))
}

// retire makes every later look at the batch fail: its generation is over.
func (p *page) retire(b dispatch.BatchID) {
	c := p.cell(b.Slot())
	if uint32(atomic.LoadUint64(&c.word)>>32) == uint32(b>>32) {
		atomic.StoreUint64(&c.word, 0)
	}
}

func (p *page) close() error {
	return unix.MunmapPtr(mem.Pointer(p.addr), p.size)
}
