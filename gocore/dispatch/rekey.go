package dispatch

import (
	"slices"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// A peer may replace the descriptor of a region while tasks run: a NIC came, or pages moved. The engine imports the new
// one and reports the keys. Slices that are cut from then on carry the new key; those that are out keep theirs, and end
// as they end. The old key is retired, which the transport hears by Effects.Retired, when its last slice is back.
//
//	Rekey(old, new) --> tasks and waiting pieces carry new --last slice of old is back--> Retired(old)
//
//	slice of old refused: Replaced --> new is known: again at once
//	                              +--> else Effects.Stale: the engine asks the peer, Refreshed follows

// successor says which key a region of a link has now.
type successor struct {
	old, key transport.RemoteKey // key 0: the peer does not offer the region over the link any more
	matches  plan.Matches        // of key
	out      int                 // slices that carry old, and inline calls that may
	since    uint64              // the last slice's id at that time
	retired  bool
}

// successorsMost bounds the successors that a link remembers. Tasks that were planned with an older key and are
// submitted only now may come late; beyond the bound they fail as if the region were closed.
const successorsMost = 256

// describedWithin is how long an owner may need from a descriptor that it has replaced to the next one. A fence lies
// between the two, which waits for peers that are silent, and for the slices of others.
const describedWithin = 2 * transport.HearingLimit

// Retired is a key that no slice carries any more.
type Retired struct {
	Transport uint8
	Link      transport.Link
	Key       transport.RemoteKey
}

// Rekey gives a remote region of a link another key, 0 for none, and the rails on which that works. Tasks that go on
// with the old key in error are put right when their slices are refused as Replaced.
func (c *Core) Rekey(id plan.LinkID, old, key transport.RemoteKey, matches plan.Matches, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	l := c.link(id)
	if l == nil || old == 0 || old == key {
		return
	}
	l.successors = slices.DeleteFunc(l.successors, func(s successor) bool { return s.old == key }) // it is back
	for i := range l.successors {
		if s := &l.successors[i]; s.key == old {
			s.key, s.matches = key, matches
		}
	}
	out := l.outstanding
	for _, n := range l.flying {
		out -= n // the rest are inline calls, by keys that the core does not know
	}
	for r := range l.records() {
		out += r.carrying(old)
	}
	s := successor{old: old, key: key, matches: matches, out: out, since: c.ids}
	l.successors = append(l.successors, s)
	if key != 0 {
		c.rekeyTasks(l, &s, now)
	}
	c.retireKeys(l)
}

// current returns the key that a region has now.
func (l *link) current(key transport.RemoteKey) transport.RemoteKey {
	for i := range l.successors {
		if s := &l.successors[i]; s.old == key && s.key != 0 {
			return s.key
		}
	}
	return key
}

// carrying returns how many slices that are out on the rail carry a key.
func (r *railState) carrying(key transport.RemoteKey) (n int) {
	for a := r.flight.First(); a != nil; a = a.flight.After() {
		if a.RemoteKey == key {
			n++
		}
	}
	return n
}

// rekeyTasks gives every live task that reaches the region a plan with the new key, and ends the pauses of its pieces.
func (c *Core) rekeyTasks(l *link, s *successor, now clock.Time) {
	made := map[*plan.Plan]*plan.Plan{}
	for _, b := range c.batches {
		for i := 0; i < len(b.tasks); i++ { // the end of the last pending one may empty the table
			t := b.tasks[i]
			if t.state != Pending || !t.spec.Plan.Reaches(l.id, s.old) {
				continue
			}
			next := made[t.spec.Plan]
			if next == nil {
				next = t.spec.Plan.Rekeyed(l.id, s.old, s.key, s.matches)
				made[t.spec.Plan] = next
			}
			c.replan(t, next, l, now)
			for p := t.pieces.First(); p != nil && t.live(); p = p.mine.After() {
				if p.state == pieceParked {
					c.queuePiece(p, false, now)
				}
			}
		}
	}
	c.takeBack(l)
}

// replan gives the task a plan with the same routes in the same order, and other rails on a link. Those that have
// refused its keys there may take the new one.
func (c *Core) replan(t *task, next *plan.Plan, l *link, now clock.Time) {
	t.spec.Plan, t.replaced = next, 0
	if t.barredOn == l.id {
		t.barred = 0
	}
	for p := t.pieces.First(); p != nil; p = p.mine.After() {
		p.route = &next.Routes[p.index]
	}
	hops := t.path().Hops
	for i := range hops {
		if hops[i].Link == l.id {
			c.noteKeys(l, t, &hops[i], now)
		}
	}
}

// keyReplaced reports whether a slice failed because its key belongs to a replaced descriptor. The transport may have
// forgotten the key, of a task that was planned before and submitted after the change. Rails on which the key does not
// work say nothing about the new one.
func (a *attempt) keyReplaced(err *errs.Error) bool {
	if err.Code == errs.AddressNotRegistered || err.Code == errs.NotHere {
		return slices.ContainsFunc(a.rail.link.successors, func(s successor) bool { return s.old == a.RemoteKey })
	}
	return err.Code == errs.Replaced
}

// rekeyPiece decides about a piece of a slice that was refused because its key was replaced. False leaves it to
// retryPiece, which counts the try. Where the task has no other route, the last one is kept for the time that the owner
// may need. The piece is idle, its task is live.
func (c *Core) rekeyPiece(p *piece, a *attempt, now clock.Time) bool {
	t, l := p.task, a.rail.link
	hop := p.way()
	if p.index != t.route || hop.Link != l.id {
		return false
	}
	if hop.RemoteKey != a.RemoteKey { // it has the new key since
		c.queuePiece(p, true, now)
		return true
	}
	i := slices.IndexFunc(l.successors, func(s successor) bool { return s.old == a.RemoteKey })
	switch {
	case i >= 0 && l.successors[i].key != 0:
		s := &l.successors[i]
		c.replan(t, t.spec.Plan.Rekeyed(l.id, s.old, s.key, s.matches), l, now)
		c.takeBack(l)
		c.queuePiece(p, true, now)
		return true
	case i >= 0: // the peer offers it no more over this link
		c.failover(t, c.attribute(errs.New(errs.AddressNotRegistered, "transfer",
			"the peer does not offer the region over this transport any more").
			WithScope(errs.ScopeLink, errs.SideRemote), a.rail), now)
		return true
	}
	if t.replaced == 0 {
		t.replaced = c.awake(now)
		l.peer.queries, l.peer.again = 0, now
	}
	switch {
	case l.peer.stale: // its description is on the way: a deadline or the stall limit ends the wait
		c.parkPieceFor(p, retryRungs-1, now)
		return true
	case now >= l.peer.again: // an answer that was of no use to one piece is of none to the others
		l.peer.stale = true
		l.peer.again = now.Add(c.options.RetryAfter << min(l.peer.queries, retryRungs-2))
		l.peer.queries++
		c.out.Stale = append(c.out.Stale, l.spec.Peer)
	}
	if int(p.tries) < c.options.Retries || c.awake(now).Sub(t.replaced) >= describedWithin {
		return false
	}
	if next, _ := c.nextRoute(t, false); next >= 0 {
		return false
	}
	c.parkPieceFor(p, retryRungs-2, now) // not in the last one, which each answer empties
	return true
}

// Refreshed says that the engine has asked a peer for its description, also where that has failed. Rekey came before.
func (c *Core) Refreshed(number uint32, now clock.Time) {
	if invariants {
		defer c.checkInvariants()
	}
	peer := c.peers[number]
	if peer == nil {
		return
	}
	peer.stale = false
	list := &c.parked[retryRungs-1]
	for p := list.First(); p != nil; {
		next := p.queue.After()
		if l := c.link(p.way().Link); l != nil && l.peer == peer {
			c.queuePiece(p, false, now)
			if next != nil && next.queue.List() != list { // its task has moved or ended: the record may be another's
				next = list.First()
			}
		}
		p = next
	}
}

// returnKey notes that a slice is back.
func (c *Core) returnKey(l *link, a *attempt) {
	for i := range l.successors {
		if s := &l.successors[i]; !s.retired && s.old == a.RemoteKey && a.Id <= s.since {
			s.out--
		}
	}
	c.retireKeys(l)
}

// returnKeys notes that the inline calls of a reservation have ended, whichever keys they used.
func (c *Core) returnKeys(r *Reservation) {
	for i := range r.link.successors {
		if s := &r.link.successors[i]; !s.retired && r.Id <= s.since {
			s.out -= r.tasks
		}
	}
	c.retireKeys(r.link)
}

// retireKeys hands out the keys that no slice carries any more, and forgets the oldest successors beyond the bound.
func (c *Core) retireKeys(l *link) {
	for i := range l.successors {
		if s := &l.successors[i]; s.out == 0 && !s.retired {
			s.retired = true
			c.out.Retired = append(c.out.Retired, Retired{l.spec.Transport, l.spec.Link, s.old})
		}
	}
	for i := 0; len(l.successors) > successorsMost && i < len(l.successors); {
		if !l.successors[i].retired {
			i++
			continue
		}
		l.successors = slices.Delete(l.successors, i, i+1)
	}
}
