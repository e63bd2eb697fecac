package tcp

import (
	"sync"
	"sync/atomic"
	"time"
)

// Waiters look at few lanes, however many there are: at those that are attended. A lane is attended while an answer is
// due on it and while epoll does not look at it. Nobody walks over the lanes of idle peers.
//
//	             busy, or epoll is off
//	unattended ────────────────────────▶ attended
//	     ▲                                  │
//	     └──calm for some turns, and armed──┘
//
// No lane is forgotten, because each side writes before it reads (Dekker's algorithm). Go's atomics are sequentially
// consistent. A lane that needs a look notes that and then asks whether it is attended; dismiss takes it off the list
// and then reads the notes. A lane that stays disarmed for a waiter's sake joins the list and then looks again whether
// somebody polls; Arm ends the polling and then walks over the list. lane_model_test.go searches all orders of these
// steps.

// calmTurns is the number of times that Arm finds nothing due on a lane before it leaves the list. So a lane does not
// come and go with each slice.
const calmTurns = 16

// attendedLanes calls yield for the lanes at which waiters look, those of class 0 first.
func (t *Transport) attendedLanes(yield func(*initiatorLane) bool) {
	for g := range t.attended {
		entries := t.attended[g].all()
		for i := range entries {
			if l := entries[i].Load(); l != nil && !yield(l) {
				return
			}
		}
	}
}

// attend makes waiters look at the lane, which has noted the reason before. Any lock but that of the list may be held.
func (l *initiatorLane) attend() {
	if !l.attended.Load() {
		l.t.attended[l.group].insert(l)
	}
}

// expect notes that an answer is due on the lane, so that Poll looks here.
func (l *initiatorLane) expect() {
	l.busy.Store(true)
	l.attend()
}

// sweepAfter is the longest time that a lane rests. The close of a peer that nobody waits for is noticed so much later.
const sweepAfter = 2 * time.Millisecond

// settle is Arm for one lane, which waiters may have kept from epoll. If nothing is due, the lane rests: another wait
// usually follows soon, and would take it out of epoll again. The next write arms it, see wrote, and so does the sweep.
// A lane with something due is armed, and one that was calm for long leaves the list.
func (l *initiatorLane) settle() {
	if !l.watched() {
		if l.rests.Store(true); l.idle() { // a writer notes its slice, and then asks whether the lane rests
			l.deaf.Store(false)
			l.t.sweepSoon()
		} else {
			l.arm()
		}
	}
	switch {
	case l.busy.Load():
		l.calm.Store(0)
	case l.calm.Add(1) > calmTurns && (l.rests.Load() || l.watched()):
		l.dismiss()
	}
}

// idle reports that nothing is due on the lane: no bytes wait for its socket, and no answer is expected.
func (l *initiatorLane) idle() bool {
	if l.wantOut.Load() || l.asked.Load() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settledLocked()
}

// settledLocked reports that no answer is expected.
func (l *initiatorLane) settledLocked() bool { return l.out.idle() && l.waits == 0 }

// sweepSoon makes sure that a sweep begins after now, and within sweepAfter.
func (t *Transport) sweepSoon() {
	if !t.sweeping.Load() && !t.sweeping.Swap(true) {
		t.sweeper.Reset(sweepAfter)
	}
}

// sweep gives the lanes that rest back to epoll.
func (t *Transport) sweep() {
	t.sweeping.Store(false)
	for l := range t.attendedLanes {
		if l.rests.Load() {
			l.arm()
		}
	}
}

// dismiss takes the lane off the list, unless it needs a look again. A waiter that disarmed it meanwhile and has left
// did not find it on the list, so it is armed here.
func (l *initiatorLane) dismiss() {
	l.t.attended[l.group].remove(l, false)
	if l.busy.Load() {
		l.attend()
	}
	if !l.watched() {
		l.arm()
	}
}

// laneList is a set of lanes that is walked without a lock. It has holes where lanes left, which other lanes fill, and
// is copied to a shorter array when most of it is holes. A walk of the old array still meets all that were there.
type laneList struct {
	entries atomic.Pointer[[]atomic.Pointer[initiatorLane]]

	mu    sync.Mutex
	holes []int
}

// laneListMin is the least length of a list's array.
const laneListMin = 8

// all returns the list's array; an entry may be nil.
func (s *laneList) all() []atomic.Pointer[initiatorLane] {
	if entries := s.entries.Load(); entries != nil {
		return *entries
	}
	return nil
}

// insert enters a lane unless it is there or gone. A walk that has begun before may miss it.
func (s *laneList) insert(l *initiatorLane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.attended.Load() || l.gone {
		return
	}
	if len(s.holes) == 0 {
		s.resizeLocked(max(laneListMin, 2*len(s.all())))
	}
	last := len(s.holes) - 1
	l.place = s.holes[last]
	s.holes = s.holes[:last]
	s.all()[l.place].Store(l)
	l.calm.Store(0)
	l.attended.Store(true)
}

// remove takes a lane out; one that is gone does not come back.
func (s *laneList) remove(l *initiatorLane, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.gone = l.gone || gone
	if !l.attended.Load() {
		return
	}
	l.attended.Store(false)
	s.all()[l.place].Store(nil)
	s.holes = append(s.holes, l.place)
	if n := len(s.all()); n > laneListMin && 4*(n-len(s.holes)) <= n {
		s.resizeLocked(n / 2)
	}
}

// resizeLocked copies the lanes to an array of another length. The lowest place is used first.
func (s *laneList) resizeLocked(length int) {
	next := make([]atomic.Pointer[initiatorLane], length)
	n, old := 0, s.all()
	for i := range old {
		if l := old[i].Load(); l != nil {
			l.place = n
			next[n].Store(l)
			n++
		}
	}
	s.holes = s.holes[:0]
	for i := length; i > n; i-- {
		s.holes = append(s.holes, i-1)
	}
	s.entries.Store(&next)
}
