package dispatch

// list is a doubly linked list through nodes that live inside the records, so that joining and leaving cost neither an
// allocation nor a search. A node is in one list at a time.
type list[T any] struct {
	head, tail *node[T]
	n          int
}

type node[T any] struct {
	prev, next *node[T]
	list       *list[T] // nil: in none
	item       *T
}

func (l *list[T]) first() *T {
	if l.head == nil {
		return nil
	}
	return l.head.item
}

func (l *list[T]) last() *T {
	if l.tail == nil {
		return nil
	}
	return l.tail.item
}

// before returns the record in front of n in its list, nil at the head.
func (n *node[T]) before() *T {
	if n.prev == nil {
		return nil
	}
	return n.prev.item
}

// after returns the record behind n in its list, nil at the end.
func (n *node[T]) after() *T {
	if n.next == nil {
		return nil
	}
	return n.next.item
}

func (l *list[T]) pushBack(n *node[T], item *T) { l.insert(n, item, l.tail) }

func (l *list[T]) pushFront(n *node[T], item *T) { l.insert(n, item, nil) }

// insert puts n behind mark, in front of everything if mark is nil.
func (l *list[T]) insert(n *node[T], item *T, mark *node[T]) {
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

// leave takes n out of its list, if it is in one.
func (n *node[T]) leave() {
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
	*n = node[T]{}
}
