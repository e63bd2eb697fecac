package engine

import (
	"sync"
	"sync/atomic"

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

// page is the table of cells, by slot. Python reads it by address. It belongs to Go's collector, so that calls may be
// inside the engine beside its close: a waiter that was woken by the close looks at its batch's cell after that.
type page struct{ cells []cell }

// lentPages are the pages with an address that was given out: the collector sees no readers of an address.
var lentPages sync.Map

func newPage(batches int) *page { return &page{make([]cell, batches)} }

func (p *page) cell(slot uint32) *cell { return &p.cells[slot] }

// state returns the batch's state as the page has it. A batch that was freed since, and an id that never was one, is
// INVALID. No batch has the generation 0, which cells without a batch have.
func (p *page) state(b dispatch.BatchID) dispatch.State {
	if int(b.Slot()) >= len(p.cells) || b>>32 == 0 {
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

// Page returns the shared page: an array of 32-byte cells by batch slot. It stays where it is until Forget, also if the
// Engine is dropped.
func (e *Engine) Page() (addr uintptr, size int) {
	lentPages.Store(e.page, nil)
	return mem.AddressOf(e.page.cells), len(e.page.cells) * cellBytes
}

// Forget gives up the address of the shared page: nobody looks at it there any more. The engine must be closed. Calls
// that are still inside keep the page, and the last of them drops it.
func (e *Engine) Forget() error {
	select {
	case <-e.ended:
	default:
		return errs.New(errs.InvalidArgument, "forget", "the engine is not closed")
	}
	lentPages.Delete(e.page)
	return nil
}
