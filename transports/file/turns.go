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
// A turn ends when its last operation does. While somebody waits for that, turnMost more operations may join.
type turns struct {
	flying [2]int
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
	t.unqueue(it)
	u.aside.PushBack(it, &it.place)
	return false
}

// joinTurn counts an operation that inTurn has let begin. The caller holds t.mu.
func (t *base) joinTurn(u *turns, w way) {
	if w == free {
		return
	}
	u.flying[w]++
	if u.aside.Len() > 0 {
		u.more--
	}
}

// endTurn counts the end of an operation. Behind the last one those that wait are the first of their classes again, in
// their order, so the other way has its turn. The caller holds t.mu.
func (t *base) endTurn(u *turns, w way) {
	if w == free {
		return
	}
	if u.flying[w]--; u.flying[w] > 0 {
		return
	}
	for it := u.aside.PopBack(); it != nil; it = u.aside.PopBack() {
		t.queue.PushFront(it.class, it, &it.place)
	}
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
