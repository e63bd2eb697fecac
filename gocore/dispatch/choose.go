package dispatch

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/rail"
)

// Which rail takes the next slice: the best rank that the link has; among those with room the one of the best health,
// then the one that finishes it first, where a rail that is far from the memory counts as slower than it is (reach.go),
// then the one that was used least recently. Ranks and health are kept where they change, so a choice compares numbers;
// bids.go makes it.

// Ranks order rails by how much one would like to use them; only those of the best rank that the link has are used.
const (
	rankMain      = iota // also an alternate that stands in for an end that was left over
	rankAlternate        // when no rail of the matching is healthy
	rankPaused           // rather than nothing at all
	rankNever
)

// wasOn reports whether a rail has failed the piece in this round.
func (p *piece) wasOn(r *railState) bool { return p.tried&r.bit() != 0 }

// bit is the rail's in piece.tried. Rails beyond the 63rd share one.
func (r *railState) bit() uint64 { return 1 << min(r.id.Index, 63) }

// untried reports whether the link has a rail to use that has not failed the piece in this round.
func (l *link) untried(p *piece) bool {
	for _, r := range l.rails {
		if r != nil && r.rank == l.rank && l.rank < rankPaused && !p.wasOn(r) && !l.apart(r, p.task, p.way()) {
			return true
		}
	}
	return false
}

// better reports whether a piece should wait for a rail that has not had it in this round, instead of trying one again:
// as long as that takes at most twice as long, and in the last round always.
func (l *link) better(p *piece, r *railState, now clock.Time) bool {
	if p.lastRound {
		return l.untried(p)
	}
	limit := 2 * r.meter.Finish(r.bytes+p.length, r.slices == 0, now)
	for _, other := range l.rails {
		if other != nil && other.rank == l.rank && l.rank < rankPaused && !other.full && !p.wasOn(other) &&
			!l.apart(other, p.task, p.way()) &&
			other.meter.Finish(other.bytes+p.length, other.slices == 0, now) <= limit {
			return true
		}
	}
	return false
}

// rerank brings the ranks of a link up to date, after anything that healthy depends on.
func (c *Core) rerank(l *link) {
	l.rank, l.good = rankNever, 0
	c.voidBids()
	n, back := 0, false
	for _, r := range l.rails {
		if r == nil {
			continue
		}
		before := r.rank
		r.rank = c.rankOf(l, r)
		back = back || before == rankNever && r.rank != rankNever
		r.band = r.health.Band(l.options.Step)
		l.rank = min(l.rank, r.rank)
		if r.usable() {
			n++
		}
		if r.healthy() {
			l.good++
		}
	}
	l.several = n > 1
	if back {
		c.takeBack(l)
	}
	l.weighNodes()
	c.activate(l)
}

func (c *Core) rankOf(l *link, r *railState) int {
	switch state := r.life.State(); {
	case !state.Usable() || state == rail.Suspected:
		return rankNever
	case state == rail.Paused:
		return rankPaused
	case r.info.Alternates && (state == rail.Probation || !l.leftOver(r)):
		return rankAlternate
	}
	return rankMain
}

// leftOver reports whether an end of an alternate has no healthy rail of the matching.
func (l *link) leftOver(alternate *railState) bool {
	local, remote := true, true
	for _, r := range l.rails {
		if r != nil && !r.info.Alternates && r.healthy() {
			local = local && r.info.Local != alternate.info.Local
			remote = remote && r.info.Remote != alternate.info.Remote
		}
	}
	return local || remote
}

// culprits returns the ends that are to blame for a failure of a rail: by the error itself, else by the state of other
// rails.
func (c *Core) culprits(r *railState, err *errs.Error, now clock.Time) (local, remote bool) {
	if err.Code == errs.Timeout {
		stuck := rail.NotTransmitted
		switch err.Side {
		case errs.SideLocal:
			stuck = rail.NotPosted
		case errs.SideRemote:
			stuck = rail.NotAcknowledged
		}
		return stuck.Demerits()
	}
	switch err.Side {
	case errs.SideLocal:
		return true, false
	case errs.SideRemote:
		return false, true
	}
	switch c.blameEnds(r, now) {
	case rail.LocalEnd:
		return true, false
	case rail.RemoteEnd:
		return false, true
	}
	return false, false
}

// sightingTTL bounds the age of a delivery that counts as a sighting of a rail at work: older ones predate the trouble.
const sightingTTL = time.Second

// blameEnds asks the policy, with recent sightings of the other rails of the transport.
func (c *Core) blameEnds(r *railState, now clock.Time) rail.Culprit {
	c.sightings = c.sightings[:0]
	for l := range c.linksOf(r.link.spec.Transport) {
		for _, other := range l.rails {
			switch {
			case other == nil || other == r:
			case !other.healthy():
				c.sightings = append(c.sightings, rail.Sighting{Pair: other.pair, Works: false})
			case other.lastGood != 0 && now.Sub(other.lastGood) < sightingTTL:
				c.sightings = append(c.sightings, rail.Sighting{Pair: other.pair, Works: true})
			}
		}
	}
	return rail.Blame(r.pair, c.sightings)
}
