package tcp

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// connKey is a connection's key in Transport.conns. Epoll returns it with each event, so an event of a connection
// that has been closed meanwhile finds nothing. Its low half is never 0.
type connKey uint64

// event describes the connection to epoll.
func (k connKey) event(events uint32) unix.EpollEvent {
	return unix.EpollEvent{Events: events, Fd: int32(uint32(k)), Pad: int32(uint32(k >> 32))}
}

// connOf returns the connection of an event, nil if it was closed or if the event is that of another descriptor.
func (t *Transport) connOf(e *unix.EpollEvent) *conn {
	return t.conns.Lookup(connKey(uint32(e.Pad))<<32 | connKey(uint32(e.Fd)))
}

// Tags of events of other descriptors: the low half of their key is 0, so they are no connection's.
const (
	tagListener = iota + 1 // and the listener's index from tagBits on
	tagStop
	tagBulk
	tagBits = 8
)

func taggedEvent(events uint32, tag, index int) unix.EpollEvent {
	return unix.EpollEvent{Events: events, Pad: int32(index<<tagBits | tag)}
}

// initiatorOf returns an initiator's lane by its connection's key, nil if that is closed or no initiator's.
func (t *Transport) initiatorOf(k connKey) *initiatorLane {
	if c := t.conns.Lookup(k); c != nil {
		l, _ := c.lane.(*initiatorLane)
		return l
	}
	return nil
}

// dialledLanes calls yield for our open lanes, those of class 0 first.
func (t *Transport) dialledLanes(yield func(*initiatorLane) bool) {
	for g := range t.dialled {
		entries := t.dialled[g].all()
		for i := range entries {
			if l := entries[i].Load(); l != nil && !yield(l) {
				return
			}
		}
	}
}

// laneList is the open lanes of one class group for waiters to poll: a plain array, because Poll walks it every time.
// It has holes where lanes were closed, which new lanes fill, so it grows to the most lanes that were ever open at
// once.
type laneList struct {
	entries atomic.Pointer[[]atomic.Pointer[initiatorLane]]

	mu    sync.Mutex
	holes []int
}

// laneListMin is the length of a list's first array.
const laneListMin = 8

// all returns the list's array; an entry may be nil.
func (s *laneList) all() []atomic.Pointer[initiatorLane] {
	if entries := s.entries.Load(); entries != nil {
		return *entries
	}
	return nil
}

// insert enters a lane and returns its place. A loop over all that has begun before may miss it.
func (s *laneList) insert(l *initiatorLane) (at int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.holes) == 0 {
		s.growLocked()
	}
	last := len(s.holes) - 1
	at = s.holes[last]
	s.holes = s.holes[:last]
	s.all()[at].Store(l)
	return at
}

// growLocked doubles the array; the lowest new place is used first.
func (s *laneList) growLocked() {
	old := s.all()
	grown := make([]atomic.Pointer[initiatorLane], max(laneListMin, 2*len(old)))
	for i := range old {
		grown[i].Store(old[i].Load())
	}
	for i := len(grown); i > len(old); i-- {
		s.holes = append(s.holes, i-1)
	}
	s.entries.Store(&grown)
}

// vacate frees a lane's place. The list starts small again when its last lane goes.
func (s *laneList) vacate(at int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all()[at].Store(nil)
	if s.holes = append(s.holes, at); len(s.holes) == len(s.all()) {
		s.holes = nil
		s.entries.Store(nil)
	}
}
