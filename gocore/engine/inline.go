package engine

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// A small call over a transport that copies on the caller's thread (transport.Inliner) is carried out before it
// returns. The core is entered twice for a moment (dispatch.Reserve, Record), and the copy is in between, without the
// mutex. There is no queue, no outbox, no completion, and no goroutine is woken. The call carries out its own requests
// alone, and at most inline_bytes of them; a larger one, or one that is not possible now, goes through the core.

// inliner returns the transport that may carry out the call's tasks at once, nil if they must go through the core.
func (e *Engine) inliner(c *Call) transport.Inliner {
	if len(c.specs) == 0 || len(c.specs) > inlineMost || c.total > e.config.Engine.InlineBytes || c.waits {
		return nil
	}
	route := &c.specs[0].Plan.Routes[0]
	if len(route.Hops) > 1 {
		return nil
	}
	return e.ports[route.Transport].inliner
}

// inlineMost bounds the slices of one inline call.
const inlineMost = 256

// inline carries out a call in a batch, id 0 for one that is made for it. done is false when nothing has been taken:
// the call then goes through the core. Else it returns the batch and the index of the first task, or why not even that
// was possible.
func (e *Engine) inline(by transport.Inliner, id dispatch.BatchID, c *Call) (_ dispatch.BatchID, first int, done bool,
	_ *errs.Error) {
	made := id == 0
	now := clock.Now()
	e.mu.Lock()
	b, held, ok := e.reserve(id, c, now)
	e.unlockAndDrain()
	if !ok {
		return 0, 0, false, nil
	}
	carried := by.Inline(c.slicesFor(&held))
	now = clock.Now()
	e.mu.Lock()
	if made {
		e.unshown--
	}
	if e.gone { // Close has given up waiting, and has ended the batch
		e.unlockAndDrain()
		return 0, 0, true, closedError()
	}
	id = b.id
	if carried {
		first = e.core.Record(&held, c.specs, now)
		b.addLegs(c, first)
		if made && !b.hasTail() { // nothing else can be in the batch, and nothing comes behind its last byte
			e.page.publish(id, dispatch.Completed, c.total, 0, int64(max(1, now-b.started)))
			e.finish(b, false)
		} else {
			e.mirror(id, now)
		}
		e.unlockAndDrain()
		return id, first, true, nil
	}
	e.core.Unreserve(&held)
	if made && e.page.state(id) == dispatch.Invalid { // else it has been shown, and is pending
		e.page.publish(id, dispatch.Completed, 0, 0, 0)
	}
	first, err := e.core.Submit(b.id, c.specs, now) // cannot fail: it has the room that was reserved
	e.predict(b.id, first, now)
	b.addLegs(c, first)
	if err == nil && e.refuses { // a close cancels the requests that it finds, and may have looked
		_, err = e.core.Cancel(b.id, first, len(c.specs), now)
	}
	e.launch(false, clock.Now())
	return id, first, true, err
}

// reserve makes a batch pending with room for the call's tasks; false leaves nothing behind. The caller holds e.mu.
func (e *Engine) reserve(id dispatch.BatchID, c *Call, now clock.Time) (*batch, dispatch.Reservation, bool) {
	made := id == 0
	var b *batch
	var err *errs.Error
	if made {
		b, err = e.newBatch(len(c.specs))
	} else {
		b, err = e.lookup(id)
	}
	if err != nil {
		return nil, dispatch.Reservation{}, false
	}
	if e.admit(b, c) == nil {
		if held, ok := e.core.Reserve(b.id, c.specs, now); ok {
			if e.takeUses(c) == nil {
				if c.trace != "" {
					e.core.Trace(b.id, c.trace)
				}
				if e.enterCall(b, c, now); made {
					e.unshown++
				} else {
					e.mirror(id, now) // others know the batch: it is pending
				}
				return b, held, true
			}
			e.core.Unreserve(&held)
		}
	}
	if made {
		e.release(b)
	}
	return nil, dispatch.Reservation{}, false
}

// show puts the batches of unfinished inline calls on the page. Their ids are not told yet, so that is only done for a
// reader of the whole page. The caller holds e.mu.
func (e *Engine) show() {
	if e.unshown == 0 || e.gone {
		return
	}
	now := clock.Now()
	for _, b := range e.batches {
		if b != nil && b.counted && e.page.state(b.id) == dispatch.Invalid {
			e.mirror(b.id, now)
		}
	}
}

// slicesFor makes the slices of a reservation: one a task.
func (c *Call) slicesFor(held *dispatch.Reservation) []*transport.Slice {
	n := len(c.specs)
	for len(c.slices) < n {
		c.slices = append(c.slices, new(transport.Slice))
	}
	for i := range c.specs {
		spec := &c.specs[i]
		hop := &spec.Plan.Routes[0].Hops[0]
		s := c.slices[i]
		spec.SliceOver(hop, s)
		s.Rail, s.Id, s.Pieces = held.Rail, held.Id+uint64(i), spec.Parts
		s.Local, s.Remote, s.Length = spec.Local, spec.Remote, spec.Length
	}
	return c.slices[:n]
}
