package sim

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

// A posted WRITE (Settings.Posts) is acknowledged before it is placed:
//
//	arrived --> placed, up to Posts later
//	   '--answer--> waits for a flush --flush at the peer: places all that arrived--> back: completed
//
// One flush serves all WRITEs of a rail that were acknowledged before it left, and they complete in any order.

// posts reports whether a slice is a WRITE that is acknowledged before it is placed.
func (t *Transport) posts(a *attempt) bool {
	return t.settings.Posts > 0 && a.slice.Op == transport.Write
}

// post is the arrival of a posted WRITE.
func (a *attempt) post(n *Network) {
	a.posted = true
	late := n.upTo(clock.Time(a.rail.link.owner.settings.Posts))
	if a.rail.link.owner.settings.Unflushed {
		a.postForGood(n, late)
		return
	}
	n.schedule(event{kind: placed, attempt: a, life: a.life, node: a.rail.link.to}, late)
}

// postForGood places a WRITE however it has ended by then.
func (a *attempt) postForGood(n *Network, late clock.Time) {
	again := *a
	slice := *a.slice
	again.slice = &slice
	n.schedule(event{node: a.rail.link.to, do: again.land}, late)
}

// place lets a posted WRITE land now.
func (a *attempt) place() {
	if a.posted && !a.landed && !a.void {
		a.land()
	}
}

// acknowledged is the answer to a posted WRITE: a flush follows, the next one if one is under way.
func (a *attempt) acknowledged(n *Network) {
	r := a.rail
	if r.link.owner.settings.Unflushed {
		a.complete(nil)
		return
	}
	r.acked = append(r.acked, waiter{a, a.life})
	if !r.flushing {
		r.flush(n)
	}
}

// flush makes WRITEs that were acknowledged visible at the peer, and completes them.
func (r *rail) flush(n *Network) {
	list, way := r.acked, clock.Time(r.path.shape.Delay)
	r.acked, r.flushing = nil, true
	r.link.owner.flushes.Add(1)
	n.schedule(event{node: r.link.to, rail: r, do: func() {
		for _, w := range list {
			if w.attempt.life == w.life {
				w.attempt.place()
			}
		}
		n.schedule(event{node: r.link.owner, rail: r, do: func() { r.flushed(n, list) }}, way)
	}}, way)
}

func (r *rail) flushed(n *Network, list []waiter) {
	n.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, w := range list {
		if a := w.attempt; a.life == w.life {
			a.complete(a.verdict)
		}
	}
	if r.flushing = false; len(r.acked) > 0 {
		r.flush(n)
	}
}

// Flushes implements transport.Flusher.
func (t *Transport) Flushes() uint64 { return t.flushes.Load() }
