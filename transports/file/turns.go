package file

import (
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// way is how an operation goes to the disk, as far as its neighbours have to know.
type way uint8

const (
	past    way = iota // a WRITE of whole units, by O_DIRECT or a library
	through            // a WRITE by the page cache
	free               // a READ: it makes nothing dirty
)

// turns keep the two ways of WRITEs to one inode apart in time.
//
// Units do not keep them apart. The page cache has folios, which lie over many units where the kernel has read ahead.
// An edge that makes such a folio dirty while a neighbour goes past it keeps the kernel from dropping the folio
// afterwards: old bytes stay in it, and the next fdatasync of every program fails with EIO. Between turns nothing is
// needed, because a WRITE that goes past the page cache begins with flushing every folio of its range.
//
// A turn ends when its last operation does. While somebody waits for that, turnMost more operations may join. The other
// way has the next turn, also beside a stream of a higher class that goes on, by priority inheritance: the item that
// has waited for longest takes the class of the turn that has ended, in front of all others, until its operation
// begins.
type turns struct {
	flying [2]int
	class  int            // the most urgent one of the operations of this turn
	aside  kit.List[item] // items that wait for the other way's turn
	more   int
}

const turnMost = 64

// inTurn reports whether the next operation of an item may begin. If not, the item waits aside, and the next one is
// looked at. The caller holds t.mu.
func (t *base) inTurn(it *item, w way) bool {
	u := &it.file.inode.turns
	if w == free || u.flying[1-w] == 0 && (u.aside.Len() == 0 || u.more > 0) {
		return true
	}
	if u.aside.Len() == 0 {
		u.more = turnMost
	}
	if it.aside.since == 0 {
		t.tick++
		it.aside.since = t.tick
	}
	it.aside.way = w
	t.unqueue(it)
	u.aside.PushBack(it, &it.place)
	return false
}

// joinTurn counts an operation that inTurn has let begin. Its item is in the queue. The caller holds t.mu.
func (t *base) joinTurn(it *item, w way) {
	if w == free {
		return
	}
	u := &it.file.inode.turns
	if own := kit.ClassOf(it.slice.Class); it.class != own {
		t.moveToFront(it, own)
	}
	if u.flying == [2]int{} {
		u.class = it.class
	}
	u.class = min(u.class, it.class)
	u.flying[w]++
	if u.aside.Len() > 0 {
		u.more--
	}
}

// endTurn counts the end of an operation. Behind the last one those that wait are the first of their classes again, in
// their order, and the eldest of the other way is the first of the turn's class. The caller holds t.mu.
func (t *base) endTurn(u *turns, w way) {
	if w == free {
		return
	}
	if u.flying[w]--; u.flying[w] > 0 {
		return
	}
	var eldest *item
	for it := u.aside.PopBack(); it != nil; it = u.aside.PopBack() {
		t.queue.PushFront(it.class, it, &it.place)
		if it.aside.way != w && (eldest == nil || it.aside.since < eldest.aside.since) {
			eldest = it
		}
	}
	if eldest != nil {
		t.moveToFront(eldest, min(eldest.class, u.class))
	}
}

// moveToFront makes an item of the queue the first one of a class. The caller holds t.mu.
func (t *base) moveToFront(it *item, class int) {
	t.unqueue(it)
	it.class = class
	t.queue.PushFront(class, it, &it.place)
}

// wayOf returns the way of an operation.
func wayOf(op transport.Op, direct bool) way {
	switch {
	case op == transport.Read:
		return free
	case direct:
		return past
	}
	return through
}
