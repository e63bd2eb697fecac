package dispatch

import (
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/transport"
)

const unit = 512 // every length and address of the model is a multiple

// known holds the facts of one task.
type known struct {
	batch    BatchID
	index    int
	local    uintptr
	length   uint64
	window   uint64 // addresses that it spans, more than length where parts have gaps between them
	parts    *transport.Pieces
	deadline clock.Time
	mine     []bool // by unit of the window: belongs to the task
	arrived  []bool // by unit of the window
	there    uint64 // bytes that have arrived
	out      int    // slices outstanding that cover it
	bytes    uint64 // last seen
	ended    bool
	dirty    bool
	state    State
}

// checker compares the promises with the deeds of the core.
type checker struct {
	t       require.TestingT
	seed    uint64
	w       *world
	epochs  [2]transport.Epoch // of the peers, as the core knows them
	tasks   []*known           // by local address, which only grows
	batches map[BatchID][]*known
	links   map[plan.LinkID]*linkFacts
	stages  map[plan.StageID]*stageFacts
	open    map[uint32]int // by peer: slices that outlived a dirty task
	ids     map[uint64]bool
	ends    map[BatchID]int
	probes  map[plan.LinkID]bool
	seen    map[string]int // cases that the world went through

	promoted uint64 // turns that the core has granted

	heard    [peersMax]clock.Time // last sign of a peer's process
	presence [peersMax]rail.Presence
}

func newChecker(t require.TestingT, seed uint64, w *world) *checker {
	return &checker{t: t, seed: seed, w: w, links: map[plan.LinkID]*linkFacts{}, stages: map[plan.StageID]*stageFacts{},
		ids: map[uint64]bool{}, batches: map[BatchID][]*known{}, open: map[uint32]int{}, ends: map[BatchID]int{},
		probes: map[plan.LinkID]bool{}, seen: map[string]int{}}
}

type linkFacts struct {
	peer      uint32
	transport uint8
}

type stageFacts struct {
	spec    StageSpec
	content map[uint64]uintptr // slot to the task bytes that are in it
}

func sortByID(list []*posted) {
	slices.SortFunc(list, func(a, b *posted) int { return int(int64(a.slice.Id) - int64(b.slice.Id)) })
}

func (k *checker) fail(format string, args ...any) {
	require.FailNow(k.t, fmt.Sprintf(format, args...), "seed %d, at %v", k.seed, k.w.now)
}

// at finds the tasks that a range of task bytes covers.
func (k *checker) at(first uintptr, length uint64) []*known {
	i, found := slices.BinarySearchFunc(k.tasks, first, func(t *known, a uintptr) int {
		if t.local > a {
			return 1
		}
		if t.local+uintptr(t.window) <= a {
			return -1
		}
		return 0
	})
	if !found {
		k.fail("slice of bytes %#x that no task has", first)
	}
	j := i
	for end := first + uintptr(length); j < len(k.tasks) && k.tasks[j].local < end; j++ {
	}
	if last := k.tasks[j-1]; last.local+uintptr(last.window) < first+uintptr(length) {
		k.fail("slice beyond the end of its task")
	}
	return k.tasks[i:j]
}

// each calls f with the units of task bytes that the first bytes of a slice stand for, in order.
func (k *checker) each(p *posted, bytes uint64, f func(t *known, i uintptr)) {
	s := &p.slice
	if s.Pieces == nil {
		k.eachUnit(p.first, bytes, f)
		return
	}
	n := s.Length / s.Pieces.Bytes
	if n*s.Pieces.Bytes != s.Length {
		k.fail("slice %d has %d bytes, its pieces have %d", s.Id, s.Length, s.Pieces.Bytes)
	}
	for i := uint64(s.First); i < uint64(s.First)+n && bytes > 0; i++ {
		k.eachUnit(p.first+uintptr(s.Pieces.LocalAt[i]), min(bytes, s.Pieces.Bytes), f)
		bytes -= min(bytes, s.Pieces.Bytes)
	}
}

func (k *checker) eachUnit(first uintptr, bytes uint64, f func(t *known, i uintptr)) {
	for _, t := range k.at(first, bytes) {
		for a := max(first, t.local); a < min(first+uintptr(bytes), t.local+uintptr(t.window)); a += unit {
			if i := (a - t.local) / unit; !t.mine[i] {
				k.fail("a slice covers %#x, between the parts of task %d", a, t.index)
			} else {
				f(t, i)
			}
		}
	}
}

// of lists the tasks that a slice stands for.
func (k *checker) of(p *posted) (list []*known) {
	k.each(p, p.slice.Length, func(t *known, _ uintptr) {
		if len(list) == 0 || list[len(list)-1] != t {
			list = append(list, t)
		}
	})
	return list
}

// stageBase is where the stages' addresses begin; a task's are below.
const stageBase = 1 << 50

// subject returns the task bytes that a slice stands for, and checks that each hop finds its own bytes in its stage.
func (k *checker) subject(s *transport.Slice) (first uintptr, lastHop bool) {
	local, remote := uint64(s.Local), s.Remote
	source, target := local, remote
	if s.Op == transport.Read {
		source, target = remote, local
	}
	first = uintptr(source)
	if source >= stageBase {
		stage, slot := k.slot(source)
		at, filled := stage.content[slot]
		if !filled {
			k.fail("a hop reads slot %d that nobody has filled", slot)
		}
		first = at
	}
	if target < stageBase && uintptr(target) != first {
		k.fail("bytes of %#x go to %#x", first, target)
	}
	return first, target < stageBase
}

func (k *checker) slot(address uint64) (*stageFacts, uint64) {
	id := plan.StageID(address / stageBase)
	st := k.stages[id]
	return st, (address - uint64(id)*stageBase) / st.spec.SlotBytes
}

func (k *checker) posted(p *posted) {
	s := &p.slice
	if k.ids[s.Id] {
		k.fail("slice id %d is used twice", s.Id)
	}
	k.ids[s.Id] = true
	facts := k.links[p.wire.key.link]
	if k.open[facts.peer] > 0 {
		k.fail("a slice goes to a peer with %d open withdrawals", k.open[facts.peer])
	}
	p.first, _ = k.subject(s)
	for _, t := range k.of(p) {
		if t.ended {
			k.fail("a slice for task %d of %#x, which has ended %v", t.index, t.batch, t.state)
		}
		t.out++
	}
	if target := k.target(s); target >= stageBase { // from now on the slot's content is undefined
		stage, slot := k.slot(target)
		delete(stage.content, slot)
	}
}

func (k *checker) target(s *transport.Slice) uint64 {
	if s.Op == transport.Read {
		return uint64(s.Local)
	}
	return s.Remote
}

func (k *checker) window(r *wire) {
	if r.slices > 1 && r.bytes > r.info.BytesMax {
		k.fail("%d bytes in flight on a rail with a window of %d", r.bytes, r.info.BytesMax)
	}
	if r.slices > r.info.SlicesMax {
		k.fail("%d slices in flight on a rail that takes %d", r.slices, r.info.SlicesMax)
	}
}

func (k *checker) withdrawn(p *posted) {
	if p.withdrawn {
		k.fail("slice %d is withdrawn twice", p.slice.Id)
	}
}

// completed notes that a slice has come back and that its first bytes have arrived.
func (k *checker) completed(p *posted, bytes uint64) {
	s := &p.slice
	target := k.target(s)
	open := false
	for _, t := range k.of(p) {
		t.out--
		open = open || (t.ended && t.dirty)
	}
	if bytes > 0 && target < stageBase {
		k.each(p, bytes, func(t *known, i uintptr) {
			if t.ended && !t.dirty {
				k.fail("bytes of task %d arrive after its end %v", t.index, t.state)
			}
			if !t.arrived[i] {
				t.arrived[i] = true
				t.there += unit
			}
		})
	}
	if open {
		k.open[k.links[p.wire.key.link].peer]--
	}
	if bytes == s.Length && target >= stageBase {
		stage, slot := k.slot(target)
		stage.content[slot] = p.first
	}
}

// effects looks at every task of the batches that changed.
func (k *checker) effects(e *Effects) {
	for _, id := range e.Ended {
		k.ends[id]++
	}
	for i := range e.Events {
		k.seen[e.Events[i].Kind.String()]++
		k.presences(&e.Events[i])
	}
	for i, id := range e.Changed {
		if slices.Contains(e.Changed[:i], id) {
			k.fail("batch %#x is listed twice", id)
		}
		for _, t := range k.batches[id] {
			k.look(t)
		}
	}
}

func (k *checker) look(t *known) {
	s, err := k.w.core.Status(t.batch, t.index)
	if err != nil {
		return // freed by the user
	}
	if t.ended {
		if s.State != t.state || s.Dirty != t.dirty || s.Bytes != t.bytes {
			k.fail("task %d has changed after its end from %v to %v", t.index, t.state, s.State)
		}
		return
	}
	arrived := t.there
	if s.Bytes < t.bytes || s.Bytes > arrived {
		k.fail("task %d says %d bytes after %d, and %d have arrived", t.index, s.Bytes, t.bytes, arrived)
	}
	t.bytes = s.Bytes
	if !s.State.Terminal() {
		return
	}
	t.ended, t.dirty, t.state = true, s.Dirty, s.State
	switch {
	case s.State == Completed && (arrived != t.length || s.Bytes != t.length || s.Dirty):
		k.fail("task %d is COMPLETED with %d of %d bytes", t.index, arrived, t.length)
	case !s.Dirty && t.out > 0:
		k.fail("task %d has ended %v with %d slices out", t.index, s.State, t.out)
	case s.Dirty && t.out == 0:
		k.fail("task %d has ended dirty although nothing is out", t.index)
	case s.State != Completed && s.Err == nil:
		k.fail("task %d ended %v without an error", t.index, s.State)
	case s.State == TimedOut && k.w.now < t.deadline && s.Err.Hint == "":
		k.fail("task %d ended before its deadline", t.index)
	case s.State == TimedOut && k.w.now < t.deadline:
		k.hopeless(t, s.Err)
	}
	if s.Dirty {
		k.opened(t)
	}
	if t.parts != nil {
		k.missing(t)
	}
}

// hopeless checks that a task which ended early could not have made it over any link of its routes. It counts links
// that are there, with rails as they are when nothing is wrong, by their rates or by a window a delay. Rails that were
// never seen but in trouble, slow by a factor of 20 and losing slices, may be thought so slow: the table in
// deadline_test.go is exact. The end may come later than that was decided, when slices were out; nothing can be said
// then if a link has gone meanwhile.
func (k *checker) hopeless(t *known, why error) {
	spec, err := k.w.core.Task(t.batch, t.index)
	require.Nil(k.t, err)
	on, best := false, 1.0
	for i := range spec.Plan.Routes {
		for _, hop := range spec.Plan.Routes[i].Hops {
			if k.w.core.linkFitness(hop.Link) == fitUnusable {
				return
			}
			on, best = on || k.w.core.link(hop.Link).byDeadline, max(best, k.w.capacity(hop.Link))
		}
	}
	if needed := time.Duration(float64(t.length-t.bytes) / best * 200 * 1e9); !on || needed < t.deadline.Sub(k.w.now) {
		k.fail("task %d needs %v at worst and has %v: %v", t.index, needed, t.deadline.Sub(k.w.now), why)
	}
}

// waiting checks the bytes that queues count against the tasks in them.
func (k *checker) waiting() {
	for _, l := range k.w.core.links[1:] {
		if l == nil {
			continue
		}
		for class := range l.queues {
			q, bytes := &l.queues[class], uint64(0)
			for t := q.tasks.First(); t != nil; t = t.queue.After() {
				bytes += t.spec.Length - t.cursor
			}
			for t := q.aside.tasks.First(); t != nil; t = t.queue.After() {
				bytes += t.spec.Length - t.cursor
				k.seen["set aside"]++
			}
			for _, e := range q.urgent {
				bytes += e.task.spec.Length - e.task.cursor
			}
			if bytes != q.bytes {
				k.fail("link %d counts %d bytes of class %d that wait, there are %d", l.id, q.bytes, class, bytes)
			}
		}
	}
}

// missing checks the core's list of missing parts of a task that has just ended.
func (k *checker) missing(t *known) {
	listed := map[int]bool{}
	last := -1
	err := k.w.core.Missing(t.batch, t.index, func(part int) {
		if part <= last || part >= len(t.parts.LocalAt) {
			k.fail("part %d of %d comes after %d", part, len(t.parts.LocalAt), last)
		}
		last, listed[part] = part, true
	})
	if err != nil || (len(listed) == 0) != (t.state == Completed) {
		k.fail("task %d is %v with %d missing parts: %v", t.index, t.state, len(listed), err)
	}
	for part, at := range t.parts.LocalAt {
		for i := at / unit; i < (at+t.parts.Bytes)/unit; i++ {
			if !listed[part] && !t.arrived[i] {
				k.fail("part %d of task %d is not listed and not there", part, t.index)
			}
		}
	}
	for _, p := range k.w.out { // of a dirty task: they may still land
		k.each(p, p.slice.Length, func(u *known, i uintptr) {
			for part, at := range t.parts.LocalAt {
				if u == t && uint64(i)*unit >= at && uint64(i)*unit < at+t.parts.Bytes && !listed[part] {
					k.fail("part %d of task %d is not listed and may still change", part, t.index)
				}
			}
		})
	}
	lost := uint64(0)
	for _, s := range k.w.core.batches[t.batch.Slot()].tasks[t.index].missing {
		lost += s.length
	}
	if !t.dirty && lost+t.bytes != t.length {
		k.fail("task %d has %d bytes, misses %d, and has %d in all", t.index, t.bytes, lost, t.length)
	}
}

// opened counts the slices of a task that has just ended dirty as open withdrawals of their peers.
func (k *checker) opened(t *known) {
	for _, p := range k.w.out {
		covers, already := false, false
		for _, u := range k.of(p) {
			covers = covers || u == t
			already = already || (u != t && u.ended && u.dirty)
		}
		if covers && !already {
			k.open[k.links[p.wire.key.link].peer]++
		}
	}
}

func (k *checker) progress(same int) {
	if same > 10000 {
		k.fail("the core spins")
	}
}

// deadlines checks that nobody outlives a deadline by more than the fence bound.
func (k *checker) deadlines() {
	for _, t := range k.tasks {
		if !t.ended && t.deadline != clock.Never && k.w.stepped > max(t.deadline, k.w.frozen).
			Add(k.w.core.options.FenceNetwork+time.Millisecond) {
			if s, err := k.w.core.Status(t.batch, t.index); err == nil && s.State == Pending {
				k.fail("task %d is pending %v after its deadline", t.index, k.w.stepped.Sub(t.deadline))
			}
		}
	}
}
