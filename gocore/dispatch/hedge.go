package dispatch

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// Hedged requests (Dean and Barroso, "The Tail at Scale", 2013) shorten the tail of a transfer. When nothing fresh
// waits, the slices of a slow rail that another rail would redo in less than a third of the time are withdrawn and sent
// there too; the lane lives on. The youngest go first, since they would come last. Each is hedged once, so a transfer
// sends at most the bytes in flight a second time.

// hedgeGainLeast is how much later than elsewhere a slice must be expected for it to be worth a duplicate.
const hedgeGainLeast = 2 * time.Millisecond

// hedge relieves the rail that would end last. Nothing waits on the link.
func (c *Core) hedge(l *link, now clock.Time) {
	slow, last := l.slowest()
	if slow == nil {
		return
	}
	for a := slow.flight.Last(); a != nil && last > float64(hedgeGainLeast); {
		before := a.flight.Before()
		if !a.replaced && a.tries() < hedgesMost {
			other, redo := l.quickest(slow, a, now)
			if other == nil || last < 3*redo+float64(hedgeGainLeast) {
				return
			}
			c.withdrawSlice(a)
			c.replaceSlice(a, now)
			c.hedged++
			for !l.idle() {
				c.restWaiting(l, now)
				r, next := c.choose(l, now)
				if r == nil {
					return
				}
				c.cut(l, r, next, now)
			}
		}
		last -= float64(a.Length) / slow.meter.Rate() * 1e9
		a = before
	}
}

// hedgesMost bounds how often the bytes of a slice are sent, hedges included, before they are left alone.
const hedgesMost = 3

// tries is how often the first bytes of a slice were sent.
func (a *attempt) tries() int {
	if a.pieces == nil {
		return hedgesMost
	}
	return int(a.pieces.sent)
}

// slowest is the rail that would end last, and when by its rate, in ns from now.
func (l *link) slowest() (slow *railState, last float64) {
	for _, r := range l.rails {
		if r == nil || r.slices == 0 || !r.usable() {
			continue
		}
		if finish := float64(r.bytes) / r.meter.Rate() * 1e9; finish > last {
			slow, last = r, finish
		}
	}
	return slow, last
}

// quickest is the other rail that would carry the bytes of a slice first, and when.
func (l *link) quickest(slow *railState, a *attempt, now clock.Time) (best *railState, redo float64) {
	n := a.Length
	for _, r := range l.rails {
		if r == nil || r == slow || r.rank != l.rank || r.full || l.rank >= rankPaused || r.bytes+n > r.bytesMax ||
			l.apart(r, a.pieces.task, a.pieces.way()) {
			continue
		}
		if finish := r.meter.Finish(r.bytes+n, r.slices == 0, now); best == nil || finish < redo {
			best, redo = r, finish
		}
	}
	return best, redo
}
