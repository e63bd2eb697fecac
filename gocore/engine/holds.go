package engine

import (
	"slices"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
)

// A stream can wait for the end of a batch, without a thread of the program that waits. The platform makes the stream's
// front end look at a word in memory, and the end of the batch, whichever it is, writes its state there. Close writes
// it for batches that have not ended.
//
// A batch never waits for itself: with a stream that waits for it, it takes no request that waits for that stream. A
// cycle over several streams and batches is not seen; a deadline of the requests ends it.

// hold is a stream that waits for a batch.
type hold struct {
	stream   uint64
	latch    device.Latch
	released bool
}

// HoldStream makes a stream wait for the end of a batch. It returns the address, for devices, of a word of 32 bits: 0,
// then the batch's final state. The word is theirs to read until FreeBatch.
func (e *Engine) HoldStream(id dispatch.BatchID, stream uint64) (word uint64, err error) {
	if e.gates.streams == nil {
		return 0, e.noStreams()
	}
	if err := e.usable(); err != nil {
		return 0, err
	}
	if _, err := e.Summary(id); err != nil {
		return 0, err
	}
	latch, err := e.gates.streams.Hold(uintptr(stream))
	if err != nil {
		return 0, errs.From("wait on", err)
	}
	e.mu.Lock()
	defer e.unlockAndDrain()
	b, failure := e.lookup(id)
	if failure == nil && e.closed.Load() { // the holds of all batches may have ended
		failure = closedError()
	}
	if failure != nil {
		latch.Release(uint32(dispatch.Invalid))
		latch.Close()
		return 0, failure
	}
	b.holds = append(b.holds, hold{stream: stream, latch: latch})
	if b.ended || b.started == 0 {
		e.releaseHolds(b, e.page.state(id))
	}
	return latch.Word(), nil
}

// releaseHolds lets the streams go on that wait for a batch. The caller holds e.mu.
func (e *Engine) releaseHolds(b *batch, state dispatch.State) {
	for i := range b.holds {
		if h := &b.holds[i]; !h.released {
			h.released = true
			h.latch.Release(uint32(state))
		}
	}
}

// closeHolds gives the words of a batch back, which were released. The caller holds e.mu.
func (b *batch) closeHolds() {
	for _, h := range b.holds {
		h.latch.Close()
	}
	clear(b.holds)
	b.holds = b.holds[:0]
}

// closeAllHolds ends the waits for batches that have not ended, and gives all words back. Memory of a device may be
// freed only then: the driver waits for every stream.
func (e *Engine) closeAllHolds() {
	e.mu.Lock()
	for _, b := range e.batches {
		if b != nil && len(b.holds) > 0 {
			e.releaseHolds(b, dispatch.Failed)
			b.closeHolds()
		}
	}
	e.unlockAndDrain()
}

// cyclic reports whether a call waits for a stream that waits for the batch. The caller holds e.mu.
func (b *batch) cyclic(c *Call) bool {
	for _, g := range c.gates {
		if g.gate != nil && slices.ContainsFunc(b.holds, func(h hold) bool {
			return h.stream == g.stream && !h.released
		}) {
			return true
		}
	}
	return false
}
