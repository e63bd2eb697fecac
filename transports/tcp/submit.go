package tcp

import (
	"slices"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

const (
	stripeBytes = 64 << 10  // slices from here on go to the lane that has least to do; smaller ones share system calls
	crowdBytes  = 256 << 10 // with more than this on it, the first lane is avoided by small slices too
)

// A lane is bulk from so much on: a worker reads it while the waiter reads another one. Answers to WRITEs are short,
// but each makes room for the next slice, which its reader sends: two lanes are then fed by two threads.
const (
	bulkReads  = 2 << 20 // bytes of READs that are due
	bulkWrites = 3 << 20 // bytes of both, which a lane holds while a stream fills its window
)

// Scratch of an accepted slice.
const (
	scratchConn = iota // the connKey of its lane
	scratchSeq         // its number there
)

// Submit accepts a prefix of slices, which all are of one rail, and writes a budget of bytes at once. It never waits. A
// stale generation takes nothing and owes no Ready: its RailDown has been or is about to be reported.
func (t *Transport) Submit(list []*transport.Slice) int {
	if len(list) == 0 || t.life.Closed() {
		return 0
	}
	set := t.setOf(list[0].Rail)
	if set == nil {
		return 0
	}
	var w *worker
	n := 0
	for more := true; more && n < len(list); {
		var k int
		l := set.choose(list[n])
		k, more = l.accept(list[n:], &w)
		n += k
	}
	for i := range set.groups {
		polled := t.polling[i].Load() // then the answer must not wake a worker
		for _, l := range set.groups[i].lanes() {
			if l.dirty.Load() && !l.wantOut.Load() {
				if polled && !l.bulk.Load() {
					l.disarm()
				}
				l.pump(submitBudget)
			}
		}
	}
	if w != nil {
		t.giveBack(w)
	}
	return n
}

func (t *Transport) setOf(r transport.Rail) *laneSet {
	l := t.links.Lookup(r.Link)
	if l == nil {
		return nil
	}
	rails := *l.rails.Load()
	if int(r.Index) >= len(rails) {
		return nil
	}
	if set := rails[r.Index].live.Load(); set != nil && set.generation == r.Generation {
		return set
	}
	return nil
}

func (s *laneSet) choose(first *transport.Slice) *initiatorLane {
	lanes := s.groups[groupOf(first.Class)].lanes()
	best := lanes[0]
	if len(lanes) == 1 {
		if first.Length >= stripeBytes && s.rail.link.t.settings.Lanes > 1 {
			s.askWider()
		}
		return best
	}
	least := best.load()
	if first.Length < stripeBytes && least <= crowdBytes {
		return best
	}
	for _, l := range lanes[1:] {
		if n := l.load(); n < least {
			best, least = l, n
		}
	}
	return best
}

func (l *initiatorLane) load() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.bytes
}

// accept takes slices while they belong on this lane and there is room. more reports that the rest may fit on another.
func (l *initiatorLane) accept(list []*transport.Slice, w **worker) (n int, more bool) {
	group := groupOf(list[0].Class)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isDown() || l.set.fenced.Load() {
		return 0, false
	}
	for n < len(list) {
		s := list[n]
		if n > 0 && (groupOf(s.Class) != group || s.Length >= stripeBytes || l.out.bytes > crowdBytes) {
			return n, true
		}
		if code := l.t.regions.checkLocal(s); code != errs.OK || s.Length == 0 || s.Length > l.t.settings.SliceBytes {
			if *w == nil {
				*w = l.t.borrow()
			}
			(*w).complete(s, 0, l.localError(s, code))
			n++
			continue
		}
		seq, ok := l.out.accept(s)
		if !ok {
			l.set.owes.Store(true) // something is outstanding here, and its end sends the Ready
			return n, false
		}
		atomic.StoreUint64(&s.Scratch[scratchConn], uint64(l.key))
		atomic.StoreUint64(&s.Scratch[scratchSeq], seq)
		l.expect()
		l.dirty.Store(true)
		n++
	}
	return n, false
}

func (l *initiatorLane) localError(s *transport.Slice, code errs.Code) *errs.Error {
	e := errs.New(errs.InvalidArgument, "tcp.submit", "slice of %d bytes, 1 to %d are possible",
		s.Length, l.t.settings.SliceBytes)
	if code != errs.OK {
		e = errs.New(code, "tcp.submit", "local end %#x+%d is not inside its registered region or must not be written",
			s.Local, s.Length)
	}
	return l.attribute(e.WithScope(errs.ScopeSlice, errs.SideLocal))
}

// Withdraw asks for the completions of accepted slices. A slice that has not left completes at once, a READ as soon
// as no piece is under way into its destination, and a WRITE that has left when the peer has answered.
func (t *Transport) Withdraw(list []*transport.Slice) {
	w := t.borrow()
	var last *initiatorLane
	var asked []record
	for _, s := range list {
		l := t.initiatorOf(connKey(atomic.LoadUint64(&s.Scratch[scratchConn])))
		if l == nil {
			continue // completed, or its lane is broken and a fence asks already
		}
		if l != last {
			last.sendWithdraw(asked)
			last, asked = l, asked[:0]
		}
		if seq := atomic.LoadUint64(&s.Scratch[scratchSeq]); l.withdraw(w, s, seq) {
			asked = append(asked, record{id: seq})
		}
	}
	last.sendWithdraw(asked)
	t.giveBack(w)
}

// withdraw deals with one slice and reports whether the peer must be asked.
func (l *initiatorLane) withdraw(w *worker, s *transport.Slice, seq uint64) bool {
	l.copyMu.Lock() // a READ's piece under way ends first
	l.mu.Lock()
	o := &l.out
	if seq < o.head || seq >= o.tail || o.at(seq).slice != s {
		l.mu.Unlock()
		l.copyMu.Unlock()
		return false
	}
	e := o.at(seq)
	switch {
	case seq >= o.next:
		o.dropWaiting(seq)
	case e.op == transport.Read:
		o.detachSlice(e) // its number stays until its payload has been discarded
		l.changed = true
	}
	left := e.slice == nil
	l.mu.Unlock()
	l.copyMu.Unlock()
	if left {
		w.complete(s, 0, l.withdrawn())
		l.room(w)
		return false
	}
	l.writeMu.Lock() // the source becomes quiet now; a frame that was begun still ends with the right bytes
	if k := seq - l.tx.first; k < uint64(l.tx.slices) {
		l.quieten(int(k))
	}
	l.writeMu.Unlock()
	return l.asks(s, seq)
}

// asks notes that the peer is asked about a WRITE, of which the source is quiet. It reports false for one that has
// ended meanwhile.
func (l *initiatorLane) asks(s *transport.Slice, seq uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := &l.out
	e := o.sent(seq)
	if e == nil || e.slice != s {
		return false
	}
	if !e.asked {
		e.asked = true
		o.asked++
	}
	return true
}

// sendWithdraw sends withdrawals of this lane's slices on every lane of the link. A nil lane asks nothing.
func (l *initiatorLane) sendWithdraw(asked []record) {
	for part := range slices.Chunk(asked, recordsMax) {
		l.link.broadcast(header{kind: kindWithdraw, seq: l.id}, part...)
		l.link.kick()
	}
}

// Fence ends a rail's generation: its lanes take nothing more, and their slices complete when the peer has answered
// which of them landed. A lane that joins the set meanwhile is not met here: it looks at fenced before it accepts, and
// goes down with the rail.
func (t *Transport) Fence(r transport.Rail) {
	set := t.setOf(r)
	if set == nil {
		return
	}
	set.fenced.Store(true)
	set.each(func(l *initiatorLane) {
		l.broke(l.attribute(errs.New(errs.Withdrawn, "tcp.fence", "rail was given up").
			WithScope(errs.ScopeRail, errs.SideLocal)))
	})
}

// Poll reads and writes the initiator's lanes of some classes that have something outstanding, without blocking, and
// keeps the workers asleep about them until Arm. It returns how many lanes had something.
func (t *Transport) Poll(budget int, classes transport.Classes) int {
	for group := range t.polling {
		if groupCarries(uint8(group), classes) && !t.polling[group].Load() {
			t.polling[group].Store(true)
		}
	}
	var w *worker
	found := 0
	for l := range t.attendedLanes {
		if !l.carries(classes) || l.isDown() || (!l.busy.Load() && !l.deaf.Load()) {
			continue
		}
		if w == nil {
			w = t.borrow()
		}
		if l.poll(w) {
			found++
		}
		if found >= budget {
			break
		}
	}
	if w != nil {
		t.giveBack(w)
	}
	return found
}

func (l *initiatorLane) poll(w *worker) bool {
	l.mu.Lock()
	if l.settledLocked() {
		l.busy.Store(false)
	}
	bulk := l.out.readBytes >= bulkReads || l.out.bytes >= bulkWrites
	l.mu.Unlock()
	if l.bulk.Store(bulk); !bulk {
		l.disarm()
	} else if l.deaf.Load() {
		l.arm()
	}
	if l.wantOut.Load() {
		l.dirty.Store(true)
		l.pump(submitBudget)
	}
	if !l.readMu.TryLock() {
		return false
	}
	n, _ := l.drain(w, workerBudget)
	l.letGo()
	return n > 0
}

// Arm gives the lanes back to the workers.
func (t *Transport) Arm() {
	for group := range t.polling {
		t.polling[group].Store(false)
	}
	for l := range t.attendedLanes {
		l.settle()
	}
}
