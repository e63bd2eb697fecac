package kit

import (
	"math/bits"
	"sync/atomic"
)

// Classes is the number of classes that a queue keeps apart. A slice of a higher class number waits with the last.
const Classes = 3

// ClassOf is the queue's class for the class of a slice.
func ClassOf(class uint8) int { return min(int(class), Classes-1) }

// Element is the place of an entry in at most one List. It is a field of the entry, so that queueing allocates nothing.
type Element[T any] struct {
	entry      *T
	list       *List[T]
	prev, next *Element[T]
}

// Queued reports whether the entry is in a list.
func (e *Element[T]) Queued() bool { return e.list != nil }

// List is a queue of entries that hold their own places. The zero value is empty. The caller guards it.
type List[T any] struct {
	first, last *Element[T]
	length      int
}

// Len returns the number of entries.
func (l *List[T]) Len() int { return l.length }

// First returns the entry at the front, nil in an empty list.
func (l *List[T]) First() *T { return l.first.value() }

// Next returns the entry behind the one at the place e, nil at the end.
func (l *List[T]) Next(e *Element[T]) *T { return e.next.value() }

func (e *Element[T]) value() *T {
	if e == nil {
		return nil
	}
	return e.entry
}

// PushBack enters an entry at the end; e is its place. It is in no list before.
func (l *List[T]) PushBack(entry *T, e *Element[T]) {
	*e = Element[T]{entry: entry, list: l, prev: l.last}
	if l.last != nil {
		l.last.next = e
	} else {
		l.first = e
	}
	l.last = e
	l.length++
}

// PushFront enters an entry at the front; e is its place. It is in no list before.
func (l *List[T]) PushFront(entry *T, e *Element[T]) {
	*e = Element[T]{entry: entry, list: l, next: l.first}
	if l.first != nil {
		l.first.prev = e
	} else {
		l.last = e
	}
	l.first = e
	l.length++
}

// PopFront takes the entry at the front out, nil from an empty list.
func (l *List[T]) PopFront() *T {
	entry := l.First()
	if entry != nil {
		l.first.Leave()
	}
	return entry
}

// PopBack takes the entry at the end out, nil from an empty list.
func (l *List[T]) PopBack() *T {
	entry := l.last.value()
	if entry != nil {
		l.last.Leave()
	}
	return entry
}

// Leave takes the entry out of the list that it is in. Without one nothing happens.
func (e *Element[T]) Leave() {
	l := e.list
	if l == nil {
		return
	}
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		l.last = e.prev
	}
	l.length--
	*e = Element[T]{}
}

// ClassQueue is a list for each class, the most urgent first. The zero value is empty. The caller guards everything but
// Waiting.
type ClassQueue[T any] struct {
	lists   [Classes]List[T]
	waiting atomic.Uint32 // bit c: the list of class c is not empty
}

// Waiting returns a bit for each class in which something waits. Any goroutine may call it without the caller's lock.
func (q *ClassQueue[T]) Waiting() uint32 { return q.waiting.Load() }

// Urgent returns the lowest class in which something waits, Classes for none. No lock either.
func (q *ClassQueue[T]) Urgent() int { return min(bits.TrailingZeros32(q.waiting.Load()), Classes) }

// List returns the list of a class, to look at it. PushBack, PushFront and Leave of the queue change it.
func (q *ClassQueue[T]) List(class int) *List[T] { return &q.lists[class] }

// PushBack enters an entry behind those of its class.
func (q *ClassQueue[T]) PushBack(class int, entry *T, e *Element[T]) {
	q.lists[class].PushBack(entry, e)
	q.entered(class)
}

// PushFront enters an entry in front of those of its class.
func (q *ClassQueue[T]) PushFront(class int, entry *T, e *Element[T]) {
	q.lists[class].PushFront(entry, e)
	q.entered(class)
}

// entered notes that a class waits. An atomic store costs as much as the rest of entering, so only the first one pays.
func (q *ClassQueue[T]) entered(class int) {
	if q.lists[class].length == 1 {
		q.waiting.Store(q.waiting.Load() | 1<<class)
	}
}

// Leave takes an entry out of the list of its class. It reports whether it was there.
func (q *ClassQueue[T]) Leave(class int, e *Element[T]) bool {
	l := &q.lists[class]
	if e.list != l {
		return false
	}
	e.Leave()
	if l.length == 0 {
		q.waiting.Store(q.waiting.Load() &^ (1 << class))
	}
	return true
}

// Len returns how many entries wait in all classes.
func (q *ClassQueue[T]) Len() (n int) {
	for c := range q.lists {
		n += q.lists[c].length
	}
	return n
}
