package dispatch

import "github.com/tent-engine/tent/gocore/clock"

// timer is a moment at which the core looks at one of its records. It lives inside the record.
//
// Timers are few: one for each run of tasks that share a deadline, one or two for each link, rail and NIC. Times that
// count from the last progress of a task (stall limit, fence bound, retry intervals) is kept in lists instead, which
// are in order of time by themselves because all their members wait equally long.
type timer struct {
	at   clock.Time
	slot int // place in the heap plus one; 0: not set

	// One of these is its owner.
	run    *run
	link   *link
	rail   *railState
	held   *link   // something of it may be admitted then
	device *device // is to be published
}

// timers is a binary heap by time.
type timers struct{ heap []*timer }

func (h *timers) next() clock.Time {
	if len(h.heap) == 0 {
		return clock.Never
	}
	return h.heap[0].at
}

// set arms t, or moves it.
func (h *timers) set(t *timer, at clock.Time) {
	if t.slot == 0 {
		h.heap = append(h.heap, t)
		t.slot = len(h.heap)
	}
	t.at = at
	if !h.up(t.slot - 1) {
		h.down(t.slot - 1)
	}
}

// sooner arms t at a time unless it is armed for an earlier one.
func (h *timers) sooner(t *timer, at clock.Time) {
	if t.slot == 0 || at < t.at {
		h.set(t, at)
	}
}

func (h *timers) stop(t *timer) {
	if t.slot == 0 {
		return
	}
	i, last := t.slot-1, len(h.heap)-1
	h.place(h.heap[last], i)
	h.heap[last] = nil
	h.heap = h.heap[:last]
	t.slot = 0
	if i < last && !h.up(i) {
		h.down(i)
	}
}

// due takes out a timer that is due, nil if there is none.
func (h *timers) due(now clock.Time) *timer {
	if len(h.heap) == 0 || h.heap[0].at > now {
		return nil
	}
	t := h.heap[0]
	h.stop(t)
	return t
}

func (h *timers) place(t *timer, i int) { h.heap[i], t.slot = t, i+1 }

func (h *timers) up(i int) (moved bool) {
	t := h.heap[i]
	for i > 0 && t.at < h.heap[(i-1)/2].at {
		h.place(h.heap[(i-1)/2], i)
		i, moved = (i-1)/2, true
	}
	h.place(t, i)
	return moved
}

func (h *timers) down(i int) {
	t := h.heap[i]
	for {
		child := 2*i + 1
		if child >= len(h.heap) {
			break
		}
		if child+1 < len(h.heap) && h.heap[child+1].at < h.heap[child].at {
			child++
		}
		if t.at <= h.heap[child].at {
			break
		}
		h.place(h.heap[child], i)
		i = child
	}
	h.place(t, i)
}
