package tcp

import (
	"math/rand/v2"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// How a rail comes back. Its old connections are of no use for that: what they retransmit comes about as late as the
// outage was long. So new ones are dialled, from the moment on that the rail went down, and the first that is welcomed is
// the rail's next generation. A packet that is lost on a path which is still gone would be repeated by the kernel after a
// second, so a try is given up soon and the next one begins; between them lie growing pauses, so that no path that stays
// away costs more than some packets a second.
//
//	tries 0 1 2  3  4   5   ...      up to tryMost apart while the outage is young, pauseMax afterwards
//	ms    0 20 60 140 300 550

const (
	pauseMin  = 20 * time.Millisecond
	pauseMax  = 2 * time.Second
	tryMost   = 250 * time.Millisecond // between the begins of two tries
	tryLate   = 500 * time.Millisecond // the same once the rail has been away for lateAfter
	lateAfter = 30 * time.Second
	tryLeast  = 100 * time.Millisecond // that a try is given on a path that was good; four round trips if these are longer
	steady    = time.Second            // a generation that lived this long was no part of the trouble before it

	alternateAfter = 100 * time.Millisecond // a rail is down for this long before its alternates are dialled
	alternateUntil = 5 * time.Second        // all of them are up for this long before the alternates go
)

// pause lies between questions over the control plane that failed.
func pause(tries int) time.Duration { return min(pauseMin<<min(tries, 10), pauseMax) }

// jitter keeps many links that lost the same switch from coming back in step.
func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2+1) }

// patience is the limit of the next try. A path that was good is known to be quick; every fourth try is given all the
// time nevertheless, because a path may have become longer. Scout says that one connection is to look first.
func (r *rail) patience(most time.Duration) (limit time.Duration, scout bool) {
	if r.trip == 0 || r.tries%4 == 3 {
		return most, r.trip != 0
	}
	return min(max(tryLeast, 4*r.trip), most), r.tries > 0
}

// failed plans the next try after one that began and failed.
func (r *rail) failed(began, now clock.Time) {
	most := tryMost
	if now.Sub(r.since) > lateAfter {
		most = tryLate
	}
	r.due = max(now, began.Add(jitter(min(pauseMin<<min(r.tries, 10), most))))
	r.tries++
}

// wentDown plans the first try: now, but for a rail that comes up and breaks again and again, which must not spin.
func (r *rail) wentDown(now clock.Time) {
	r.tries, r.due = 0, now
	if now.Sub(r.since) >= steady {
		r.flaps = 0
	} else {
		r.due = now.Add(jitter(min(pauseMin<<min(r.flaps, 10), tryMost)))
		r.flaps++
	}
	r.since = now
}

// hurry makes the next try now: something has changed for the better.
func (r *rail) hurry(now clock.Time) {
	r.tries, r.flaps, r.due = 0, 0, now
	if r.dial != nil {
		r.dial.obsolete.Store(true)
	}
}

// wantedFrom is from when on a rail is to be up: always, or for an alternate once the rail of one of its ends has been
// down for a while or does not exist, clock.Never before that.
func (l *link) wantedFrom(r *rail) clock.Time {
	if !r.alternate {
		return 0
	}
	from, near, far := clock.Never, false, false
	for _, other := range *l.rails.Load() {
		if other.alternate || (other.local != r.local && other.remote != r.remote) {
			continue
		}
		near, far = near || other.local == r.local, far || other.remote == r.remote
		if other.set == nil {
			from = min(from, other.since.Add(alternateAfter))
		}
	}
	if !near || !far { // an end is left over
		return 0
	}
	return from
}

// retireAlternates takes idle alternates down that have not been wanted for a while, in order. It returns when to look
// again.
func (l *link) retireAlternates(now clock.Time) clock.Time {
	due := clock.Never
	for _, r := range *l.rails.Load() {
		if !r.alternate || r.set == nil || l.wantedFrom(r) != clock.Never {
			continue
		}
		idle := r.since
		for _, other := range *l.rails.Load() {
			if !other.alternate {
				idle = max(idle, other.since)
			}
		}
		if at := idle.Add(alternateUntil); now < at || !r.set.idle() {
			due = min(due, max(at, now.Add(steady)))
			continue
		}
		l.railDown(r, errs.New(errs.Withdrawn, "tcp.alternate", "the rails of both its ends are back").
			WithScope(errs.ScopeRail, errs.SideLocal).WithPeer(l.peer.Address, Name, r.name()), now)
	}
	return due
}

// idle reports that nothing is outstanding on the set's lanes.
func (s *laneSet) idle() bool {
	idle := true
	s.each(func(l *lane) {
		l.mu.Lock()
		idle = idle && l.out.idle() && l.waits == 0
		l.mu.Unlock()
	})
	return idle
}
