package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/segment"
)

// describeTimeout bounds the question for a peer's description.
const describeTimeout = 5 * time.Second

// describing fetches one description of a peer at a time. A caller that waits for its turn leaves when its context
// ends, and shares the answer to a question that began after it came: so the callers of a silent peer wait for two
// questions at most, however many they are.
type describing struct {
	turn  chan struct{} // full while a caller has it
	asked atomic.Uint64 // questions that have begun

	// Of the caller that has the turn.
	err error  // the outcome of the last question
	cut bool   // it ended with the context of its caller, which says nothing to others
	own uint64 // regionTable.changes of the last description, where the peer is ourselves
}

func newDescribing() describing { return describing{turn: make(chan struct{}, 1)} }

// begin waits for the caller's turn, which lasts until end.
func (d *describing) begin(ctx context.Context) error {
	select {
	case d.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *describing) end() { <-d.turn }

// ifFree does something in a turn, unless another caller has it: the answer to that one is newer.
func (d *describing) ifFree(do func()) {
	select {
	case d.turn <- struct{}{}:
		do()
		d.end()
	default:
	}
}

// refresh fetches the description of the regions that the peer offers now.
func (p *peer) refresh(ctx context.Context) error { return p.refreshSince(ctx, p.fetch.asked.Load()) }

// refreshSince is refresh for a caller that came when this number of questions had begun.
func (p *peer) refreshSince(ctx context.Context, came uint64) error {
	d := &p.fetch
	if err := d.begin(ctx); err != nil {
		code := errs.Timeout
		if errors.Is(err, context.Canceled) {
			code = errs.Canceled
		}
		return errs.New(code, "segment", "no answer from %s in the time given: it is asked for its regions already",
			p.identity.Address).WithScope(errs.ScopeLink, errs.SideUnknown).OfPeer(p.identity.Address)
	}
	defer d.end()
	if d.asked.Load() != came && !d.cut {
		return d.err
	}
	d.asked.Add(1)
	d.err = p.describe(ctx)
	d.cut = d.err != nil && ctx.Err() != nil
	return d.err
}

// describe asks the peer. The caller has the turn.
func (p *peer) describe(ctx context.Context) error {
	if p.identity.Self {
		p.describeOwn()
		return nil
	}
	if p.file != nil {
		return nil // a file keeps the description of its opening
	}
	var known *segment.Description
	if t := p.regions.Load(); t != nil && t.known && !t.behind {
		known = t.description
	}
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	d, err := p.engine.client.Describe(ctx, p.identity, known)
	if err != nil {
		p.blame(err)
		return err
	}
	if d != nil {
		p.learn(d)
	}
	return nil
}

// describeOwn takes over our own regions if they have changed: thousands of them take milliseconds. The caller has the
// turn.
func (p *peer) describeOwn() {
	changes := p.engine.regions.changes.Load() // read before the regions: a change meanwhile is of the next one
	if t := p.regions.Load(); t == nil || t.behind || p.fetch.own != changes {
		p.learn(p.engine.description(func(*region) bool { return true }))
		p.fetch.own = changes
	}
}

// until is the context of a request with a deadline, clock.Never for none.
func until(deadline clock.Time) (context.Context, context.CancelFunc) {
	if deadline == clock.Never {
		return context.Background(), func() {}
	}
	return context.WithTimeout(context.Background(), deadline.Sub(clock.Now()))
}

// joinBy is join for a request with a deadline: it does not wait longer than that.
func (p *peer) joinBy(deadline clock.Time) error {
	ctx, cancel := until(deadline)
	defer cancel()
	return p.join(ctx)
}

// refreshBy is refresh for a request with a deadline.
func (p *peer) refreshBy(deadline clock.Time) error {
	ctx, cancel := until(deadline)
	defer cancel()
	return p.refresh(ctx)
}

// Unasked is wrapped by the error of a call that asks nobody and would have had to. Ask with these arguments asks the
// peer. If the call fails the same way behind that, its error is the answer.
type Unasked struct {
	Segment  SegmentID
	Deadline clock.Time
}

func (u *Unasked) Error() string { return "the peer was not asked" }

func unasked(id SegmentID, deadline clock.Time, err *errs.Error) *errs.Error {
	err.Err = &Unasked{id, deadline}
	return err
}

// Asked returns an error that wraps Unasked if the engine has not spoken to the peer of a segment yet.
func (e *Engine) Asked(id SegmentID, deadline clock.Time) error {
	h, failure := e.segments.get(id)
	if failure != nil {
		return failure
	}
	if h.peer.ready.Load() || h.peer.isHere() {
		return nil
	}
	return unspoken(id, deadline)
}

func unspoken(id SegmentID, deadline clock.Time) *errs.Error {
	return unasked(id, deadline, errs.New(errs.PeerUnreachable, "submit", "the peer was not asked for its regions yet"))
}

// isHere reports whether nobody else has to answer for the peer: it is this engine, or a file.
func (p *peer) isHere() bool { return p.identity.Self || p.file != nil }

// Ask asks the peer of a segment for the regions that it offers now, until the deadline at most.
func (e *Engine) Ask(id SegmentID, deadline clock.Time) error {
	if err := e.usable(); err != nil {
		return err
	}
	h, failure := e.segments.get(id)
	if failure != nil {
		return failure
	}
	if cause := h.peer.gone.Load(); cause != nil {
		return cause
	}
	if err := h.peer.refreshBy(deadline); err != nil {
		return err
	}
	return h.peer.joinBy(deadline)
}
