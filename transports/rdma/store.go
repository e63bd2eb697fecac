package rdma

import (
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/kit"
)

// store bounds the rails of a device that have queue pairs (endpoint_store_cap). A rail takes a place at its first
// use. Where there is none left, SIEVE (Zhang et al., NSDI 2024) chooses the rail that makes room: a hand goes from the
// oldest to the newest, spares those that were used since it last came by, and takes the first that was not.
//
// A rail with slices out is never disconnected. If all have some, the one that came first stops posting, once it had
// its turn, and leaves when the last slice has ended. Those that wait come in their order, so each has its turn.
//
// Its mutex may be held while a rail's is taken, never the other way round.
type store struct {
	mu     sync.Mutex
	most   int
	placed kit.List[rail] // by rail.seat, the oldest first
	queue  kit.List[rail] // those that wait for a place, also by rail.seat
	hand   *rail          // the next to be looked at; nil: the oldest
	going  int            // of those placed: they were asked to leave
}

// seat is the store's part of a rail, guarded by the mutex of the store.
type seat struct {
	place  kit.Element[rail]
	placed bool
	going  bool
	since  time.Time
}

// turnLeast is how long a rail with slices out keeps its place beside others that wait. A connection takes a few
// milliseconds, and has to pay.
const turnLeast = 10 * time.Millisecond

// enter reports whether the rail has a place. Else the rail waits in the queue (rail.granted), and another is asked to
// leave.
func (s *store) enter(r *rail) bool {
	s.mu.Lock()
	if !r.seat.placed && !r.seat.place.Queued() {
		s.queue.PushBack(r, &r.seat.place)
		s.grantLocked()
	}
	placed := r.seat.placed
	var leaves *rail
	if !placed && s.going < s.queue.Len() {
		leaves = s.victimLocked()
	}
	s.mu.Unlock()
	if leaves != nil {
		leaves.yield()
	}
	return placed
}

// leave takes the rail out, also of the queue.
func (s *store) leave(r *rail) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hand == r {
		s.hand = s.placed.Next(&r.seat.place)
	}
	if r.seat.going {
		s.going--
	}
	r.seat.place.Leave()
	r.seat.placed, r.seat.going = false, false
	s.grantLocked()
}

// grantLocked gives free places to those that wait longest.
func (s *store) grantLocked() {
	for s.placed.Len() < s.most && s.queue.Len() > 0 {
		r := s.queue.PopFront()
		s.placed.PushBack(r, &r.seat.place)
		r.seat.placed, r.seat.since = true, time.Now()
		r.used.Store(false) // by the slice that it connects for
		select {
		case r.granted <- struct{}{}:
		default:
		}
	}
}

// victimLocked chooses the rail that makes room, nil if none may be asked yet.
func (s *store) victimLocked() *rail {
	for range 2 * s.placed.Len() {
		r := s.hand
		if r == nil {
			r = s.placed.First()
		}
		s.hand = s.placed.Next(&r.seat.place)
		if !r.seat.going && !r.used.Swap(false) && r.quiet() {
			return s.sendLocked(r)
		}
	}
	for r := s.placed.First(); r != nil; r = s.placed.Next(&r.seat.place) {
		if !r.seat.going && time.Since(r.seat.since) >= turnLeast {
			return s.sendLocked(r)
		}
	}
	return nil
}

func (s *store) sendLocked(r *rail) *rail {
	r.seat.going = true
	s.going++
	return r
}

// quiet reports whether nothing is out on the rail, nothing waits there, and its lanes are not being connected.
func (r *rail) quiet() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.mending && r.queue.Urgent() == kit.Classes && r.idleLocked()
}

// yield makes the rail leave its place once nothing is out.
func (r *rail) yield() {
	r.mu.Lock()
	r.leaving = true
	if r.idleLocked() {
		r.mendLocked()
	}
	r.unlock()
}

// idleLocked reports whether no work request of the rail is out, and nothing waits for the peer's proof.
func (r *rail) idleLocked() bool {
	for _, l := range r.lanes {
		if l.head != l.tail {
			return false
		}
	}
	return !r.limboLocked()
}

// place waits until the rail may connect. The core hears that the rail is alive: it waits for its turn here, and not
// for its peer.
func (r *rail) place() error {
	again := time.NewTicker(turnLeast / 4)
	defer again.Stop()
	for !r.device.store.enter(r) {
		select {
		case <-r.granted:
		case <-r.link.ctx.Done():
			return r.link.ctx.Err()
		case <-again.C:
			r.alive()
		}
	}
	return nil
}

// alive says to the core that the rail works although no slice ends.
func (r *rail) alive() {
	r.mu.Lock()
	is, which := r.state, r.railLocked()
	for len(r.asks) > 0 && clock.Now() > r.asks[0].begun.Add(askLimit) {
		late := errs.New(errs.Timeout, Name, "no place below endpoint_store_cap came free")
		r.answerLocked(r.asks[0].done, late.WithScope(errs.ScopeRail, errs.SideLocal))
		r.asks = r.asks[1:]
	}
	r.unlock()
	if is == up {
		r.link.t.sink.Progress(which)
	}
}

// wakeLocked asks for the lanes of a rail that has none. They are connected when something is to be sent, and not
// before.
func (r *rail) wakeLocked() {
	if !r.used.Load() {
		r.used.Store(true)
	}
	r.slabLocked()
	if !r.wanted {
		r.wanted = true
		r.mendLocked()
	}
}

func (r *rail) slabLocked() {
	if r.slab == nil {
		r.slab = make([]op, slicesMax+1) // the last is for proofs, which slices that wait for one must not keep out
		for i := range r.slab {
			r.slab[i].index = uint16(i)
		}
		r.free = make([]uint16, slicesMax)
		for i := range r.free {
			r.free[i] = uint16(slicesMax - 1 - i)
		}
	}
}

// sleep closes the queue pairs of a rail that is idle and gives its place away. The rail stays up, in its generation:
// slices that come wait until its lanes are connected again.
func (r *rail) sleep() {
	r.work.Lock()
	r.mu.Lock()
	if !r.leaving || !r.idleLocked() {
		r.unlock()
		r.work.Unlock()
		return
	}
	for _, l := range r.lanes {
		l.works, l.cause = false, nil
	}
	r.leaving = false
	wanted := r.state != up || r.queue.Urgent() < kit.Classes || len(r.asks) > 0
	if r.wanted = wanted; !wanted {
		r.slab, r.free = nil, nil
	}
	r.unlock()
	for _, l := range r.lanes {
		_ = r.closeLane(l) // nothing is out on it, and it is tried again before it is connected
	}
	r.device.store.leave(r)
	r.work.Unlock()
	if !wanted { // else its ends are reset by the next connection
		_, _ = r.link.call(r.turn(kindRelease), silence) // one that does not answer keeps its ends until then
	}
}

// closeLane closes the queue pair of a lane that does not work. After an error it is there as before. The caller holds
// work.
func (r *rail) closeLane(l *lane) error {
	r.mu.Lock()
	pair, in, requests := l.pair, l.in, l.most
	l.pair, l.ring = nil, nil
	l.life++
	r.unlock()
	if pair == nil {
		return nil
	}
	if err := r.device.endPair(pair, in, requests); err != nil {
		r.mu.Lock()
		l.pair, l.reset = pair, false
		r.unlock()
		return err
	}
	r.device.leave(l)
	return nil
}
