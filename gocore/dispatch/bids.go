package dispatch

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// The choice among rails is an auction. Each rail bids the moment at which it would finish the next slice, and the
// least bid wins. To ask every rail for every slice would make a slice dearer by the number of rails; so bids are kept
// while slices are cut, and only the winner of the last round bids again. That is the lazy greedy algorithm (Minoux
// 1978): a rail's bytes in flight only grow while slices are cut, so the rail would bid no less now than in an earlier
// round, and a bid of this round that is no higher than all others is the least.
//
// A bid of an earlier round may be too high when the head of the queue has fewer bytes than were bid for, or is cut
// otherwise. So it may when work arrives, and when a rail's rank or health changes. Then all rails bid anew. They also
// do when no bid is left, since other work may be at the head by now, and for every slice where rails do not serve the
// same head: some leave work to others, or grant a turn to a lower class. Parts of tasks end where they end, and LOW
// bytes of one rail take the room of others on its NIC; these, too, are asked for by every slice.

// bid is a rail's offer and its price.
type bid struct {
	cost   float64 // ns until the slice has arrived, times the factor of the distance to its memory
	band   int     // of health
	posted uint64  // the rail's last slice, for equal costs
	round  uint64  // in which it was made
	rail   *railState
	offer  offer
}

// auction is that of one link.
type auction struct {
	link    *link // nil: the bids are void
	round   uint64
	bids    []bid  // of rails that took something when all were asked, in the order of the rails
	order   []*bid // of these, those that still do; the least is the first
	class   int    // that is first by order
	head    *task  // that was at the head of its queue
	mixed   bool   // every slice needs new bids: rails serve other classes, or take each other's room
	most    uint64 // bytes that a rail wanted, also one that had no room for them
	forgets bool   // every choice asks all rails: for the test that compares the two
}

// voidBids makes the next choice ask all rails anew.
func (c *Core) voidBids() { c.auction.link = nil }

// choose returns the rail that takes the next slice, and which one, or nil.
func (c *Core) choose(l *link, now clock.Time) (*railState, offer) {
	switch {
	case l.idle():
		return nil, offer{}
	case !l.several:
		return c.only(l, now)
	}
	a := &c.auction
	anew := a.link != l || a.forgets || a.mixed || l.unalike()
	if anew {
		c.collectBids(l, now)
	}
	for {
		if len(a.order) == 0 {
			if anew {
				return nil, offer{}
			}
			c.collectBids(l, now)
			anew = true
			continue
		}
		b := a.order[0]
		switch current := b.round == a.round || b.stands(l, a); {
		case current && !l.waits(b):
			return b.rail, b.offer
		case current || !c.renew(l, b, now):
			a.order = append(a.order[:0], a.order[1:]...)
		case !anew && (a.mixed || b.offer.left() < a.most || !b.offer.of().cutAs(a.head)):
			c.collectBids(l, now)
			anew = true
		default:
			a.putBack()
		}
	}
}

// waits reports whether the slice of a winner should wait for another rail, or for later. Two rules, for rails that
// take long, while others carry something:
//
//   - A rail has no more than aheadMost of work before it. It pulls again when a slice of its own comes back, and by
//     then all rates are known better.
//   - The others would end all that waits, and this slice, before the winner ends the slice: earliest completion first
//     (Lim et al., "ECF: An MPTCP Path Scheduler to Manage Heterogeneous Paths", 2017).
//
// A slow rail that pulls whenever it has room holds a whole window when the others are done. Hedging repairs that only
// if slices are given back: a posted READ of a queue pair ends in its own time.
//
// A turn granted by ageing is used. Others count if they carry something: its end makes the core choose again. Rates
// of all are measured. A rail that waits counts as full, or its rate would never be measured lower.
func (l *link) waits(winner *bid) bool {
	r, next := winner.rail, &winner.offer
	if winner.cost <= float64(hedgeGainLeast) || next.aged || !r.meter.Measured() {
		return false
	}
	t, way := next.of(), next.hop()
	bytes, rate, best := uint64(0), 0.0, 0.0
	for _, other := range l.rails {
		if other != nil && other != r && other.slices > 0 && other.rank == l.rank && other.band <= r.band &&
			other.meter.Measured() && !l.apart(other, t, way) {
			bytes += other.bytes
			rate += other.meter.Rate()
			best = max(best, other.meter.Rate())
		}
	}
	if rate == 0 {
		return false
	}
	for class := range next.class + 1 {
		bytes += l.queues[class].bytes
	}
	if next.piece == nil {
		bytes -= next.want
	}
	finish := float64(r.bytes+next.want) / r.meter.Rate() * 1e9
	others := (float64(bytes)/rate + float64(next.want)/best) * 1e9
	busy := r.slices > 1
	if others+float64(hedgeGainLeast) >= finish && (!busy || finish <= float64(max(aheadMost, 2*r.meter.Delay()))) {
		return false
	}
	if busy {
		r.meter.Full(true)
	}
	return true
}

// aheadMost bounds the work before a rail while others carry something.
const aheadMost = 25 * time.Millisecond

// first is the most urgent class that has work; -1 if there is none.
func (l *link) first() int {
	for class := range l.queues {
		if !l.queues[class].empty() {
			return class
		}
	}
	return -1
}

// cutAs reports whether slices of two tasks are bounded alike.
func (t *task) cutAs(other *task) bool {
	return t == other || t.spec.Plan == other.spec.Plan && t.route == other.route
}

// unalike reports whether rails of the link may have different work at the head. They leave tasks to others, or pieces
// that have failed on them.
func (l *link) unalike() bool {
	return l.selective() || l.queues[High].pieces.Len()+l.queues[Medium].pieces.Len()+l.queues[Low].pieces.Len() > 0
}

// only is the choice of a link with one rail that is up.
func (c *Core) only(l *link, now clock.Time) (*railState, offer) {
	for _, r := range l.rails {
		if r != nil && r.takesPart(l) {
			if next := c.offer(l, r, now); next.takes {
				return r, next
			}
		}
	}
	return nil, offer{}
}

// takesPart reports whether the rail may be asked at all.
func (r *railState) takesPart(l *link) bool {
	return (r.rank == l.rank || l.keyed) && r.rank != rankNever && !r.full
}

// collectBids asks every rail of a link.
func (c *Core) collectBids(l *link, now clock.Time) {
	a := &c.auction
	a.link, a.bids, a.most, a.mixed = l, a.bids[:0], 0, false
	a.class, a.head = l.first(), nil
	for _, r := range l.rails {
		if r == nil || !r.takesPart(l) {
			continue
		}
		b := bid{rail: r, band: r.band}
		if c.renew(l, &b, now) {
			a.bids = append(a.bids, b)
		}
	}
	a.sort()
}

// renew makes a rail's bid for this round; false if the rail takes nothing.
func (c *Core) renew(l *link, b *bid, now clock.Time) bool {
	r, a := b.rail, &c.auction
	b.offer = c.offer(l, r, now)
	a.most = max(a.most, b.offer.want)
	if b.offer.class < 0 {
		a.mixed = true
		return false
	}
	t := b.offer.of()
	if a.head == nil {
		a.head = t
	}
	a.mixed = a.mixed || b.offer.class != a.class || t.spec.Parts != nil || b.offer.class == Low && r.device.shared
	if !b.offer.takes {
		return false
	}
	b.cost = r.predictFinish(b.offer.want, now) * r.distance(t, b.offer.hop())
	b.posted, b.round = r.posted, a.round
	return true
}

// sort puts the bids in order. They are few, and those of equal rails are in order already: an insertion sort.
func (a *auction) sort() {
	a.order = a.order[:0]
	for i := range a.bids {
		b, at := &a.bids[i], i
		a.order = append(a.order, b)
		for ; at > 0 && b.beats(a.order[at-1]); at-- {
			a.order[at] = a.order[at-1]
		}
		a.order[at] = b
	}
}

// putBack moves the first bid, which was renewed, behind those that beat it now.
func (a *auction) putBack() {
	order := a.order
	b, at := order[0], 0
	for ; at+1 < len(order) && order[at+1].beats(b); at++ {
		order[at] = order[at+1]
	}
	order[at] = b
}

// beats compares health, then cost, then how long ago the rail was used, then the order of the rails.
func (b *bid) beats(other *bid) bool {
	switch {
	case b.band != other.band:
		return b.band < other.band
	case b.cost != other.cost:
		return b.cost < other.cost
	case b.posted != other.posted:
		return b.posted < other.posted
	}
	return b.rail.id.Index < other.rail.id.Index
}

// stands reports whether the rail would bid now as it did in an earlier round. Its task is still at the head, with
// as many bytes as any rail wanted.
func (b *bid) stands(l *link, a *auction) bool {
	t := b.offer.task
	return b.rail.posted == b.posted && !a.mixed && t != nil && t == l.queues[b.offer.class].next() &&
		t.spec.Length-t.cursor >= a.most
}
