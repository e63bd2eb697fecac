package engine

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// batch is the engine's record of a batch, beside the core's. It has its waiters, the regions that it uses, and the
// notification that is part of its end. One a slot, used again by the next generation. Guarded by the engine's mutex.
//
//	PENDING --last task ended--> [COMPLETED: files synced, note taken] --> final: cell, waiters, ring; see tail
type batch struct {
	id      dispatch.BatchID
	started clock.Time
	counted bool              // in Engine.active until it has ended
	ended   bool              // final: the page shows the same until tasks are added
	classes transport.Classes // of its tasks
	note    *note
	failure *errs.Error // of the sync or the notification behind the last byte
	unsure  bool        // failure is of a sync: written bytes may not be there after a crash
	watched bool
	freeing bool
	waiters []*waiter
	uses    []*region // each with one use taken
	lists   []*places // where the pages of its tasks lie
	files   []fileUse // each with one handle taken
	legs    []leg     // of traced tasks: their peers hear the end
	moves   uint32    // failovers that they have heard of
	holds   []hold    // streams that wait for its end
}

// NewBatch makes a batch for up to capacity tasks. Free it with FreeBatch, at any time.
func (e *Engine) NewBatch(capacity int) (dispatch.BatchID, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	if capacity < 1 {
		return 0, errs.New(errs.InvalidArgument, "batch", "capacity %d is not at least 1", capacity)
	}
	e.mu.Lock()
	defer e.unlockAndDrain()
	b, err := e.newBatch(capacity)
	if err != nil {
		return 0, err
	}
	e.page.publish(b.id, dispatch.Completed, 0, 0, 0)
	return b.id, nil
}

// newBatch makes a batch for up to capacity tasks. The page does not show it yet: publish or mirror must follow before
// its id is told. The caller holds e.mu.
func (e *Engine) newBatch(capacity int) (*batch, *errs.Error) {
	if e.refuses {
		return nil, closedError()
	}
	id, err := e.core.NewBatch(capacity)
	if err != nil {
		return nil, err
	}
	slot := id.Slot()
	if e.batches[slot] == nil {
		e.batches[slot] = &batch{}
	}
	b := e.batches[slot]
	waiters, uses, lists, files, legs := b.waiters[:0], b.uses[:0], b.lists[:0], b.files[:0], b.legs[:0]
	holds := b.holds[:0]
	*b = batch{} // zeroed in place: a literal with the arrays would be built elsewhere and copied
	b.id, b.waiters, b.uses, b.lists, b.files, b.legs, b.holds = id, waiters, uses, lists, files, legs, holds
	if at := &e.hints[slot].end; at.Load() != 0 { // a locked exchange otherwise, for calls that were never predicted
		at.Store(0)
	}
	return b, nil
}

// UnderWay returns the number of batches that have begun and not ended. The page shows each of them.
func (e *Engine) UnderWay() int {
	e.mu.Lock()
	defer e.unlockAndDrain()
	e.show()
	return e.active
}

// CheckRoom returns the error of a transfer that is one too many, for a caller that keeps its Call then.
func (e *Engine) CheckRoom() error {
	e.mu.Lock()
	defer e.unlockAndDrain()
	if err := e.core.CheckRoom(); err != nil {
		return err
	}
	return nil
}

// lookup returns the engine's record of a live batch. The caller holds e.mu.
func (e *Engine) lookup(id dispatch.BatchID) (*batch, *errs.Error) {
	if int(id.Slot()) < len(e.batches) {
		if b := e.batches[id.Slot()]; b != nil && b.id == id && id != 0 {
			return b, nil
		}
	}
	return nil, errs.New(errs.InvalidEntry, "batch", "batch %d does not exist or was freed", uint64(id))
}

// launchBytes bounds a submit during which the first answers may wake workers. With more on its way, workers would
// compete with the sender for the cores; the answers wait in their sockets until it has filled the rails' windows.
const launchBytes = 128 << 10

// quieten keeps workers asleep about the answers to a large call until launch has filled the rails' windows.
func (e *Engine) quieten(c *Call) bool {
	if c.total < launchBytes {
		return false
	}
	e.pollers.poll(0, c.classes)
	return true
}

// launch sends the tasks that were just enqueued, as far as the rails take them. The caller holds e.mu, which is
// released, and has read the time under it.
func (e *Engine) launch(quiet bool, now clock.Time) {
	e.stepAt(now)
	e.unlockAndDrain()
	if quiet {
		e.pollers.arm()
	}
}

// enqueue hands tasks to the core. The caller holds e.mu.
func (e *Engine) enqueue(b *batch, c *Call, now clock.Time) (int, *errs.Error) {
	if err := e.admit(b, c); err != nil {
		return 0, err
	}
	id := b.id
	if err := e.takeUses(c); err != nil {
		return 0, err
	}
	if c.waits {
		e.nameGates(c)
	}
	before := ""
	if c.trace != "" { // now: a task may end at once, and its event has the name
		before = e.core.Trace(id, c.trace)
	}
	first, err := e.core.Submit(id, c.specs, now)
	if err != nil {
		if c.trace != "" {
			e.core.Trace(id, before)
		}
		e.unnameGates(c, now)
		unuse(c.uses)
		e.dropFiles(c.files)
		return 0, err
	}
	if c.waits {
		e.watchGates(c)
	}
	e.enterCall(b, c, now)
	e.predict(id, first, now)
	b.addLegs(c, first)
	if len(c.specs) == 0 { // nothing to move: only the notification
		e.mirror(id, now)
	}
	return first, nil
}

// admit says why a batch takes no more calls, or not this one. The caller holds e.mu.
func (e *Engine) admit(b *batch, c *Call) *errs.Error {
	switch {
	case e.refuses:
		return closedError()
	case b.freeing:
		return errs.New(errs.InvalidEntry, "submit", "batch %d was freed", uint64(b.id))
	case b.note != nil && c.note != nil:
		return errs.New(errs.InvalidArgument, "submit", "the batch has a notification already").
			WithHint("one notification a batch, sent after its last byte")
	case c.waits && b.cyclic(c):
		return errs.New(errs.InvalidArgument, "submit", "the stream waits for this batch, which would wait for it").
			WithHint("submit before wait_on(), or in a transfer of its own")
	}
	return nil
}

// enterCall enters a call into the engine's record of a batch. The caller holds e.mu.
func (e *Engine) enterCall(b *batch, c *Call, now clock.Time) {
	if b.started == 0 {
		b.started = now
	}
	if b.ended || !b.counted {
		b.ended, b.counted = false, true
		e.active++
	}
	b.classes |= c.classes
	if at := &e.hints[b.id.Slot()].classes; at.Load() != uint32(b.classes) { // seldom: it is a locked exchange
		at.Store(uint32(b.classes))
	}
	b.uses = append(b.uses, c.uses...)
	if len(c.lists) > 0 {
		b.lists = append(b.lists, c.lists...)
		c.lists = c.lists[:0]
	}
	if len(c.files) > 0 {
		b.files = append(b.files, c.files...)
	}
	if c.note != nil {
		c.note.batch = b.id
		b.note = c.note
	}
}

// takeUses takes a use of each region and file of a call, or of none. The caller holds e.mu.
func (e *Engine) takeUses(c *Call) *errs.Error {
	for i, r := range c.uses {
		if err := r.use(); err != nil { // closed meanwhile
			unuse(c.uses[:i])
			return err
		}
	}
	if err := e.holdFiles(c.files); err != nil {
		unuse(c.uses)
		return err
	}
	return nil
}

// unuse gives uses of regions back.
func unuse(uses []*region) {
	for _, r := range uses {
		r.unuse()
	}
}

// mirror brings the page up to date with the core, and ends the batch when everything that belongs to it is done. The
// caller holds e.mu.
func (e *Engine) mirror(id dispatch.BatchID, now clock.Time) {
	b, err := e.lookup(id)
	if err != nil {
		return
	}
	sum, err := e.core.Summary(id)
	if err != nil {
		return
	}
	if len(b.legs) > 0 && sum.Failovers != b.moves {
		e.reportFailover(b, &sum)
	}
	state := sum.State
	if state.Terminal() {
		state = e.tail(b, &sum, now)
	}
	if !state.Terminal() {
		if !e.gone { // then the page shows an end of all batches
			e.page.publish(id, state, sum.Bytes, sum.Pending, 0)
		}
		return
	}
	e.page.publish(id, state, sum.Bytes, sum.Pending, int64(max(1, now-b.started)))
	if !b.ended {
		e.finish(b, sum.Dirty)
	}
}

// finish wakes the batch's waiters and gives its regions and files back. The caller holds e.mu.
func (e *Engine) finish(b *batch, dirty bool) {
	b.ended = true
	if b.note != nil {
		e.tails.notes.waiting.remove(b.note)
	}
	if len(b.holds) > 0 {
		e.releaseHolds(b, e.page.state(b.id))
	}
	if b.counted {
		b.counted = false
		if e.active--; e.active == 0 && e.closed.Load() {
			wake(e.idle)
		}
	}
	for i, w := range b.waiters {
		b.waiters[i] = nil
		w.wakeUp()
	}
	b.waiters = b.waiters[:0]
	if len(b.legs) > 0 {
		e.reportEnd(b)
	}
	if dirty {
		e.linger(b)
	}
	unuse(b.uses)
	clear(b.uses)
	b.uses = b.uses[:0]
	e.dropFiles(b.files)
	b.files = b.files[:0]
	e.ringEnd(b)
	if b.freeing {
		e.release(b)
	}
}

// notified takes the outcome of a batch's notification. The caller holds e.mu.
func (e *Engine) notified(id dispatch.BatchID, cause *errs.Error, now clock.Time) {
	b, err := e.lookup(id)
	if err != nil || !b.expects() { // it was cancelled, or its time was over
		return
	}
	if b.note.taken = cause == nil; !b.note.taken {
		b.failure = b.note.untaken(cause)
	}
	e.mirror(id, now)
}

// FreeBatch gives a batch back; while tasks are pending it goes when the last has ended. Its id is stale at once.
func (e *Engine) FreeBatch(id dispatch.BatchID) error {
	e.mu.Lock()
	defer e.unlockAndDrain()
	if err := e.free(id); err != nil {
		return err
	}
	return nil
}

// FreeBatches is FreeBatch for many, under one lock; those that are stale are left out.
func (e *Engine) FreeBatches(ids []uint64) {
	e.mu.Lock()
	defer e.unlockAndDrain()
	for _, id := range ids {
		_ = e.free(dispatch.BatchID(id)) // the only error is that it is stale
	}
}

// free gives a batch back. The caller holds e.mu.
func (e *Engine) free(id dispatch.BatchID) *errs.Error {
	b, err := e.lookup(id)
	if err != nil {
		return err
	}
	if b.freeing {
		return errs.New(errs.InvalidEntry, "free batch", "batch %d was freed already", uint64(id))
	}
	b.freeing = true
	if b.ended || b.started == 0 {
		e.release(b)
	}
	return nil
}

func (e *Engine) release(b *batch) {
	e.page.retire(b.id)
	if len(b.lists) > 0 {
		if sum, err := e.core.Summary(b.id); err == nil && sum.State == dispatch.Completed {
			freePlaces(b.lists) // else a transport may be looking at them still: they are left to the garbage collector
		}
		clear(b.lists)
		b.lists = b.lists[:0]
	}
	if err := e.core.FreeBatch(b.id); err != nil {
		e.log.Error("free batch", "batch", uint64(b.id), "err", err)
	}
	b.closeHolds()
	clear(b.legs)
	b.id, b.note, b.legs = 0, nil, b.legs[:0]
}

// Cancel asks that tasks end without moving more bytes; task -1 means all. It returns how many had not ended yet. The
// end comes within the fence bound.
func (e *Engine) Cancel(id dispatch.BatchID, task int) (int, error) {
	e.mu.Lock()
	defer e.unlockAndDrain()
	b, err := e.lookup(id)
	if err != nil {
		return 0, err
	}
	n, err := e.cancel(b, task)
	if err != nil {
		return 0, err
	}
	e.step()
	return n, nil
}

// cancel is Cancel for a batch that is there. A step must follow. The caller holds e.mu.
func (e *Engine) cancel(b *batch, task int) (int, *errs.Error) {
	if task >= 0 {
		return e.core.Cancel(b.id, task, 1, clock.Now())
	}
	all, err := e.core.Summary(b.id)
	if err != nil {
		return 0, err
	}
	n, err := e.core.Cancel(b.id, 0, all.Tasks, clock.Now())
	if err == nil && e.cancelTail(b) {
		n++
	}
	return n, err
}

// isPending reports whether a batch has been submitted and not ended; nil has not.
func (b *batch) isPending() bool { return b != nil && b.id != 0 && b.started != 0 && !b.ended }

// Status of one task.
func (e *Engine) Status(id dispatch.BatchID, task int) (dispatch.Status, error) {
	e.mu.Lock()
	defer e.unlockAndDrain()
	if _, err := e.lookup(id); err != nil {
		return dispatch.Status{}, err
	}
	s, err := e.core.Status(id, task)
	if err != nil {
		return dispatch.Status{}, err
	}
	return s, nil
}

// Summary of a batch; State is Pending until a notification that belongs to it was taken.
func (e *Engine) Summary(id dispatch.BatchID) (dispatch.Summary, error) {
	e.mu.Lock()
	defer e.unlockAndDrain()
	b, err := e.lookup(id)
	if err != nil {
		return dispatch.Summary{}, err
	}
	sum, err := e.core.Summary(id)
	if err != nil {
		return dispatch.Summary{}, err
	}
	sum.State = e.page.state(id)
	if b.failure != nil && sum.Err == nil {
		sum.Err = b.failure
	}
	return sum, nil
}

// Elapsed is the time from the first submit to the end, or to now.
func (e *Engine) Elapsed(id dispatch.BatchID) time.Duration {
	e.mu.Lock()
	defer e.unlockAndDrain()
	b, err := e.lookup(id)
	if err != nil || b.started == 0 {
		return 0
	}
	if ns := e.page.cell(id.Slot()).elapsed; ns != 0 {
		return time.Duration(ns)
	}
	return clock.Now().Sub(b.started)
}

// Watch asks that the end of a batch be pushed on the completion ring; at once if it has ended.
func (e *Engine) Watch(id dispatch.BatchID) error {
	e.mu.Lock()
	defer e.unlockAndDrain()
	b, err := e.lookup(id)
	if err != nil {
		return err
	}
	if b.watched = true; b.ended {
		e.ringEnd(b)
	}
	return nil
}

// ringEnd puts a batch that is watched on the completion ring, once. The caller holds e.mu.
func (e *Engine) ringEnd(b *batch) {
	if b.watched {
		b.watched = false
		e.ring.push(uint64(b.id))
		e.deferred.ring = true
	}
}
