// Package intrusive has the containers of the core: a list, a heap of timers, and a slab that hands records out. Lists
// and timers live inside the records that they hold. Nothing allocates once it has grown, and nothing searches.
package intrusive

// List is a doubly linked list through nodes that live inside the records, so that joining and leaving cost neither an
// allocation nor a search. A node is in one list at a time. The zero value is an empty list.
type List[T any] struct {
	head, tail *Node[T]
	n          int
}

// Node is a record's place in a list. The zero value is in none.
type Node[T any] struct {
	prev, next *Node[T]
	list       *List[T]
	item       *T
}

// Len is the number of records.
func (l *List[T]) Len() int { return l.n }

// First returns the record at the head, nil if there is none.
func (l *List[T]) First() *T {
	if l.head == nil {
		return nil
	}
	return l.head.item
}

// Last returns the record at the end, nil if there is none.
func (l *List[T]) Last() *T {
	if l.tail == nil {
		return nil
	}
	return l.tail.item
}

// PushBack puts the node of a record, which is in no list, at the end.
func (l *List[T]) PushBack(n *Node[T], item *T) { l.InsertAfter(n, item, l.tail) }

// PushFront puts the node of a record, which is in no list, at the head.
func (l *List[T]) PushFront(n *Node[T], item *T) { l.InsertAfter(n, item, nil) }

// InsertAfter puts n behind mark, in front of everything if mark is nil.
func (l *List[T]) InsertAfter(n *Node[T], item *T, mark *Node[T]) {
	n.list, n.item, n.prev = l, item, mark
	if mark == nil {
		n.next, l.head = l.head, n
	} else {
		n.next, mark.next = mark.next, n
	}
	if n.next == nil {
		l.tail = n
	} else {
		n.next.prev = n
	}
	l.n++
}

// InsertLast puts n behind the last record for which before holds, looking from the end.
func (l *List[T]) InsertLast(n *Node[T], item *T, before func(*T) bool) {
	mark := l.tail
	for mark != nil && !before(mark.item) {
		mark = mark.prev
	}
	l.InsertAfter(n, item, mark)
}

// List returns the list that n is in, nil if it is in none.
func (n *Node[T]) List() *List[T] { return n.list }

// Linked reports whether n is in a list.
func (n *Node[T]) Linked() bool { return n.list != nil }

// Before returns the record in front of n in its list, nil at the head.
func (n *Node[T]) Before() *T {
	if n.prev == nil {
		return nil
	}
	return n.prev.item
}

// After returns the record behind n in its list, nil at the end.
func (n *Node[T]) After() *T {
	if n.next == nil {
		return nil
	}
	return n.next.item
}

// Unlink takes n out of its list, if it is in one.
func (n *Node[T]) Unlink() {
	l := n.list
	if l == nil {
		return
	}
	if n.prev == nil {
		l.head = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		l.tail = n.prev
	} else {
		n.next.prev = n.prev
	}
	l.n--
	*n = Node[T]{}
}
