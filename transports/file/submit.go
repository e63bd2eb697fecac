package file

import (
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Submit implements transport.Transport.
func (t *base) Submit(slices []*transport.Slice) int {
	if len(slices) == 0 {
		return 0
	}
	rail := slices[0].Rail
	var refused []*item
	t.mu.Lock()
	l := t.links.Lookup(rail.Link)
	if l == nil || l.rail() != rail || l.fenced || t.life.Closed() {
		t.mu.Unlock()
		return 0
	}
	n := 0
	for ; n < len(slices); n++ {
		if t.free.Len() == 0 {
			l.starved, t.starving = true, true
			break
		}
		s := slices[n]
		it := t.take(s, l)
		s.Scratch[0] = it.number
		f, err := t.check(s, l)
		if it.file = f; f != nil {
			t.hold(f)
		}
		if err != nil {
			it.state, it.err = running, err
			refused = append(refused, it)
			continue
		}
		t.enqueue(it)
	}
	if n > len(refused) {
		t.mover.kick()
	}
	t.mu.Unlock()
	if refused != nil {
		t.finish(refused, nil)
	}
	return n
}

// take takes an item of the slab for a slice. There is one, and the caller holds t.mu.
func (t *base) take(s *transport.Slice, l *link) *item {
	it := t.free.PopFront()
	l.outstanding++
	*it = item{slice: s, id: s.Id, link: l, number: it.number, class: kit.ClassOf(s.Class)}
	return it
}

// enqueue puts an item behind those of its class. The caller holds t.mu.
func (t *base) enqueue(it *item) {
	it.state = queued
	t.queue.PushBack(it.class, it, &it.place)
}

// check looks at a slice as a careless core would send it, and returns the file that it names. The caller holds t.mu.
func (t *base) check(s *transport.Slice, l *link) (*file, *errs.Error) {
	f := t.files.Lookup(s.RemoteKey)
	if f == nil || f.link != l {
		return nil, errUnknown
	}
	if s.Length == 0 || s.Length > t.settings.SliceBytes {
		return f, errLength
	}
	if s.Op == transport.Write && f.ReadOnly {
		return f, errs.New(errs.PermissionDenied, t.name+".write", "%s was opened read-only", f.Path).
			WithScope(errs.ScopeSlice, errs.SideRemote)
	}
	r := t.regions.Lookup(s.LocalKey)
	if r == nil || s.Local < r.Addr {
		return f, errLocal
	}
	if s.Pieces != nil {
		return f, t.checkPieces(s, f, r)
	}
	if !mem.Contains(r.Size, uint64(s.Local-r.Addr), s.Length) {
		return f, errLocal
	}
	if !mem.Contains(f.Size, s.Remote, s.Length) {
		return f, t.past(s, f, s.Remote, s.Length)
	}
	return f, nil
}

func (t *base) checkPieces(s *transport.Slice, f *file, r *mem.Region) *errs.Error {
	p := s.Pieces
	n := s.Length / max(p.Bytes, 1)
	last := uint64(s.First) + n
	if p.Bytes == 0 || n*p.Bytes != s.Length || last > uint64(len(p.LocalAt)) || last > uint64(len(p.RemoteAt)) {
		return errLength
	}
	base := uint64(s.Local - r.Addr)
	for i := uint64(s.First); i < last; i++ {
		if local := base + p.LocalAt[i]; local < base || !mem.Contains(r.Size, local, p.Bytes) {
			return errLocal
		}
		if at := s.Remote + p.RemoteAt[i]; at < s.Remote || !mem.Contains(f.Size, at, p.Bytes) {
			return t.past(s, f, at, p.Bytes)
		}
	}
	return nil
}

func (t *base) past(s *transport.Slice, f *file, offset, length uint64) *errs.Error {
	return errs.New(errs.InvalidArgument, t.name+"."+verb(s.Op),
		"%s of %d bytes at offset %d is past the end of %s, which has %d bytes",
		s.Op, length, offset, f.Path, f.Size).WithScope(errs.ScopeSlice, errs.SideRemote)
}

// Withdraw implements transport.Transport. Waiting slices end before it returns.
func (t *base) Withdraw(slices []*transport.Slice) {
	var ended []*item
	t.mu.Lock()
	for _, s := range slices {
		i := s.Scratch[0] - 1
		if i >= uint64(len(t.items)) {
			continue
		}
		if it := &t.items[i]; it.slice == s && it.state != idle && t.withdraw(it, errWithdrawn) {
			ended = append(ended, it)
		}
	}
	t.mu.Unlock()
	t.finish(ended, nil)
}

// withdraw takes an item back. It returns true if nothing is under way for it, and the caller finishes it; otherwise it
// ends when its operations have come back. The caller holds t.mu.
func (t *base) withdraw(it *item, why *errs.Error) bool {
	if it.withdrawn.Swap(true) {
		return false
	}
	it.why = why
	waits := it.place.Queued()
	t.unqueue(it)
	if waits && it.flying == 0 {
		it.state = running
		return true
	}
	t.mover.recall(it)
	return false
}

// unqueue takes an item out of the queue that it is in. The caller holds t.mu.
func (t *base) unqueue(it *item) {
	if !t.queue.Leave(it.class, &it.place) {
		it.place.Leave()
	}
}

// openable makes sure that the head of a queue has its descriptors. If not, it waits aside until they are opened, and
// the next item is looked at. The caller holds t.mu.
func (t *base) openable(it *item) bool {
	f := it.file
	if f.isOpen() {
		return true
	}
	t.unqueue(it)
	f.waiting.PushBack(it, &it.place)
	if !f.opening {
		f.opening = true
		t.hold(f) // its items may end meanwhile
		t.tasks.Go(func() { t.reopen(f) })
	}
	return false
}

// finish ends items for which nothing is under way any more: the one place where completions come from. The caller
// holds no lock.
func (t *base) finish(items []*item, h *hand) {
	for len(items) > 0 {
		n := min(len(items), handful)
		t.finishSome(items[:n], h)
		items = items[n:]
	}
}

func (t *base) finishSome(items []*item, h *hand) {
	t.mu.Lock()
	borrowed := h == nil
	if borrowed {
		h = t.borrow()
	}
	for _, it := range items {
		h.ends = append(h.ends, it.completion())
		t.retire(it, h)
	}
	t.owedReady(h)
	t.completing.Add(1)
	t.mu.Unlock()
	t.tell(h, borrowed)
}

// dismiss ends an item that stood for slices which nobody submitted.
func (t *base) dismiss(it *item) {
	t.mu.Lock()
	h := t.borrow()
	t.retire(it, h)
	t.owedReady(h)
	t.completing.Add(1)
	t.mu.Unlock()
	t.tell(h, true)
}

// tell hands over the ends that a hand has gathered. The caller holds no lock and has counted itself in t.completing.
func (t *base) tell(h *hand, borrowed bool) {
	for _, fds := range h.fds {
		t.closeAll(fds)
	}
	if len(h.ends) > 0 {
		t.sink.Complete(h.ends)
	}
	for _, rail := range h.ready {
		t.sink.Ready(rail)
	}
	for _, info := range h.rails {
		t.sink.RailUp(info)
	}
	clear(h.ends)
	h.ends, h.ready, h.rails, h.fds = h.ends[:0], h.ready[:0], h.rails[:0], h.fds[:0]
	last := t.completing.Add(-1) == 0 && t.life.Closed()
	if !borrowed && !last {
		return
	}
	t.mu.Lock()
	if borrowed {
		t.hands = append(t.hands, h)
	}
	if last {
		t.changed.Broadcast()
	}
	t.mu.Unlock()
}

func (it *item) completion() transport.Completion {
	s := it.slice
	switch {
	case it.done == s.Length:
		return transport.Completion{Slice: s, Id: it.id, Bytes: s.Length}
	case it.err != nil:
		return transport.Completion{Slice: s, Id: it.id, Err: it.err}
	}
	return transport.Completion{Slice: s, Id: it.id, Err: it.why}
}

// retire gives an item back to the slab. The caller holds t.mu.
func (t *base) retire(it *item, h *hand) {
	l := it.link
	l.outstanding--
	if it.file != nil {
		if fds := t.release(it.file); fds != nothingOpen {
			h.fds = append(h.fds, fds)
		}
	}
	if l.revive() {
		h.rails = append(h.rails, t.railOf(l))
	}
	it.slice, it.link, it.file, it.err, it.why, it.state = nil, nil, nil, nil, nil, idle
	t.free.PushFront(it, &it.place)
}

// owedReady lists the rails that Submit refused something of, once a quarter of the slab is free again: one call
// instead of many. The caller holds t.mu.
func (t *base) owedReady(h *hand) {
	if !t.starving || t.free.Len() < len(t.items)/4 {
		return
	}
	t.starving = false
	for _, l := range t.links.All() {
		if l.starved {
			l.starved = false
			h.ready = append(h.ready, l.rail())
		}
	}
}

func (t *base) borrow() *hand {
	if n := len(t.hands); n > 0 {
		h := t.hands[n-1]
		t.hands = t.hands[:n-1]
		return h
	}
	return newHand()
}
