package tcp

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// A rail that works answers a ping. Connections that have sent into the void for a while are of no use for the
// question, because the kernel retransmits ever more rarely (exponential back-off, RFC 6298): such a rail is probed
// by new connections, and if these are welcomed they take over.

const (
	pingLimit  = 100 * time.Millisecond // for an answer; eight round trips of the rail if these are longer
	stuckAfter = 20 * time.Millisecond  // silence of the peer, with packets on their way, that a ping would only add to
)

// ping is a question on its way. Guarded by link.mu.
type ping struct {
	done   func(clock.Time, *errs.Error)
	lane   *initiatorLane
	begin  clock.Time
	expire clock.Time
}

// Probe measures a round trip on a rail's first lane, that of class 0: no payload is in front of the question there.
// Where the lanes are stuck it dials instead; the rail then has a new generation when done hears of success.
func (t *Transport) Probe(r transport.Rail, done func(clock.Time, *errs.Error)) {
	set := t.setOf(r)
	if set == nil {
		done(0, errs.New(errs.StaleGeneration, "tcp.probe", "rail is not up").
			WithScope(errs.ScopeRail, errs.SidePath))
		return
	}
	l := set.rail.link
	if set.stuck() {
		if !l.runOnLink(func(now clock.Time) { l.renew(set, done, now) }) {
			done(0, l.lost("tcp.probe"))
		}
		return
	}
	l.ping(set, done)
}

// ping asks on a rail's first lane.
func (l *link) ping(set *laneSet, done func(clock.Time, *errs.Error)) {
	lane := set.groups[0].lanes()[0]
	lane.mu.Lock()
	lane.expectLocked() // until the answer or, for one that never leaves too, the limit
	lane.mu.Unlock()
	now := clock.Now()
	l.mu.Lock()
	l.nextNum++
	cookie := l.nextNum
	l.pings[cookie] = &ping{done: done, lane: lane, begin: now,
		expire: now.Add(min(max(pingLimit, 8*set.trip), time.Second))}
	l.mu.Unlock()
	lane.post(header{kind: kindPing, seq: cookie})
	lane.pump(submitBudget)
	l.kick()
}

func (l *link) ponged(cookie uint64) {
	l.mu.Lock()
	p := l.pings[cookie]
	delete(l.pings, cookie)
	l.mu.Unlock()
	if p != nil {
		p.lane.answeredOne()
		p.done(clock.Time(clock.Now().Sub(p.begin)), nil)
	}
}

// stuck reports that nothing came from the peer for a while although packets are on their way to it that were all sent
// before.
func (s *laneSet) stuck() bool {
	sent, heard := false, false
	s.each(func(l *initiatorLane) {
		if info := l.account(); info != nil {
			const limit = uint32(stuckAfter / time.Millisecond)
			heard = heard || min(info.Last_ack_recv, info.Last_data_recv) < limit
			sent = sent || (info.Unacked > 0 && info.Last_data_sent >= limit)
		}
	})
	return sent && !heard
}

// probe waits for a dial.
type probe struct {
	set   *laneSet
	done  func(clock.Time, *errs.Error)
	begin clock.Time
}

// renew dials a rail that is up, on behalf of a probe. Only the link's goroutine calls it.
func (l *link) renew(set *laneSet, done func(clock.Time, *errs.Error), now clock.Time) {
	r := set.rail
	r.probes = append(r.probes, probe{set, done, now})
	if r.set == set && r.dial == nil && l.serves() {
		l.dial(r, now)
	}
	if r.dial == nil {
		l.answerProbes(r)
	}
}

// answerProbes reports the result of a dial to the probes that wait for it: success if the rail has a newer generation.
func (l *link) answerProbes(r *rail) {
	list := r.probes
	r.probes = nil
	for _, p := range list {
		if r.set != nil && r.set != p.set {
			p.done(clock.Time(clock.Now().Sub(p.begin)), nil)
		} else {
			p.done(0, l.lost("tcp.probe"))
		}
	}
}
