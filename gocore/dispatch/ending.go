package dispatch

import (
	"slices"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/transport"
)

// The rule of quiescence: a task ends when its bytes are acknowledged or given up and no slice of any of its attempts
// is outstanding. Everything here serves that rule or says, by dirty, that it could not be kept.

// endTask gives a task its verdict: unsent bytes are dropped, slices that are out are withdrawn once. The first verdict
// stays; a task is COMPLETED all the same if all its bytes arrive before its last completion.
func (c *Core) endTask(t *task, verdict State, err *errs.Error, now clock.Time) {
	if !t.live() {
		if t.state == Pending && verdict != Completed && t.watch.List() == &c.ending[boundStragglers] {
			t.verdict, t.failure = verdict, err // of a task with all of its bytes, which its user does not wait for
			c.awaitSlices(t, c.boundOfTask(t), now)
		}
		t.spec.ByAddress = false // its end is asked for: it does not begin again
		return
	}
	t.verdict, t.failure, t.astray = verdict, err, false
	if t.spec.Gate != 0 {
		c.leaveGate(t)
	}
	c.activateRoute(t)
	t.unqueue()
	for p := t.pieces.First(); p != nil; {
		next := p.mine.After()
		if !p.state.out() {
			c.forfeitPiece(p)
		} else {
			c.withdrawSlice(p.attempt)
		}
		p = next
	}
	switch {
	case t.outstanding == 0:
		c.closeTask(t, now)
	case verdict == Completed:
		c.awaitSlices(t, boundStragglers, now)
	default:
		c.awaitSlices(t, c.boundOfTask(t), now)
	}
}

// awaitSlices makes a task wait for the slices that are out, for as long as a bound says.
func (c *Core) awaitSlices(t *task, bound int, now clock.Time) {
	t.watch.Unlink()
	t.progress = c.awake(now)
	c.ending[bound].PushBack(&t.watch, t)
}

// Fence bounds have a list each; the one with more patience counts for a task on several links.
const (
	boundHost = iota
	boundNetwork
	boundFile       // a kernel gives an operation back when the device is done, not when it is asked
	boundStragglers // all bytes are there, and nobody has asked for the end: the stall limit
	bounds
)

// boundOfTask is the bound for the slices of a task that are out.
func (c *Core) boundOfTask(t *task) int {
	bound := boundHost
	for p := t.pieces.First(); p != nil; p = p.mine.After() {
		if p.state.out() {
			bound = max(bound, boundOf(p.attempt.rail.link))
		}
	}
	return bound
}

func boundOf(l *link) int {
	switch {
	case l.spec.Info != nil && l.spec.Info.Files:
		return boundFile
	case l.spec.SameHost || l.peer.gone != nil: // nobody is left to be asked over the network
		return boundHost
	}
	return boundNetwork
}

func (c *Core) fenceBound(i int) time.Duration {
	return [bounds]time.Duration{c.options.FenceHost, c.options.FenceNetwork, c.options.FenceFile, c.options.Stall}[i]
}

// withdrawSlice asks for the completion of a slice, once.
func (c *Core) withdrawSlice(a *attempt) {
	if a.state != attemptOut {
		return
	}
	a.state = attemptWithdrawing
	if a.rail.recalled++; a.rail.recalled == 1 {
		a.rail.recalling = c.awake(c.last)
	}
	post := c.posting(&c.out.Withdraw, &a.rail.withdraw, a.rail)
	post.Slices = append(post.Slices, &a.Slice)
}

// finishIfDone ends a task that has nothing left to wait for.
func (c *Core) finishIfDone(t *task, now clock.Time) {
	switch {
	case t.state != Pending:
	case t.outstanding == 0 && (t.verdict != Initial || t.acked == t.spec.Length):
		c.closeTask(t, now)
	case t.verdict == Initial && t.acked == t.spec.Length:
		c.endTask(t, Completed, errLate, now) // only replaced slices are out, stragglers; they have to come back
	}
}

var errLate = errs.New(errs.Lost, "transfer",
	"all bytes were acknowledged, but a slice that was sent before on a rail that failed could not be called back")

// closeTask makes the end visible. Nothing of the task is outstanding, or dirty says so.
func (c *Core) closeTask(t *task, now clock.Time) {
	if c.goesAstray(t) || c.goesOn(t, now) {
		return
	}
	b := t.batch
	t.state = t.verdict
	if t.acked == t.spec.Length && !t.dirty {
		t.state = Completed
	} else if t.state == Completed {
		t.state = Failed // every byte arrived, yet something may still be written
	}
	if t.state != Completed {
		t.sumUpMissing()
		if t.state == Failed {
			c.tellFate(t)
		}
	}
	t.unqueue()
	t.watch.Unlink()
	if r := t.run; r != nil {
		t.run = nil
		r.alive--
		if r.alive == 0 {
			c.timers.Stop(&r.timer)
			c.runs.Put(r)
		}
	}
	c.countEnd(t, now)
	c.pending -= t.spec.requests()
	b.pending--
	b.ends[t.state]++
	b.dirty = b.dirty || t.dirty
	if t.state != Completed && t.state > b.worst { // the numbers are in order of badness
		b.worst, b.failure = t.state, t.failure
	}
	c.noteChange(b)
	if b.pending == 0 {
		c.out.Ended = append(c.out.Ended, b.id())
		if b.freed && b.reserved == 0 {
			c.recycle(b)
		}
	}
}

// fenceBounds ends tasks if their slices were not given back in time.
func (c *Core) fenceBounds(now clock.Time) {
	for i := range c.ending {
		began := c.awake(now).Add(-c.fenceBound(i))
		for t := c.ending[i].First(); t != nil && t.progress <= began; t = c.ending[i].First() {
			if r := unasked(t); r != nil {
				c.noteStuck(r, now)
				c.awaitSlices(t, i, now)
				continue
			}
			c.endDirty(t, now)
		}
	}
}

// WithdrawalSent says that Transport.Withdraw has returned for these slices: the transport has stopped reading these
// sources. Only then may a task end dirty, however long the thread that was to withdraw has slept.
func (c *Core) WithdrawalSent(slices []*transport.Slice) {
	if invariants {
		defer c.checkInvariants()
	}
	for _, s := range slices {
		a := attemptOf(s)
		if a.state == attemptWithdrawing { // else it is back already
			a.state = attemptWithdrawn
		}
		a.rail.recalled--
		a.rail.recalling = c.awake(c.last)
	}
}

// unasked returns a rail on which a withdrawal of the task is still on its way to its transport, or nil.
func unasked(t *task) *railState {
	for p := t.pieces.First(); p != nil; p = p.mine.After() {
		if a := p.attempt; a != nil && a.state == attemptWithdrawing {
			return a.rail
		}
	}
	return nil
}

// endDirty ends a task although slices of it are out. They stay with their attempts as open withdrawals: nothing goes
// to their peer, on any rail or transport, before they have completed. Their rails are fenced.
func (c *Core) endDirty(t *task, now clock.Time) {
	t.dirty = true
	name := ""
	for p := t.pieces.First(); p != nil; {
		next := p.mine.After()
		a := p.attempt
		name = a.rail.link.peer.name
		t.miss(p.offset, p.length) // whether its bytes have arrived or not: they may still change
		p.become(pieceOrphaned)
		p.mine.Unlink()
		p.task = nil
		p.unpair()
		t.batch.remember(p, a.rail.link)
		if a.state != attemptOpen {
			a.state = attemptOpen
			a.rail.link.peer.owe(1)
			c.fenceRail(a.rail, now)
		}
		p = next
	}
	t.outstanding = 0
	c.emit(event.Event{Kind: event.Dirty, Time: now, Peer: name, Transport: c.transportName(t.path().Transport),
		Err: t.failure, Trace: t.batch.trace})
	c.closeTask(t, now)
}

// Remains counts the pieces that a batch has left behind, dirty, and that may still use local memory. Their slices are
// out, on transports that do not quiesce (transport.Info). It outlives its batch.
type Remains struct{ pieces int }

// Out reports whether local memory may still be used.
func (r *Remains) Out() bool { return r.pieces > 0 }

// Remains returns those of a batch, or nil if it has none.
func (c *Core) Remains(id BatchID) *Remains {
	if b, err := c.findBatch(id); err == nil {
		return b.remains
	}
	return nil
}

// remember counts an orphaned piece, in a slice of a link, among the batch's remains.
func (b *batch) remember(p *piece, l *link) {
	if l.spec.Info != nil && l.spec.Info.Quiesces {
		return
	}
	if b.remains == nil {
		b.remains = &Remains{}
	}
	b.remains.pieces++
	p.remains = b.remains
}

// fenceRail asks for all completions of a rail and ends its generation, once.
func (c *Core) fenceRail(r *railState, now clock.Time) {
	if r.life.State().Fenced() {
		return
	}
	c.totalsOf(r).condemned++
	c.railEvent(event.Event{Kind: event.RailCondemned, Bytes: r.bytes}, r, now)
	if c.observe(r, rail.Fenced, now).To == rail.Condemned {
		c.awaitEnd(r, now)
	}
	c.posting(&c.out.Fence, &r.fence, r)
	c.resendFlight(r, now)
	c.tendLink(r.link, now)
}

// remoteEngine is the engine that a peer is. One engine may be several peers: it is open under two addresses, or was
// closed and opened again. They have its memory in common, in which a slice of one may still land.
type remoteEngine struct {
	peers []*peer
	open  int // slices that outlived their task: nothing goes to any of its peers before they have completed
}

// held reports whether nothing may go to the peer: the engine has not confirmed withdrawals.
func (p *peer) held() bool { return p.engine.open > 0 }

// owe adds to the open withdrawals of a peer. One that has gone owes nothing.
func (p *peer) owe(n int) {
	if p.gone == nil {
		p.open += n
		p.engine.open += n
	}
}

// enterPeer makes a new peer one of its engine's.
func (c *Core) enterPeer(p *peer, id transport.ID) {
	if p.engine = c.engines[id]; p.engine == nil {
		p.engine = &remoteEngine{}
		if !id.IsZero() {
			c.engines[id] = p.engine
		}
	}
	p.engine.peers = append(p.engine.peers, p)
}

// leavePeer is the end of a peer without links. Nothing of it is out.
func (c *Core) leavePeer(p *peer, id transport.ID) {
	of := p.engine
	of.peers = slices.DeleteFunc(of.peers, func(other *peer) bool { return other == p })
	if len(of.peers) == 0 {
		delete(c.engines, id)
	}
}

// confirmWithdrawal closes one open withdrawal of a peer; with the last one of its engine all links there go on.
func (c *Core) confirmWithdrawal(p *peer, now clock.Time) {
	if p.open == 0 {
		return // the peer has gone
	}
	if p.owe(-1); p.held() {
		return
	}
	c.emit(event.Event{Kind: event.Withdrawn, Time: now, Peer: p.name})
	c.releasePeers(p)
}

// releasePeers makes the links to an engine look whether they may go on.
func (c *Core) releasePeers(p *peer) {
	for _, other := range p.engine.peers {
		for _, l := range other.links {
			c.activate(l)
		}
	}
}

// endStalled ends tasks that are being served and have made no progress for the stall limit.
func (c *Core) endStalled(now clock.Time) {
	limit := c.options.Stall
	since := c.awake(now).Add(-limit)
	for t := c.served.First(); t != nil && t.progress <= since; t = c.served.First() {
		if last := c.lastSign(t); last > since {
			c.postpone(t, last)
			continue
		}
		err := errs.New(errs.Timeout, "transfer", "no progress for %v: %d of %d bytes", limit, t.acked, t.spec.Length).
			WithHint("transfer_stall_timeout is the limit")
		if l := c.link(t.path().Across().Link); l != nil && l.peer.presence == rail.Silent {
			err = c.silentError(l, now)
		}
		name := ""
		if p := t.pieces.First(); p != nil && p.attempt != nil {
			err = c.blame(err, t, p.attempt.rail)
			name = err.Rail
		}
		c.emit(event.Event{Kind: event.Stalled, Time: now, Peer: err.Peer, Transport: err.Transport, Rail: name,
			Err: err, Trace: t.batch.trace})
		c.endTask(t, Failed, err, now)
	}
}

// postpone moves a task to where it belongs by its last sign of progress.
func (c *Core) postpone(t *task, last clock.Time) {
	t.watch.Unlink()
	t.progress = last
	c.served.InsertLast(&t.watch, t, func(other *task) bool { return other.progress <= last })
}

// lastSign is when something last happened that a task may claim as progress, by the detector's clock. Progress is
// bytes of a long slice on its rail, a healthy link serving others before it, or a stage giving slots back.
func (c *Core) lastSign(t *task) clock.Time {
	last := t.progress
	for p := t.pieces.First(); p != nil; p = p.mine.After() {
		if p.attempt != nil {
			last = max(last, p.attempt.lastSign())
		} else {
			last = max(last, c.waitSign(p.way().Link, t))
		}
	}
	if t.cursor < t.spec.Length {
		last = max(last, c.waitSign(t.begin().Link, t))
	}
	return last
}

// lastSign is when the rail of a slice last moved bytes. A slice claims neither those that moved before it, as a
// handshake's, nor any once it is forgotten.
func (a *attempt) lastSign() clock.Time {
	if a.forgotten || a.rail.noted <= a.begun {
		return 0
	}
	return a.rail.noted
}

// waitSign is the last sign of progress for work that waits on a link: the link delivers, or the stages of the route
// move.
func (c *Core) waitSign(id plan.LinkID, t *task) (last clock.Time) {
	if l := c.link(id); l != nil {
		last = l.delivered
	}
	if len(t.path().Hops) > 1 {
		ids, n := stagesOf(t.path())
		for _, id := range ids[:n] {
			last = max(last, c.stages[id].moved)
		}
	}
	return last
}
