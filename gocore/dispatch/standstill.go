package dispatch

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// A peer that gets no processor for some tens of milliseconds is silent on all of its rails at once. That is too
// short for rail.Silent, and it is no silence of a rail. So it teaches the meters nothing: three times one such
// standstill would be the time for which the next rail that breaks is trusted. And it is pardoned: the peer's rails
// speak again one after the other, and the last of them is not the one that broke.
//
// A dead rail must not look like that. A standstill ends with a word of a busy rail that was silent for longer than is
// usual there, and another busy rail was, too. A rail is pardoned once between two of its own words, so each silence is
// judged after twice its limit at most.

// endStandstill looks whether a sign of life of a busy rail ends a standstill of its peer, before the sign is noted.
// The slice is the one that was next to complete, nil if none was; at is the sign's time by the detector's clock.
func (c *Core) endStandstill(r *railState, slice *attempt, at clock.Time) {
	if slice == nil || r.link.inside() {
		return
	}
	p := r.link.peer
	begin := max(p.heard, slice.started-c.lost)
	gap := at.Sub(begin)
	if gap <= r.link.options.SuspectAfter/3 || gap <= r.meter.Silence(slice.Length) { // no limit grows by it
		return
	}
	shared := false
	for other := range p.rails() {
		shared = shared || (other != r && c.stoodStill(other, begin, gap))
	}
	if !shared {
		return
	}
	p.stood += clock.Time(gap)
	for other := range p.rails() {
		if other != r && other.slices > 0 && other.heard <= begin && other.pardon != other.heard {
			other.heard = other.heard.Add(gap)
			other.pardon = other.heard
		}
	}
}

// stoodStill reports whether a rail was busy and silent through a gap that is longer than is usual there.
func (c *Core) stoodStill(r *railState, begin clock.Time, gap time.Duration) bool {
	if r.slices == 0 || !r.healthy() || r.heard > begin {
		return false
	}
	head := r.flight.First()
	usual := r.meter.Silence(head.Length)
	return usual > 0 && head.started-c.lost <= begin && gap > usual
}
