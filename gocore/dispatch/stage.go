package dispatch

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch/internal/intrusive"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/qos"
	"github.com/tent-engine/tent/gocore/transport"
)

// stagesMost is the largest number of stages on a route. Four are the way from GPU to GPU through the host memory of
// both sides and one more on the way.
const stagesMost = 4

// stage is a bounded pool of buffers between two hops. A piece takes a slot of every stage of its route before its
// first hop begins and gives them back when its last one has ended: pieces never wait for each other's slots in the
// middle of their way, so they cannot wait in a circle. A full pool is backpressure: the head of the queue waits here.
// Slots go to waiters in order of class, with turns by ageing, as slices do on a rail.
type stage struct {
	spec    StageSpec
	spared  int // slots that a peer with one leaves to those without
	free    []int32
	ramps   []ramp
	moved   clock.Time // when a slot was last given back
	waiting [ClassCount]waiters
	woken   waiters // within wakeStages, those that began to wait last first

	turns    qos.Turns
	turn     int        // the class that has a turn by ageing: a free slot is kept for it
	turnEnds clock.Time // at the latest
}

// waiters wait for a slot: pieces, and tasks with fresh bytes.
type waiters struct {
	pieces intrusive.List[piece]
	tasks  intrusive.List[task]
	since  clock.Time // when the first of them began to wait, after there was none
}

func (w *waiters) empty() bool { return w.pieces.Len()+w.tasks.Len() == 0 }

// stagePartsMost bounds the parts of a piece in a slot.
const stagePartsMost = 4096

// Hops work side by side, but for the first piece, which is alone in the first hop, and the last piece in the last.
// So a piece is a small part of its task, as long as there is still something to copy for the price of a call.
const (
	stagedParts = 32
	stagedLeast = 256 << 10 // bytes
)

// rampsMost bounds the ramps of a stage.
const rampsMost = 8

// ramp has the places of parts of one size that follow one another in a slot. It is immutable, and slices share it.
type ramp struct {
	bytes  uint64
	places []uint64
}

// ramp returns the places of n parts in a slot of the stage. It is made once for each size that is in use.
func (s *stage) ramp(bytes uint64, n uint64) []uint64 {
	for i := range s.ramps {
		if s.ramps[i].bytes == bytes {
			return s.ramps[i].places[:n]
		}
	}
	made := ramp{bytes, make([]uint64, min(s.spec.SlotBytes/bytes, stagePartsMost))}
	for i := range made.places {
		made.places[i] = uint64(i) * bytes
	}
	if len(s.ramps) == rampsMost {
		s.ramps = append(s.ramps[:0], s.ramps[1:]...)
	}
	s.ramps = append(s.ramps, made)
	return made.places[:n]
}

// gatherParts makes the slice of a hop the parts of a piece. They lie apart at the region's end, and follow one another
// in the slot. Where both hops take pieces, a copy engine gathers or scatters all of them at once.
func (c *Core) gatherParts(p *piece, hop *plan.Hop, a *attempt) {
	t, parts := p.task, p.task.spec.Parts
	if !p.route.Vectors || (hop.Local == 0) == (hop.Remote == 0) {
		return // one range at both ends
	}
	first, n := p.offset/parts.Bytes, p.length/parts.Bytes
	a.gathered = transport.Pieces{LocalAt: parts.LocalAt[first : first+n], RemoteAt: parts.RemoteAt[first : first+n],
		Bytes: parts.Bytes}
	if hop.Local == 0 {
		s, _ := c.slot(p, hop.Remote)
		a.Local, a.gathered.RemoteAt = t.spec.Local, s.ramp(parts.Bytes, n)
	} else {
		s, _ := c.slot(p, hop.Local)
		a.Remote, a.gathered.LocalAt = t.spec.Remote, s.ramp(parts.Bytes, n)
	}
	a.Pieces = &a.gathered
}

// sparedPart is the part of a shared stage that no peer takes by its second slot. A few peers that hold their slots for
// ever, since they have stopped or mean to, so slow the others down and do not stop them (trunk reservation: F. P.
// Kelly, Loss Networks, 1991).
const sparedPart = 8

// full reports whether the stage has no slot now for a class, and for a peer where it is shared.
func (s *stage) full(class int, by *peer, now clock.Time) bool {
	free := len(s.free)
	if class != s.turn && now < s.turnEnds {
		free--
	}
	return free <= 0 || by != nil && by.slots > 0 && free <= s.spared
}

// sharer returns the peer to which slots of a shared stage count, nil for other stages.
func (c *Core) sharer(s *stage, route *plan.Route) *peer {
	if !s.spec.Shared {
		return nil
	}
	if l := c.link(route.Across().Link); l != nil {
		return l.peer
	}
	return nil
}

// AddStage makes a pool known. Errors: InvalidArgument.
func (c *Core) AddStage(spec StageSpec) (plan.StageID, *errs.Error) {
	if invariants {
		defer c.checkInvariants()
	}
	if spec.Slots <= 0 || spec.Slots > 1<<20 || spec.SlotBytes == 0 {
		return 0, errs.New(errs.InvalidArgument, "stage", "a stage of %d slots of %d bytes", spec.Slots, spec.SlotBytes)
	}
	s := &stage{spec: spec, free: make([]int32, spec.Slots)}
	if spec.Shared {
		s.spared = max(1, spec.Slots/sparedPart)
	}
	for i := range s.free {
		s.free[i] = int32(spec.Slots - 1 - i)
	}
	c.stages = append(c.stages, s)
	return plan.StageID(len(c.stages) - 1), nil
}

// stagesOf lists the stages of a route in the order in which its hops name them; a piece's slots are in the same order.
func stagesOf(r *plan.Route) (ids [stagesMost]plan.StageID, n int) {
	for i := range r.Hops {
		for _, id := range [...]plan.StageID{r.Hops[i].Local, r.Hops[i].Remote} {
			if id == 0 || n == stagesMost || ids[0] == id || ids[1] == id || ids[2] == id || ids[3] == id {
				continue
			}
			ids[n] = id
			n++
		}
	}
	return ids, n
}

// takeSlots gives a piece a slot of every stage of its route, or none and returns the stage that is full.
func (c *Core) takeSlots(p *piece) *stage {
	if len(p.route.Hops) == 1 || p.staged {
		return nil
	}
	ids, n := stagesOf(p.route)
	class := int(p.task.spec.Class)
	for _, id := range ids[:n] {
		if s := c.stages[id]; s.full(class, c.sharer(s, p.route), c.last) {
			return s
		}
	}
	for i, id := range ids[:n] {
		s := c.stages[id]
		if class == s.turn {
			s.turnEnds = 0
		}
		last := len(s.free) - 1
		p.slots[i], s.free = s.free[last], s.free[:last]
		if by := c.sharer(s, p.route); by != nil {
			p.sharer = by
			by.slots++
		}
	}
	p.staged = n > 0
	return nil
}

// releaseSlots gives back the slots of a piece. Nothing may be able to touch the buffers any more.
func (c *Core) releaseSlots(p *piece) {
	if !p.staged {
		return
	}
	ids, n := stagesOf(p.route)
	for i, id := range ids[:n] {
		s := c.stages[id]
		s.free = append(s.free, p.slots[i])
		s.moved = c.awake(c.last)
		if s.spec.Shared && p.sharer != nil {
			p.sharer.slots--
		}
	}
	p.staged, p.sharer = false, nil
}

// wakeStages sends as many waiters back to the heads of their queues as there are free slots, those that may take one.
// They keep their order: else a task that is always woken beside another one would have the slots of both. One that
// finds another of its stages full waits there next.
func (c *Core) wakeStages(now clock.Time) {
	for _, s := range c.stages[1:] {
		if len(s.free) == 0 {
			continue
		}
		c.chooseWoken(s, now)
		// The end of a task takes its other pieces out of the list.
		for p := s.woken.pieces.First(); p != nil; p = s.woken.pieces.First() {
			c.queuePiece(p, true, now)
		}
		for t := s.woken.tasks.First(); t != nil; t = s.woken.tasks.First() {
			t.unqueue()
			c.queueTask(t, true, now)
		}
	}
}

// chooseWoken takes those waiters out of the lists of a stage. A class that has had no slot for as long as the time-out
// of ageing has its turn, one class at a time: a slot is kept for it until it has come to the head of its queue, on a
// route of several stages with slots of the others, too. All other slots go to the most urgent ones.
func (c *Core) chooseWoken(s *stage, now clock.Time) {
	n := len(s.free)
	if now < s.turnEnds {
		n--
	}
	for class := Low; class > High && now >= s.turnEnds; class-- {
		w := &s.waiting[class]
		if !w.empty() && now >= s.turns.Due(class, w.since, c.options.Ageing, 1) && c.chooseOf(s, class, 1, now) > 0 {
			s.turn, s.turnEnds = class, now.Add(stagesMost*c.options.Ageing)
			n--
		}
	}
	for class := range s.waiting {
		n -= c.chooseOf(s, class, n, now)
	}
}

// chooseOf takes up to a number of waiters of one class out, and returns how many.
func (c *Core) chooseOf(s *stage, class, most int, now clock.Time) (n int) {
	w := &s.waiting[class]
	for p := w.pieces.First(); p != nil && n < most; {
		next := p.queue.After()
		if !s.full(class, c.sharer(s, p.route), now) {
			p.queue.Unlink()
			s.woken.pieces.PushFront(&p.queue, p)
			n++
		}
		p = next
	}
	for t := w.tasks.First(); t != nil && n < most; {
		next := t.queue.After()
		if !s.full(class, c.sharer(s, t.path()), now) {
			t.unqueue()
			s.woken.tasks.PushFront(&t.queue.Node, t)
			n++
		}
		t = next
	}
	if n > 0 {
		s.turns.Served(class, now)
	}
	return n
}

// waitForSlot moves a piece, or the fresh bytes of a task, from the head of its queue to a full stage. The stall limit
// applies there.
func (c *Core) waitForSlot(s *stage, p *piece, t *task, now clock.Time) {
	c.slotWaits++
	if p != nil {
		t = p.task
	}
	w := &s.waiting[t.spec.Class]
	if w.empty() {
		w.since = now
	}
	if p != nil {
		p.become(pieceBlocked)
		w.pieces.PushBack(&p.queue, p)
	} else {
		t.unqueue()
		w.tasks.PushBack(&t.queue.Node, t)
	}
	if !t.watch.Linked() {
		t.progress = c.awake(now)
		c.served.PushBack(&t.watch, t)
	}
}

// Slots returns the number of slots of all stages, those that are free, and how often one was waited for.
func (c *Core) Slots() (all, free int, waits uint64) {
	for _, s := range c.stages[1:] {
		all, free = all+s.spec.Slots, free+len(s.free)
	}
	return all, free, c.slotWaits
}

// localAddress and remoteOffset say where a hop has a piece's first byte.
func (c *Core) localAddress(p *piece, hop *plan.Hop) uintptr {
	if hop.Local == 0 {
		return p.task.spec.localAt(p.offset)
	}
	s, slot := c.slot(p, hop.Local)
	return s.spec.Local + uintptr(uint64(slot)*s.spec.SlotBytes)
}

func (c *Core) remoteOffset(p *piece, hop *plan.Hop) uint64 {
	if hop.Remote == 0 {
		return p.task.spec.remoteAt(p.offset)
	}
	s, slot := c.slot(p, hop.Remote)
	return s.spec.Remote + uint64(slot)*s.spec.SlotBytes
}

func (c *Core) slot(p *piece, id plan.StageID) (*stage, int32) {
	ids, n := stagesOf(p.route)
	for i := range n {
		if ids[i] == id {
			return c.stages[id], p.slots[i]
		}
	}
	return c.stages[id], 0
}
