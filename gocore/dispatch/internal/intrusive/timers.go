package intrusive

import "github.com/tent-engine/tent/gocore/clock"

// Timer is a moment at which an owner wants a look. It lives inside the record that it is for.
type Timer[T any] struct {
	Owner T
	at    clock.Time
	slot  int // place in the heap plus one; 0: not armed
}

// At is the time for which the timer is armed, or was last.
func (t *Timer[T]) At() clock.Time { return t.at }

// Armed reports whether the timer is armed.
func (t *Timer[T]) Armed() bool { return t.slot != 0 }

// Timers is a binary heap of timers by time. The zero value is empty.
type Timers[T any] struct{ heap []*Timer[T] }

// Len is the number of timers that are armed.
func (h *Timers[T]) Len() int { return len(h.heap) }

// Next is the time of the first timer, clock.Never if none is armed.
func (h *Timers[T]) Next() clock.Time {
	if len(h.heap) == 0 {
		return clock.Never
	}
	return h.heap[0].at
}

// Set arms t, or moves it.
func (h *Timers[T]) Set(t *Timer[T], at clock.Time) {
	if t.slot == 0 {
		h.heap = append(h.heap, t)
		t.slot = len(h.heap)
	}
	t.at = at
	if !h.up(t.slot - 1) {
		h.down(t.slot - 1)
	}
}

// SetSooner arms t at a time unless it is armed for an earlier one.
func (h *Timers[T]) SetSooner(t *Timer[T], at clock.Time) {
	if t.slot == 0 || at < t.at {
		h.Set(t, at)
	}
}

// Stop disarms t, if it is armed.
func (h *Timers[T]) Stop(t *Timer[T]) {
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

// PopDue takes out a timer that is due, nil if there is none.
func (h *Timers[T]) PopDue(now clock.Time) *Timer[T] {
	if len(h.heap) == 0 || h.heap[0].at > now {
		return nil
	}
	t := h.heap[0]
	h.Stop(t)
	return t
}

// Ordered reports whether the heap is one: every timer knows its place, and none is before its parent.
func (h *Timers[T]) Ordered() bool {
	for i, t := range h.heap {
		if t.slot != i+1 || (i > 0 && t.at < h.heap[(i-1)/2].at) {
			return false
		}
	}
	return true
}

func (h *Timers[T]) place(t *Timer[T], i int) { h.heap[i], t.slot = t, i+1 }

func (h *Timers[T]) up(i int) (moved bool) {
	t := h.heap[i]
	for i > 0 && t.at < h.heap[(i-1)/2].at {
		h.place(h.heap[(i-1)/2], i)
		i, moved = (i-1)/2, true
	}
	h.place(t, i)
	return moved
}

func (h *Timers[T]) down(i int) {
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
