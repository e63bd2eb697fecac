package engine

import (
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
)

const (
	eventsMax    = 4096 // kept for followers
	followersMax = 64
)

// FollowerID names one follower of the engine's events. It is a file descriptor that is readable while events wait for
// the follower: for select and epoll, not for reading.
type FollowerID int

// history keeps the engine's latest events, numbered from 0. Each follower has its own place in it, so that a view, a
// log and a test see all events. A follower that is late loses the oldest and learns their number: the engine never
// waits for one. Any goroutine may use it.
type history struct {
	mu        sync.Mutex
	ring      []event.Event // event n is at n % eventsMax
	next      uint64        // number of the event that comes next
	followers []*follower
	turned    broadcast // at the next event, and at the end of a follower
	closed    bool
}

type follower struct {
	signal *signal
	place  uint64 // number of the first event that it has not taken
}

// push keeps an event. It costs no system call: the engine wakes the followers after it has released its mutex.
func (h *history) push(e event.Event) {
	h.mu.Lock()
	if len(h.ring) < eventsMax {
		h.ring = append(h.ring, e)
	} else {
		h.ring[h.next%eventsMax] = e
	}
	h.next++
	h.turned.wake()
	h.mu.Unlock()
}

// wake makes the descriptors of all followers readable.
func (h *history) wake() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.followers {
		f.signal.raise()
	}
}

func (h *history) follow() (FollowerID, error) {
	s, err := newSignal()
	if err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		err = closedError()
	case len(h.followers) >= followersMax:
		err = errs.New(errs.TooManyRequests, "events", "%d readers follow the events already", followersMax).
			WithHint("close those that are not used any more")
	}
	if err != nil {
		_ = s.close()
		return 0, err
	}
	h.followers = append(h.followers, &follower{signal: s, place: h.oldest()})
	if h.next > 0 {
		s.raise()
	}
	return FollowerID(s.fd), nil
}

// oldest is the number of the oldest event that is kept. Called with the mutex.
func (h *history) oldest() uint64 { return h.next - uint64(len(h.ring)) }

// find returns a follower and its index, nil if there is none. Called with the mutex.
func (h *history) find(id FollowerID) (int, *follower) {
	for i, f := range h.followers {
		if f.signal.fd == int(id) {
			return i, f
		}
	}
	return 0, nil
}

func (h *history) take(id FollowerID, most int) (list []event.Event, lost uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, f := h.find(id)
	if f == nil {
		return nil, 0, noFollower(id)
	}
	list, f.place, lost = h.sinceLocked(f.place, most)
	if f.place == h.next {
		f.signal.clear()
	}
	return list, lost, nil
}

// since returns up to most events from a number on. next is the number of the first one behind them, and lost counts
// those that are not kept any more. It is for readers without a place of their own.
func (h *history) since(number uint64, most int) (list []event.Event, next, lost uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sinceLocked(number, most)
}

func (h *history) sinceLocked(number uint64, most int) (list []event.Event, next, lost uint64) {
	next = min(number, h.next)
	if oldest := h.oldest(); next < oldest {
		lost, next = oldest-next, oldest
	}
	for ; next < h.next && len(list) < most; next++ {
		list = append(list, h.ring[next%eventsMax])
	}
	return list, next, lost
}

// wait returns whether events wait for a follower, after at most timeout. It returns false when the follower ends
// meanwhile, and Stale if there was none.
func (h *history) wait(id FollowerID, timeout time.Duration) (bool, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	turned, err := h.look(id)
	for turned != nil {
		select {
		case <-turned:
		case <-timer.C:
			return false, nil
		}
		var ended error
		if turned, ended = h.look(id); ended != nil { // no error of this call: the next one says it
			return false, nil
		}
	}
	return err == nil, err
}

// look returns nil if events wait for a follower, else a channel that is closed when it is time for the next look.
func (h *history) look(id FollowerID) (turned <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch _, f := h.find(id); {
	case f == nil:
		return nil, noFollower(id)
	case f.place < h.next:
		return nil, nil
	}
	return h.turned.wait(), nil
}

func (h *history) leave(id FollowerID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i, f := h.find(id); f != nil {
		_ = f.signal.close()
		h.followers = append(h.followers[:i], h.followers[i+1:]...)
		h.turned.wake()
	}
}

func (h *history) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.followers {
		_ = f.signal.close()
	}
	h.followers, h.closed = nil, true
	h.turned.wake()
}

func noFollower(id FollowerID) error {
	return errs.New(errs.Stale, "events", "no follower has the number %d", int(id))
}

// announce keeps an event like record, and wakes its readers at once. The caller does not hold e.mu, and may hold a
// lock of a transport.
func (e *Engine) announce(ev *event.Event) {
	ev.Time = clock.Now()
	e.history.push(*ev)
	e.history.wake()
	e.noteSecurity(ev)
	if e.logs.event(ev) {
		e.signal.raise()
	}
}

// record keeps an event of the core for Engine.Events, and turns it into a log line. The caller holds e.mu.
func (e *Engine) record(ev *event.Event) {
	e.history.push(*ev)
	e.deferred.events = true
	if e.logs.event(ev) {
		e.deferred.logged = true
	}
}

// Follow begins to follow the engine's events, from the oldest one that is kept.
func (e *Engine) Follow() (FollowerID, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	return e.history.follow()
}

// Events takes up to most events that the follower has not taken yet, oldest first. lost counts those that were
// overwritten since the last call because it came too late.
func (e *Engine) Events(id FollowerID, most int) (list []event.Event, lost uint64, err error) {
	return e.history.take(id, most)
}

// EventsWait returns whether events wait for the follower, after at most timeout or at the end of the engine.
func (e *Engine) EventsWait(id FollowerID, timeout time.Duration) (bool, error) {
	return e.history.wait(id, timeout)
}

// Unfollow ends it and closes the descriptor. A second time does nothing.
func (e *Engine) Unfollow(id FollowerID) { e.history.leave(id) }
