package tcp

import (
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// A rail comes back by new connections. The old ones are of no use: their retransmissions come about as late as the
// outage was long (exponential back-off, RFC 6298). New ones are dialled from the moment on that the rail went down,
// and the first set that is welcomed is the rail's next generation. The kernel repeats a lost SYN after a second only,
// so a try sends several, of a socket each, and goes on with the one that is answered: 10 ms apart in the beginning, a
// sixteenth of the outage later, 250 ms at most. Of eight the second-oldest goes for the next one, and they are so far
// apart that each has some three round trips of the last dial for its answer. The oldest waits as long as the try does:
// the way may be longer than it was. A rail with connections that are up but stuck is dialled in the same way when it
// is probed. Tries that fail at once follow each other by exponential back-off with jitter.
const (
	pauseMin  = 20 * time.Millisecond
	pauseMax  = 2 * time.Second
	tryMost   = 100 * time.Millisecond // between the begins of tries that were turned away; longer when the outage is
	scoutMin  = 10 * time.Millisecond
	scoutMost = 250 * time.Millisecond
	// awayEvery is the same while the kernel says that our end is gone. It is going to report the return, and a packet
	// that is sent a moment too soon costs a second, for which the kernel waits for an answer to its ARP request.
	awayEvery = time.Second

	scoutsMost = 8 // sockets of a try
	scoutTrips = 3 // round trips of the last dial for which a socket waits

	steady = time.Second // a generation that lived this long was no part of the trouble before it

	alternateAfter = 100 * time.Millisecond // a rail is down for this long before its alternates are dialled
	alternateUntil = 5 * time.Second        // all of them are up for this long before the alternates go
)

// pause lies between questions over the control plane that failed.
func pause(tries int) time.Duration { return min(pauseMin<<min(tries, 10), pauseMax) }

// jitter keeps many links that lost the same switch from coming back in step.
func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2+1) }

// scouting is the interval of first packets in a try: 0 for a rail that has never been up, where all lanes dial at
// once.
func (r *rail) scouting(now clock.Time) time.Duration {
	least := max(scoutMin, scoutTrips*r.trip/(scoutsMost-1))
	switch {
	case r.trip == 0:
		return 0
	case r.set != nil:
		return least
	}
	return max(min(now.Sub(r.since)/16, scoutMost), least)
}

// scheduleRetry plans the next try after one that began and failed.
func (r *rail) scheduleRetry(began, now clock.Time) {
	most := min(max(now.Sub(r.since)/16, tryMost), scoutMost)
	r.due = max(now, began.Add(jitter(min(pauseMin<<min(r.tries, 10), most))))
	if r.away {
		r.due = now.Add(awayEvery)
	}
	r.tries++
}

// scheduleRedial plans the first try: now, but for a rail that comes up and breaks again and again, which must not
// spin.
func (r *rail) scheduleRedial(now clock.Time) {
	r.tries, r.due = 0, now
	if now.Sub(r.since) >= steady {
		r.flaps = 0
	} else {
		r.due = now.Add(jitter(min(pauseMin<<min(r.flaps, 10), tryMost)))
		r.flaps++
	}
	r.since = now
}

// redialNow makes the next try now: something has changed for the better.
func (r *rail) redialNow(now clock.Time) {
	r.tries, r.flaps, r.due = 0, 0, now
	r.link.farEndOf(r).free = now
	if r.dial != nil {
		r.dial.obsolete.Store(true)
	}
}

// wantedFrom returns the time from which on a rail is to be up. An alternate is wanted once the rail of one of its ends
// has been down for a while or does not exist, and clock.Never before that; other rails always are.
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
			after := alternateAfter
			if other.trip == 0 { // its first try has all the time that a try has
				after += l.t.settings.DialTimeout
			}
			from = min(from, other.since.Add(after))
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
		l.railDown(r, r.ours(errs.New(errs.Withdrawn, "tcp.alternate", "the rails of both its ends are back")), now)
	}
	return due
}

// idle reports that nothing is outstanding on the set's lanes.
func (s *laneSet) idle() bool {
	idle := true
	s.each(func(l *initiatorLane) {
		l.mu.Lock()
		idle = idle && l.settledLocked()
		l.mu.Unlock()
	})
	return idle
}

// scout leaves one connected socket in fds.
func (d *dial) scout(end time.Time) error {
	var next time.Time
	var begins []time.Time
	for {
		now := time.Now()
		switch {
		case d.stopped():
			return unix.ECANCELED
		case now.After(end):
			return unconnected{d.remote, unix.ETIMEDOUT}
		case !now.Before(next):
			if err := d.connect(); err != nil {
				return err
			}
			begins = append(begins, now)
			next = now.Add(jitter(d.every))
			if len(d.fds) > scoutsMost {
				_ = unix.Close(d.fds[1])
				d.fds, begins = slices.Delete(d.fds, 1, 2), slices.Delete(begins, 1, 2)
			}
		}
		ready, err := d.awaitAnswer(min(time.Until(next), scoutMin/4))
		if err != nil {
			return err
		}
		if ready >= 0 {
			d.trip = time.Since(begins[ready])
			d.keepOnly(ready)
			return d.connected(d.fds[0], end)
		}
	}
}

// awaitAnswer waits for one of the sockets and returns its place in fds, -1 for none.
func (d *dial) awaitAnswer(wait time.Duration) (int, error) {
	set := make([]unix.PollFd, len(d.fds))
	for i, fd := range d.fds {
		set[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
	}
	limit := unix.NsecToTimespec(int64(max(wait, 0)))
	if _, err := unix.Ppoll(set, &limit, nil); err != nil && err != unix.EINTR {
		return -1, err
	}
	return slices.IndexFunc(set, func(p unix.PollFd) bool { return p.Revents != 0 }), nil
}

// keepOnly closes all sockets but one.
func (d *dial) keepOnly(i int) {
	for n, fd := range d.fds {
		if n != i {
			_ = unix.Close(fd)
		}
	}
	d.fds = d.fds[i : i+1]
}
