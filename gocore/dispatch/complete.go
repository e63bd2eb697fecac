package dispatch

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/transport"
)

// Complete takes the ends of slices from a transport, each exactly once. The slices belong to the core again.
func (c *Core) Complete(from uint8, list []transport.Completion, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	c.wakeUp(now)
	for i := range list {
		a := attemptOf(list[i].Slice)
		if a.Id != list[i].Id || a.state == attemptBack {
			c.stray(from, &list[i], now)
			continue
		}
		withdrawn := c.takeBackSlice(a, now)
		a.rail.accepted()
		delivered := min(list[i].Bytes, a.Length) // also of a success, which may be one in name alone: errShort
		c.recordOutcome(a, withdrawn, delivered, list[i].Err, now)
		for p := a.pieces; p != nil; {
			next := p.sibling
			p.land()
			c.completePiece(p, a, &delivered, list[i].Err, now)
			p = next
		}
		c.recycleAttempt(a, withdrawn)
	}
}

// Refuse takes back slices that Submit did not accept, in their order. Their bytes go to the head of the queue; the
// rail is full until Ready comes, or a new generation. A refused slice was never outstanding at the transport.
func (c *Core) Refuse(slices []*transport.Slice, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	for i := len(slices) - 1; i >= 0; i-- {
		a := attemptOf(slices[i])
		if a.state == attemptBack {
			continue
		}
		withdrawn := c.takeBackSlice(a, now)
		c.fill(a.rail, now)
		c.countersFor(a).Attempts[a.Op]--
		var kept *piece // siblings in reverse, so that pushing each to the front restores their order
		for p := a.pieces; p != nil; {
			next := p.sibling
			p.land()
			p.sibling = kept
			kept, p = p, next
		}
		for p := kept; p != nil; {
			next := p.sibling
			p.sibling = nil
			c.refusePiece(p, now)
			p = next
		}
		c.recycleAttempt(a, withdrawn)
	}
}

// land takes a piece out of a slice that has come back.
func (p *piece) land() {
	p.attempt, p.sibling = nil, nil
	if p.state == pieceFlying {
		p.become(pieceIdle)
	}
}

func (c *Core) refusePiece(p *piece, now clock.Time) {
	t := p.task
	if t == nil {
		c.freeOrphan(p)
		return
	}
	t.outstanding--
	p.sent--
	switch {
	case p.state == pieceReplaced || !t.live():
		c.forfeitPiece(p)
		c.finishIfDone(t, now)
	case p.index != t.route:
		c.rewindPiece(p)
		c.queuePiece(p, false, now)
	default:
		c.queuePiece(p, true, now)
	}
}

// takeBackSlice undoes the books of a slice that was out, and reports whether it was withdrawn.
func (c *Core) takeBackSlice(a *attempt, now clock.Time) (withdrawn bool) {
	was := a.state
	r := a.rail
	l := r.link
	a.state = attemptBack
	a.flight.Unlink()
	r.bytes -= a.Length
	r.slices--
	l.outstanding--
	l.flying[a.Class]--
	c.outstanding--
	c.landed(r, a, now)
	if r.slices == 0 && len(l.retired) > 0 {
		c.forgetRetired(l)
	}
	if was == attemptOpen {
		c.confirmWithdrawal(l.peer, now)
	}
	if len(l.successors) > 0 {
		c.returnKey(l, a)
	}
	c.activate(l)
	return was >= attemptWithdrawing
}

// recycleAttempt gives the record of a slice back, unless a withdrawal may still be looking at it.
func (c *Core) recycleAttempt(a *attempt, withdrawn bool) {
	if withdrawn {
		a.pieces = nil
		return
	}
	c.attempts.Put(a)
}

// recordOutcome notes in the rail's policy and the counters how a slice ended.
func (c *Core) recordOutcome(a *attempt, withdrawn bool, delivered uint64, err *errs.Error, now clock.Time) {
	r := a.rail
	took := now.Sub(a.started)
	counters := c.countersFor(a)
	counters.ByOp[a.Op].Attempt.addValue(micros(took))
	if delivered > 0 {
		r.link.delivered = c.awake(now)
		r.carried += delivered
		if !withdrawn { // else it was asked for, and its answer may have come another way
			c.peerSpoke(r.link.peer, c.awake(now), now) // before the meter learns from its silence
			c.endStandstill(r, a, c.awake(now))
			c.signOfLife(r, now)
			r.meter.Delivered(delivered, a.ahead, took, r.slices == 0, now)
			r.device.noteDelivery(r, a, delivered, took, now)
			r.came = a.Length
			r.brought[a.Class] += delivered
			r.lastGood, r.answered = now, 0
		}
	}
	switch {
	case err == nil:
		if !withdrawn && (r.life.Troubled() || r.health.Value() < rail.HealthMax) {
			c.railDelivered(r, delivered, now)
		}
	case err.Code == errs.Withdrawn:
		counters.Withdrawn++
	case err.Collateral, err.Code == errs.NotHere:
	default:
		counters.AttemptFailures[a.Op]++
		// else a straggler of a trouble that is over
		if err.Scope == errs.ScopeRail && !final(err) && a.started >= r.life.Back() &&
			r.link.peer.presence != rail.Silent && r.isNews(a, err, now) {
			c.railFailed(r, rail.Failed, err, now)
		}
	}
}

// isNews reports whether the failure of a slice has a cause that has not counted against the rail yet. A connection
// that breaks fails all of its slices, and costs health once, as in the LNet seed. So slices count once that were out
// together and fail by one error, and so does all that a generation gives back when it has ended.
func (r *railState) isNews(a *attempt, err *errs.Error, now clock.Time) bool {
	known := r.failed == clock.Never || (err == r.failure && a.started <= r.failed)
	if !known {
		r.failure, r.failed = err, now
	}
	if r.ended() {
		r.failed = clock.Never
	}
	return !known
}

// railEvent emits an event with the names and the health of a rail.
func (c *Core) railEvent(e event.Event, r *railState, now clock.Time) {
	e.Time, e.Peer, e.Transport = now, r.link.peer.name, c.transportName(r.link.spec.Transport)
	e.Rail, e.Local, e.Remote, e.Health = r.name(), r.info.Local, r.info.Remote, r.health.Value()
	c.emit(e)
}

// completePiece decides about a piece when its slice has completed. delivered is the number of bytes that the slice has
// brought and that are not credited yet.
func (c *Core) completePiece(p *piece, a *attempt, delivered *uint64, err *errs.Error, now clock.Time) {
	got := min(*delivered, p.length)
	*delivered -= got
	t := p.task
	if t == nil { // ended dirty long ago
		c.freeOrphan(p)
		return
	}
	t.outstanding--
	if p.state == pieceReplaced {
		c.completeReplaced(p, got, now)
		return
	}
	last := int(p.hop) == len(p.route.Hops)-1
	switch {
	case got == p.length && last:
		c.credit(t, got, now)
		c.freePiece(p)
	case !t.live():
		c.forfeitPiece(p)
	case got == p.length:
		c.sendOn(p, now)
		return
	default:
		if last && len(p.route.Hops) == 1 && got > 0 {
			p.offset, p.length = p.offset+got, p.length-got
			c.credit(t, got, now)
		}
		if err == nil { // the transport's word for the rest would be a COMPLETED task with a hole
			err = errShort
		}
		if !a.keyReplaced(err) || !c.rekeyPiece(p, a, now) {
			c.retryPiece(p, a.rail, err, now)
		}
		return
	}
	c.finishIfDone(t, now)
}

// errShort is the cause of a slice that its transport completed without an error and without some of its bytes.
var errShort = errs.New(errs.Internal, "transfer", "the transport delivered less than the slice")

// completeReplaced ends a replaced piece. If its bytes arrived after all and its replacement still waits, that is not
// sent.
func (c *Core) completeReplaced(p *piece, got uint64, now clock.Time) {
	t, other := p.task, p.replacement
	if other != nil && !other.state.out() && got == p.length && got == other.length && t.live() {
		c.freePiece(other)
		c.credit(t, got, now)
	}
	c.freePiece(p)
	c.finishIfDone(t, now)
}

// sendOn sends a piece on its way after a hop that is not its last.
func (c *Core) sendOn(p *piece, now clock.Time) {
	t := p.task
	c.advance(t, now)
	if p.index != t.route {
		c.rewindPiece(p)
	} else {
		p.hop++
		p.tries, p.spared, p.tried = 0, 0, 0
	}
	c.queuePiece(p, false, now)
}

// credit adds acknowledged bytes to a task.
func (c *Core) credit(t *task, n uint64, now clock.Time) {
	t.acked += n
	t.batch.bytes += n
	c.countersOf(t).Bytes[t.spec.Op] += n
	c.advance(t, now)
	c.noteChange(t.batch)
}

// advance notes progress of a task that is being served.
func (c *Core) advance(t *task, now clock.Time) {
	if t.live() && t.watch.List() == &c.served {
		t.progress = c.awake(now)
		t.watch.Unlink()
		c.served.PushBack(&t.watch, t)
	}
}

// signOfLife notes a sign of life of a rail.
func (c *Core) signOfLife(r *railState, now clock.Time) {
	r.beginSilence(c.awake(now))
	r.link.peer.heard = r.heard
	c.peerSpoke(r.link.peer, r.heard, now)
	if !r.healthy() {
		r.meter.Resume(now) // its silence was judged, and Misjudged alone teaches
	}
	if r.life.State() != rail.Suspected {
		return
	}
	if c.awake(now).Sub(r.doubted) < misjudgedWithin { // it is silent for so long at times
		r.meter.Misjudged(2 * r.link.options.SuspectAfter)
	}
	c.observe(r, rail.Spoke, now)
	if r.slices > 0 {
		c.timers.Set(&r.timer, now.Add(r.link.options.SuspectAfter))
	}
}
