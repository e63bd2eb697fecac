package shm

import (
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

const (
	slicesMax  = 1024 // of one rail
	entriesMax = 4096 // of all rails: a slice that Submit cannot enter waits in the core
	biteSlices = 64   // in one bite
	biteParts  = 1024 // ranges in one bite: as many as one system call takes
	// queued bytes from which one more copier pays; below 1 MiB two are 0.3 to 0.8 times as fast as one
	bytesEach = 16 << 20
)

// entry is an accepted slice. Entries are a slab; a slice's Scratch[0] names its entry, and the entry confirms it, so
// that a question about a slice that has completed finds nothing.
//
//	free ──Submit──▶ waiting ──all of it taken──▶ taken ──last copier is done──▶ free
//	waiting, taken ──Withdraw, Fence, error──▶ its copiers finish their piece ──▶ free
type entry struct {
	number  uint64 // index in the slab + 1
	slice   *transport.Slice
	id      uint64 // of the slice
	link    *link
	from    *imported // the remote operand; nil when its key is unknown
	taken   uint64    // bytes that copiers have taken
	copiers int
	err     *errs.Error
	place   kit.Element[entry] // in the list of its class while it waits, or among the free entries
}

// queue holds accepted slices until copiers take them, class by class. All of it is guarded by mu, but for the words
// that say so; nothing is called under it.
type queue struct {
	classes kit.ClassQueue[entry]
	queued  atomic.Int64 // bytes that wait

	mu      sync.Mutex
	entries []entry
	free    kit.List[entry]
	hungry  []*link // rails that were refused room since there was some
}

func (q *queue) init() {
	q.entries = make([]entry, entriesMax)
	for i := range q.entries {
		e := &q.entries[i]
		e.number = uint64(i) + 1
		q.free.PushBack(e, &e.place)
	}
}

// enterLocked takes a slice in. False: there is no room.
func (q *queue) enterLocked(s *transport.Slice, l *link, from *imported) bool {
	if l.slices >= slicesMax {
		return false
	}
	e := q.free.PopFront()
	if e == nil {
		return false
	}
	*e = entry{number: e.number, slice: s, id: s.Id, link: l, from: from}
	q.classes.PushBack(kit.ClassOf(s.Class), e, &e.place)
	s.Scratch[0] = e.number
	l.slices++
	l.owing.Add(1)
	q.queued.Add(int64(s.Length))
	return true
}

// findLocked returns the entry of a slice that has not completed, nil else.
func (q *queue) findLocked(s *transport.Slice) *entry {
	i := s.Scratch[0] - 1
	if i >= uint64(len(q.entries)) || q.entries[i].slice != s {
		return nil
	}
	return &q.entries[i]
}

// leaveLocked takes an entry out of its class's list.
func (q *queue) leaveLocked(e *entry) {
	if q.classes.Leave(kit.ClassOf(e.slice.Class), &e.place) {
		q.queued.Add(-int64(e.slice.Length - e.taken))
	}
}

// endLocked gives an entry back and returns the completion that its slice is owed.
func (q *queue) endLocked(e *entry) transport.Completion {
	c := transport.Completion{Slice: e.slice, Id: e.id, Err: e.err}
	if e.err == nil {
		c.Bytes = e.slice.Length
	}
	e.link.slices--
	*e = entry{number: e.number}
	q.free.PushFront(e, &e.place)
	return c
}

// abandonLocked ends an entry early: at once if no copier is at it, else with its last copier. It reports which.
func (q *queue) abandonLocked(e *entry, cause *errs.Error) (c transport.Completion, ended bool) {
	if !e.place.Queued() { // all of it was taken: it ends as it ends, within a piece
		return c, false
	}
	q.leaveLocked(e)
	e.err = cause
	if e.copiers > 0 {
		return c, false
	}
	return q.endLocked(e), true
}

// bite is a copier's work between two looks at the queue: a piece of one slice, or some small slices of one region.
type bite struct {
	n       int // entries
	entries [biteSlices]*entry
	from    uint64 // of the first slice: the piece begins here
	bytes   uint64 // in all
	parts   int    // ranges that they are, at most
}

// takeLocked fills b with the next piece of the most urgent class. False: nothing waits.
func (q *queue) takeLocked(b *bite) bool {
	b.n = 0
	class := q.classes.Urgent()
	if class == kit.Classes {
		return false
	}
	list := q.classes.List(class)
	first := list.First()
	length, parts := first.piece()
	b.n, b.entries[0], b.from, b.bytes, b.parts = 1, first, first.taken, length, parts
	e := list.Next(&first.place)
	q.takenLocked(first, length)
	for first.taken == first.slice.Length && b.n < biteSlices && e != nil {
		if e.taken > 0 || e.from != first.from || e.slice.Epoch != first.slice.Epoch || e.slice.Op != first.slice.Op ||
			e.link != first.link {
			break
		}
		length, parts = e.piece()
		if length != e.slice.Length || b.bytes+length > pieceBytes || b.parts+parts > biteParts {
			break
		}
		b.entries[b.n] = e
		b.n++
		b.bytes += length
		b.parts += parts
		next := list.Next(&e.place)
		q.takenLocked(e, length)
		e = next
	}
	return true
}

func (q *queue) takenLocked(e *entry, length uint64) {
	e.taken += length
	e.copiers++
	q.queued.Add(-int64(length))
	if e.taken == e.slice.Length {
		q.leaveLocked(e)
	}
}

// piece returns the length of the next piece for a copier, and how many ranges it is: at most pieceBytes and biteParts.
func (e *entry) piece() (length uint64, parts int) {
	s := e.slice
	length = min(s.Length-e.taken, pieceBytes)
	if s.Pieces == nil {
		return length, 1
	}
	each := s.Pieces.Bytes
	if most := each*biteParts - e.taken%each; length > most && each < pieceBytes {
		length = most
	}
	return length, int((e.taken%each + length + each - 1) / each)
}

// finishLocked accounts for a bite, of which failed says how each slice fared, and collects the completions that are
// due.
func (q *queue) finishLocked(b *bite, failed []*errs.Error, out *ends) {
	for k, e := range b.entries[:b.n] {
		e.copiers--
		if failed[k] != nil && e.err == nil {
			q.leaveLocked(e)
			e.err = failed[k]
		}
		if e.copiers == 0 && !e.place.Queued() {
			l := e.link
			out.add(l, q.endLocked(e))
		}
	}
	q.roomLocked(out)
}

// roomLocked collects the rails that are owed a Ready now.
func (q *queue) roomLocked(out *ends) {
	if len(q.hungry) == 0 || q.free.Len() < entriesMax/4 {
		return
	}
	rest := q.hungry[:0]
	for _, l := range q.hungry {
		if l.slices > slicesMax/2 {
			rest = append(rest, l)
			continue
		}
		l.hungry = false
		if g := l.Live.Load(); g != 0 {
			out.ready = append(out.ready, l.In(g))
		}
	}
	q.hungry = rest
}

// ends are completions on their way to the core, each with its link, which counts those it still owes.
type ends struct {
	n     int
	list  [biteSlices]transport.Completion
	links [biteSlices]*link
	ready []transport.Rail
}

func (o *ends) add(l *link, c transport.Completion) {
	o.list[o.n], o.links[o.n] = c, l
	o.n++
}

func (o *ends) full() bool { return o.n == len(o.list) }

// deliver hands over the collected completions. No lock is held: the core may step inside.
func (o *ends) deliver(sink transport.Sink) {
	if n := o.n; n > 0 {
		o.n = 0
		sink.Complete(o.list[:n])
		for i, l := range o.links[:n] {
			l.owing.Add(-1)
			o.list[i], o.links[i] = transport.Completion{}, nil
		}
	}
	for _, rail := range o.ready {
		sink.Ready(rail)
	}
	o.ready = o.ready[:0]
}
