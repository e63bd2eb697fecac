package dispatch

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/qos"
)

// Late binding: nothing is divided in advance. A rail that has room pulls, and only then a slice is cut from the head
// of the queue. A slow rail takes less, a dead one nothing, and its window bounds the bytes in flight.

// pump cuts slices until no rail of the link has room or nothing waits.
func (c *Core) pump(l *link, now clock.Time) {
	c.settle(l, now)
	if l.peer.held() || l.up == 0 {
		c.releaseNext(l, now)
		return
	}
	for _, d := range l.devices {
		d.noteCalm(l.options.Slots, now)
	}
	c.voidBids()
	for {
		if l.byDeadline && !c.dropHopeless(l, now) {
			c.activate(l)
			return
		}
		c.restWaiting(l, now)
		r, next := c.choose(l, now)
		if r == nil {
			if l.outstanding > 0 && l.several && l.idle() {
				c.hedge(l, now)
			}
			c.releaseNext(l, now)
			return
		}
		if c.cuts++; c.cuts > cutsMost {
			c.activate(l) // the rest in the next step, which is due at once
			return
		}
		c.cut(l, r, next, now)
	}
}

// settle ends the samples of the rates, with all that this step has brought.
func (c *Core) settle(l *link, now clock.Time) {
	for _, d := range l.devices {
		d.meter.Settle()
	}
	for _, r := range l.rails {
		if r == nil {
			continue
		}
		r.meter.Settle()
		if bytes, full := r.meter.TakeFull(); full > 0 {
			c.judgePace(r, bytes, r.came, full, now)
		}
	}
}

// releaseNext wakes the next held link of each NIC that woke this one, if this link has sent nothing there.
func (c *Core) releaseNext(l *link, now clock.Time) {
	for _, d := range l.devices {
		if d.woken == l {
			if d.holds(l) {
				d.woken = nil
			} else {
				c.releaseHeld(d)
			}
		}
		if d.neighbours != nil {
			c.publish(d, now)
		}
	}
}

// offer is the next slice that a rail would take: of a piece, else of the fresh bytes of a task.
type offer struct {
	takes bool   // the rail has room for it
	class int    // -1: nothing waits that the rail may take
	want  uint64 // bytes
	piece *piece
	task  *task
	aged  bool // a turn granted by ageing
}

// of is the task that the slice belongs to.
func (o *offer) of() *task {
	if o.piece != nil {
		return o.piece.task
	}
	return o.task
}

// hop is the way that it takes.
func (o *offer) hop() *plan.Hop {
	if o.piece != nil {
		return o.piece.way()
	}
	return o.task.begin()
}

// left is the bytes that there are for the slice: every rail would take as many, up to its own limit.
func (o *offer) left() uint64 {
	if o.piece != nil {
		return o.piece.length
	}
	return o.task.spec.Length - o.task.cursor
}

// offer returns the class that the rail would serve now and the bytes that it would take from its head.
//
// Order is strict: when the head of the class that is next has no room, nothing behind it is taken instead. That also
// gives a turn granted to LOW its room while HIGH keeps the window full. A class of which everything waits for other
// rails, or that is not admitted, is passed over.
func (c *Core) offer(l *link, r *railState, now clock.Time) offer {
	waiting := &l.waiting
	var rest [ClassCount]clock.Time
	for {
		class, aged := r.turns.Pick(waiting, c.entriesOf(l), l.options.Ageing, now)
		if class < 0 {
			return offer{class: -1}
		}
		p, t := l.head(class, r, now)
		ok := p != nil || t != nil
		if ok && class > High {
			ok, aged = c.admits(l, r, class, aged, now)
		}
		if !ok {
			rest = *waiting
			rest[class] = clock.Never
			waiting = &rest
			continue
		}
		var want uint64
		if p != nil {
			want, t = c.pieceBytes(p, r, class), nil
		} else {
			want = c.freshBytes(t, r, class)
		}
		return offer{c.fitsIn(r, class, want, aged, now), class, want, p, t, aged}
	}
}

// entriesOf are the requests of each class that wait, where turns are granted to each of them.
func (c *Core) entriesOf(l *link) *[ClassCount]int {
	if !l.options.PerEntry {
		return nil
	}
	for class := range c.entries {
		c.entries[class] = l.ageingDivisor(class)
	}
	return &c.entries
}

// fitsIn reports whether there is room on the rail and, for LOW, on its NIC.
func (c *Core) fitsIn(r *railState, class int, want uint64, aged bool, now clock.Time) bool {
	if class == Low && !aged && r.device.drains(r, now) {
		if r.device.shared { // slices of other links empty the wire; else the rail's own do, which look again anyway
			c.holdBack(r, now.Add(r.link.options.SuspectAfter))
		}
		return false
	}
	if r.room(class, want, aged) {
		return true
	}
	d := r.device
	crowded := class == Low && !aged && !d.lowRoom(r, want) // asked before a probe widens the NIC's window
	capped := r.bytesMax < r.bytesWhole || (class == Low && !aged)
	if d.shared {
		d.meter.Full(capped)
	}
	if class == Low {
		r.meter.ProbeBandwidth(now)
		if d.shared {
			d.meter.ProbeBandwidth(now)
		}
	}
	if !crowded {
		if d.held.Len() == 0 { // else it is the NIC that is full, and the rail carries only its share
			r.meter.Full(capped)
		}
		return false // a slice of its own that comes back wakes it
	}
	c.findStuck(d, now)
	if r.room(class, want, aged) {
		return true
	}
	c.holdBack(r, now.Add(r.link.options.SuspectAfter))
	return false
}

// head returns the next work of a class for a rail: the first piece, or fresh bytes of the first task. A piece that has
// failed on the rail, and that other rails should try first, does not hold it up.
func (l *link) head(class int, r *railState, now clock.Time) (*piece, *task) {
	q := &l.queues[class]
	p, t := q.pieces.First(), q.next()
	if l.selective() {
		p, t = l.own(q, r)
	}
	if p == nil || (p.tried != 0 && p.wasOn(r) && l.better(p, r, now)) {
		return nil, t
	}
	return p, nil
}

// window is the bytes and slices that may be in flight on the rail when a class wants to add to them.
func (r *railState) window(class int) (bytes uint64, slices int) {
	if class != Low {
		return r.bytesMax, r.slicesMax
	}
	bytes = qos.LowWindow(r.meter.WindowRate(), r.meter.Delay(), r.calm(), r.bytesMax)
	if d := r.device; d.shared {
		bytes = min(bytes, d.lowWindow(r))
	}
	return bytes, r.slicesMax - r.slicesMax/4
}

// calm reports whether LOW has the rail's NIC for itself, at a rate that was measured.
func (r *railState) calm() bool { return r.device.calm && r.meter.Measured() }

// room reports whether want more bytes fit. An idle rail always takes one slice; a turn granted by ageing may use the
// whole window, or steady HIGH traffic would keep LOW out for ever.
func (r *railState) room(class int, want uint64, aged bool) bool {
	if class == Low && !aged && !r.device.lowRoom(r, want) {
		return false
	}
	if r.slices == 0 {
		return true
	}
	bytes, slices := r.bytesMax, r.slicesMax
	if !aged {
		bytes, slices = r.window(class)
	}
	return r.bytes+want <= bytes && r.slices < slices
}

// limit is the longest slice of a task that may be cut here: the limit of the route, and at most half a window. So the
// next one is on its way while the first is acknowledged; LOW has less.
func (c *Core) limit(r *railState, class int, route *plan.Route, t *task) uint64 {
	bytes, _ := r.window(class)
	n := bytes / 2
	if class == Low {
		n = qos.LowSlice(bytes)
		if route.SliceLow > 0 && !r.calm() {
			n = min(n, route.SliceLow)
		}
	}
	n = min(n, r.meter.Quantum())
	if route.SliceMax > 0 {
		n = min(n, route.SliceMax)
	}
	if route.SliceBest > 0 {
		n = min(n, route.SliceBest)
	}
	if len(route.Hops) > 1 { // a piece of several hops must fit its stage buffers
		n = min(n, max(t.spec.Length/stagedParts, stagedLeast))
		ids, count := stagesOf(route)
		for _, id := range ids[:count] {
			n = min(n, c.stages[id].spec.SlotBytes)
		}
	}
	if a := route.Alignment; a > 1 {
		return max(n-n%a, a)
	}
	return max(n, 1)
}

// cut takes one slice from the head of a class and hands it to the rail. A head that cannot be cut because a stage of
// its route is full waits there, out of the way of the others.
func (c *Core) cut(l *link, r *railState, next offer, now clock.Time) {
	class, p, t := next.class, next.piece, next.task
	q := &l.queues[class]
	c.auction.round++
	if c.overdue && c.endIfLate(p, t, now) {
		return
	}
	if p == nil {
		if p = c.carve(t, next.want, now); p == nil {
			return
		}
	} else {
		if p.length > next.want {
			c.split(p, next.want)
		}
		if full := c.takeSlots(p); full != nil {
			c.waitForSlot(full, p, nil, now)
			return
		}
	}
	length := p.length
	if c.options.Merge && len(p.route.Hops) == 1 {
		length = c.merge(p, q, r, class, now)
	}
	r.turns.Served(class, now)
	if next.aged {
		c.counters[l.spec.Transport][class].Promotions++
	}
	c.postSlice(p, length, r, now)
}

// split cuts a piece that is longer than the rail takes; the rest stays behind it in the queue.
func (c *Core) split(p *piece, limit uint64) {
	rest := c.newPiece(p.task, p.offset+limit, p.length-limit)
	rest.sent, rest.tries, rest.spared, rest.tried, rest.lastRound = p.sent, p.tries, p.spared, p.tried, p.lastRound
	p.length = limit
	p.unpair() // the replaced slice has the bytes of two pieces now; only the pieces count
	rest.become(pieceQueued)
	p.queue.List().InsertAfter(&rest.queue, rest, &p.queue)
}

// carve makes a piece from the fresh bytes of a task; nil if a stage is full.
func (c *Core) carve(t *task, length uint64, now clock.Time) *piece {
	p := c.newPiece(t, t.cursor, length)
	if full := c.takeSlots(p); full != nil {
		c.freePiece(p)
		c.waitForSlot(full, nil, t, now)
		return nil
	}
	t.cursor += p.length
	t.queue.in.bytes -= p.length
	if t.cursor == t.spec.Length {
		t.unqueue()
	}
	return p
}

// merge lets tasks that follow the piece in the queue ride in its slice. They are whole ones that continue it on both
// sides and agree in everything that matters. Their reports stay their own. It returns the bytes of all.
func (c *Core) merge(p *piece, q *classQueue, r *railState, class int, now clock.Time) uint64 {
	total := p.length
	if p.offset+p.length != p.task.spec.Length { // the slice does not reach the end of its task
		return total
	}
	limit := c.limit(r, class, p.route, p.task)
	for last := p; ; last = last.sibling {
		t, before := q.next(), last.task
		if t == nil || t.cursor != 0 || t.batch != before.batch || t.route != before.route ||
			!continues(&before.spec, &t.spec) || total+t.spec.Length > limit ||
			!r.room(class, total+t.spec.Length, false) {
			return total
		}
		last.sibling = c.carve(t, t.spec.Length, now)
		total += t.spec.Length
	}
}

// continues reports whether b begins where a ends, here and there, and may share its fate.
func continues(a, b *TaskSpec) bool {
	return a.Local+uintptr(a.Length) == b.Local && a.Remote+a.Length == b.Remote && a.Plan == b.Plan &&
		a.Terms.Same(&b.Terms) && a.Epoch == b.Epoch && a.Parts == nil && b.Parts == nil
}

// postSlice fills a slice for a piece and its siblings and puts it into the effects of this step.
func (c *Core) postSlice(p *piece, length uint64, r *railState, now clock.Time) {
	l, t := r.link, p.task
	hop := p.way()
	a := c.attempts.Get()
	c.ids++
	t.spec.SliceOver(hop, &a.Slice)
	a.Rail, a.Local, a.Remote, a.Length, a.Id = r.id, c.localAddress(p, hop), c.remoteOffset(p, hop), length, c.ids
	switch parts := t.spec.Parts; {
	case parts == nil || length <= parts.Bytes:
	case len(p.route.Hops) > 1:
		c.gatherParts(p, hop, a)
	case r.vectors:
		a.Pieces, a.First = parts, uint32(p.offset/parts.Bytes)
		a.Local, a.Remote = t.spec.Local, t.spec.Remote
	}
	a.rail, a.pieces, a.started, a.begun, a.state = r, p, now, c.awake(now), attemptOut
	for ; p != nil; p = p.sibling {
		c.launchPiece(p, a, now)
	}
	if r.slices == 0 {
		r.meter.Begin(now)
		r.beginSilence(c.awake(now))
		r.answered = 0
		if l.answers() {
			c.expectAnswer(l.peer, now)
		}
		if !r.timer.Armed() || !r.healthy() { // that of a paused rail waits for the end of the pause
			c.timers.SetSooner(&r.timer, now.Add(l.options.SuspectAfter))
		}
	}
	c.launched(r, a, now)
	r.flight.PushBack(&a.flight, a)
	r.bytes += length
	r.slices++
	a.ahead, a.brought, a.passed, a.forgotten = r.bytes, r.brought[a.Class], 0, false
	r.posted = c.ids
	l.outstanding++
	l.flying[t.spec.Class]++
	c.outstanding++
	c.counters[l.spec.Transport][t.spec.Class].Attempts[a.Op]++
	post := c.posting(&c.out.Submit, &r.submit, r)
	post.Slices = append(post.Slices, &a.Slice)
}

// launchPiece notes on a piece and its task that the piece is on its way.
func (c *Core) launchPiece(p *piece, a *attempt, now clock.Time) {
	t := p.task
	p.become(pieceFlying)
	p.attempt = a
	p.sent++
	t.outstanding++
	if !t.watch.Linked() { // its first slice
		t.progress = c.awake(now)
		c.served.PushBack(&t.watch, t)
		c.countersOf(t).QueueWait.addValue(micros(now.Sub(t.submitted)))
	}
	if p.sent > t.attempts {
		t.batch.attempts += uint32(p.sent - t.attempts)
		t.attempts = p.sent
	}
	t.batch.transports |= 1 << (p.route.Transport & 31)
}
