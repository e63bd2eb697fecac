package engine

import (
	"container/heap"

	"github.com/tent-engine/tent/gocore/clock"
)

// scheduled is an item of a schedule. seat holds its place there, -1 outside.
type scheduled interface {
	due() clock.Time
	seat() *int
}

// schedule has items by their times, the next one first.
type schedule[T scheduled] []T

// set puts an item into the place of its time, or takes it out where that is clock.Never.
func (s *schedule[T]) set(item T) {
	switch at := *item.seat(); {
	case item.due() == clock.Never:
		s.remove(item)
	case at >= 0:
		heap.Fix(s, at)
	default:
		heap.Push(s, item)
	}
}

// remove takes an item out, if it is inside.
func (s *schedule[T]) remove(item T) {
	if at := *item.seat(); at >= 0 {
		heap.Remove(s, at)
	}
}

// Len implements heap.Interface.
func (s schedule[T]) Len() int { return len(s) }

// Less implements heap.Interface.
func (s schedule[T]) Less(i, j int) bool { return s[i].due() < s[j].due() }

// Swap implements heap.Interface.
func (s schedule[T]) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	*s[i].seat(), *s[j].seat() = i, j
}

// Push implements heap.Interface.
func (s *schedule[T]) Push(x any) {
	item := x.(T)
	*item.seat() = len(*s)
	*s = append(*s, item)
}

// Pop implements heap.Interface.
func (s *schedule[T]) Pop() any {
	var none T
	last := len(*s) - 1
	item := (*s)[last]
	(*s)[last] = none
	*s = (*s)[:last]
	*item.seat() = -1
	return item
}
