package dispatch

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

const unit = 512 // every length and address of the model is a multiple

// known is what the checker knows about one task.
type known struct {
	batch    BatchID
	index    int
	local    uintptr
	length   uint64
	deadline clock.Time
	arrived  []bool // by unit
	there    uint64 // bytes that have arrived
	out      int    // slices outstanding that cover it
	bytes    uint64 // last seen
	ended    bool
	dirty    bool
	state    State
}

// checker holds the promises against what the core does.
type checker struct {
	t       require.TestingT
	seed    uint64
	w       *world
	tasks   []*known // by local address, which only grows
	batches map[BatchID][]*known
	links   map[plan.LinkID]*linkFacts
	stages  map[plan.StageID]*stageFacts
	open    map[uint32]int // by peer: slices that outlived a dirty task
	ids     map[uint64]bool
	ends    map[BatchID]int
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
		if t.local+uintptr(t.length) <= a {
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
	if last := k.tasks[j-1]; last.local+uintptr(last.length) < first+uintptr(length) {
		k.fail("slice beyond the end of its task")
	}
	return k.tasks[i:j]
}

// stageBase is where the stages' addresses begin; a task's are below.
const stageBase = 1 << 50

// subject says which task bytes a slice stands for, and checks that each hop finds in its stage what it was meant for.
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
	for _, t := range k.at(p.first, s.Length) {
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
	first := p.first
	open := false
	for _, t := range k.at(first, s.Length) {
		t.out--
		open = open || (t.ended && t.dirty)
		if bytes == 0 || target >= stageBase {
			continue
		}
		if t.ended && !t.dirty {
			k.fail("bytes of task %d arrive after its end %v", t.index, t.state)
		}
		for a := max(first, t.local); a < min(first+uintptr(bytes), t.local+uintptr(t.length)); a += unit {
			if i := (a - t.local) / unit; !t.arrived[i] {
				t.arrived[i] = true
				t.there += unit
			}
		}
	}
	if open {
		k.open[k.links[p.wire.key.link].peer]--
	}
	if bytes == s.Length && target >= stageBase {
		stage, slot := k.slot(target)
		stage.content[slot] = first
	}
}

// effects looks at every task of the batches that changed.
func (k *checker) effects(e *Effects) {
	for _, id := range e.Ended {
		k.ends[id]++
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
	case s.State == TimedOut && k.w.now < t.deadline:
		k.fail("task %d ended before its deadline", t.index)
	}
	if s.Dirty {
		k.opened(t)
	}
}

// opened counts the slices of a task that has just ended dirty as open withdrawals of their peers.
func (k *checker) opened(t *known) {
	for _, p := range k.w.out {
		covers, already := false, false
		for _, u := range k.at(p.first, p.slice.Length) {
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
		if !t.ended && t.deadline != clock.Never && k.w.now > t.deadline.Add(k.w.core.options.FenceNetwork+time.Millisecond) {
			if s, err := k.w.core.Status(t.batch, t.index); err == nil && s.State == Pending {
				k.fail("task %d is pending %v after its deadline", t.index, k.w.now.Sub(t.deadline))
			}
		}
	}
}

func modelOptions(r *rand.Rand) Options {
	return Options{Failovers: r.IntN(4), Retries: 4 + r.IntN(5), Stall: []time.Duration{150 * time.Millisecond, 2 * time.Second}[r.IntN(2)], FenceHost: 10 * time.Millisecond,
		FenceNetwork: 50 * time.Millisecond, Merge: r.IntN(2) == 0, LinkWait: 60 * time.Millisecond,
		SuspectAfter: 5 * time.Millisecond, CondemnAfter: 40 * time.Millisecond, Transports: []string{"a", "b", "c"}}
}

// model is one random world with its traffic.
type model struct {
	*world
	peers   int
	plans   [][2][]*plan.Plan // by peer and operation
	links   [][]plan.LinkID
	batches []BatchID
	next    uintptr
	left    int
}

func newModel(t require.TestingT, seed uint64) *model {
	r := rand.New(rand.NewPCG(seed, 1))
	m := &model{world: newWorld(seed, modelOptions(r)), next: 1 << 30, left: 5 + r.IntN(25)}
	m.check = &checker{t: t, seed: seed, w: m.world, links: map[plan.LinkID]*linkFacts{}, stages: map[plan.StageID]*stageFacts{},
		ids: map[uint64]bool{}, batches: map[BatchID][]*known{}, open: map[uint32]int{}, ends: map[BatchID]int{}}
	m.peers = 1 + r.IntN(2)
	for p := range m.peers {
		var links []plan.LinkID
		for k := range 1 + r.IntN(3) {
			id := m.core.AddLink(LinkSpec{Peer: uint32(p), PeerName: fmt.Sprint("peer", p), Transport: uint8(k),
				Info: &transport.Info{}, SameHost: k == 0 && r.IntN(2) == 0})
			m.check.links[id] = &linkFacts{uint32(p), uint8(k)}
			links = append(links, id)
			for i := range 1 + r.IntN(3) {
				rail := m.addRail(id, uint16(i), float64(int(1)<<(22+r.IntN(8))), m.between(10*time.Microsecond, 2*time.Millisecond),
					uint64(16+r.IntN(240))<<10, 2+r.IntN(30))
				if r.IntN(3) == 0 {
					rail.failed = r.Float64() * 0.3
				}
				if r.IntN(4) == 0 {
					rail.lost = r.Float64() * 0.05
				}
			}
		}
		m.links = append(m.links, links)
		m.plans = append(m.plans, [2][]*plan.Plan{m.makePlans(r, links, transport.Read), m.makePlans(r, links, transport.Write)})
	}
	m.after(0, m.traffic)
	m.after(m.between(0, 20*time.Millisecond), m.trouble)
	return m
}

// makePlans: every order of direct routes, and one through stages.
func (m *model) makePlans(r *rand.Rand, links []plan.LinkID, op transport.Op) (plans []*plan.Plan) {
	route := func(id plan.LinkID) plan.Route {
		return plan.Route{Transport: m.check.links[id].transport, Hops: []plan.Hop{{Link: id, Op: op}},
			SliceMax: 64 << 10, SliceBest: uint64(4+r.IntN(28)) << 10 / unit * unit, Alignment: unit}
	}
	for i := range links {
		p := &plan.Plan{}
		for k := range links {
			p.Routes = append(p.Routes, route(links[(i+k)%len(links)]))
		}
		plans = append(plans, p)
	}
	var stages [2]plan.StageID
	for i := range stages {
		id := plan.StageID(len(m.core.stages))
		spec := StageSpec{Slots: 2 + r.IntN(6), SlotBytes: 8 << 10, Local: uintptr(id) * stageBase, Remote: uint64(id) * stageBase}
		made, err := m.core.AddStage(spec)
		require.Nil(m.check.t, err)
		require.Equal(m.check.t, id, made)
		m.check.stages[id] = &stageFacts{spec, map[uint64]uintptr{}}
		stages[i] = id
	}
	staged := route(links[0])
	last := links[len(links)-1]
	staged.Hops = []plan.Hop{{Link: links[0], Op: op, Remote: stages[0]}, {Link: last, Op: op, Local: stages[0], Remote: stages[1]},
		{Link: links[0], Op: op, Local: stages[1]}}
	if op == transport.Read {
		for i := range staged.Hops {
			h := &staged.Hops[i]
			h.Local, h.Remote = h.Remote, h.Local
		}
	}
	return append(plans, &plan.Plan{Routes: []plan.Route{staged, route(last)}})
}

// traffic submits, cancels and frees.
func (m *model) traffic() {
	if m.left == 0 {
		return
	}
	m.left--
	n := 1 + m.IntN(12)
	id, err := m.core.NewBatch(n)
	require.Nil(m.check.t, err)
	peer := m.IntN(m.peers)
	op := transport.Op(m.IntN(2))
	p := m.plans[peer][op][m.IntN(len(m.plans[peer][op]))]
	deadline := clock.Never
	if m.IntN(3) == 0 {
		deadline = m.now.Add(m.between(0, 100*time.Millisecond))
	}
	class := uint8(m.IntN(ClassCount))
	var specs []TaskSpec
	for i := range n {
		length := uint64(1+m.IntN(1<<m.IntN(10))) * unit
		if m.IntN(3) > 0 {
			m.next += unit // a gap, so that neighbours do not merge
		}
		specs = append(specs, TaskSpec{Op: op, Class: class, Plan: p, Local: m.next, Remote: uint64(m.next),
			Length: length, Deadline: deadline})
		task := &known{batch: id, index: i, local: m.next, length: length, deadline: deadline, arrived: make([]bool, length/unit)}
		m.check.tasks = append(m.check.tasks, task)
		m.check.batches[id] = append(m.check.batches[id], task)
		m.next += uintptr(length)
	}
	_, err = m.core.Submit(id, specs, m.now)
	require.Nil(m.check.t, err)
	m.batches = append(m.batches, id)
	if m.IntN(4) == 0 {
		first := m.IntN(n)
		m.after(m.between(0, 30*time.Millisecond), func() { _, _ = m.core.Cancel(id, first, m.IntN(n-first+1), m.now) })
	}
	m.after(m.between(0, 8*time.Millisecond), m.traffic)
}

// trouble makes rails and links fall, fall silent and come back.
func (m *model) trouble() {
	if m.calm {
		return
	}
	r := m.rails[m.order[m.IntN(len(m.order))]]
	cause := errs.New(errs.Lost, "sim", "trouble").WithScope(errs.ScopeRail, errs.SidePath)
	switch m.IntN(7) {
	case 0, 1:
		m.fall(r, cause)
		m.after(m.between(0, 200*time.Millisecond), func() { m.raise(r) })
	case 2:
		m.fall(r, nil)
		m.after(m.between(0, 50*time.Millisecond), func() { m.raise(r) })
	case 3, 4:
		r.silent = true
	case 5:
		m.core.DropLink(r.key.link, cause, m.now)
		for _, key := range m.order {
			if key.link != r.key.link {
				continue
			}
			other := m.rails[key]
			m.fall(other, cause)
			m.after(m.between(0, 200*time.Millisecond), func() { m.raise(other) })
		}
	case 6:
		if m.peers == 2 && m.IntN(4) == 0 {
			m.endPeer()
		} else if r.up {
			m.core.Progress(r.key.link, r.id, m.now)
		}
	}
	m.check.deadlines()
	m.after(m.between(0, 30*time.Millisecond), m.trouble)
}

// endPeer ends the incarnation of the second peer and closes its links once they are quiet.
func (m *model) endPeer() {
	m.peers = 1
	m.core.PeerGone(1, errs.New(errs.PeerRestarted, "sim", "the peer has ended"), m.now)
	for _, key := range m.order {
		r := m.rails[key]
		if m.check.links[key.link].peer != 1 {
			continue
		}
		m.fall(r, nil)
		r.dead = true
		m.removeWhenQuiet(key.link)
	}
}

func (m *model) removeWhenQuiet(id plan.LinkID) {
	if m.core.LinkBusy(id) {
		m.after(time.Millisecond, func() { m.removeWhenQuiet(id) })
		return
	}
	m.core.RemoveLink(id)
}

// heal mends the world: rails are up and carry everything; what silent rails have swallowed comes back.
func (m *model) heal() {
	m.calm = true
	for _, key := range m.order {
		r := m.rails[key]
		r.silent = false
		for _, p := range m.outOn(r) {
			m.complete(p, errs.New(errs.Lost, "sim", "healed").WithScope(errs.ScopeRail, errs.SidePath), m.between(0, time.Millisecond))
		}
		m.raise(r)
	}
}

func (m *model) idle() bool { return m.core.Pending() == 0 && m.left == 0 && m.core.Outstanding() == 0 }

func runModel(t require.TestingT, seed uint64) *model {
	m := newModel(t, seed)
	m.run(m.now.Add(m.between(10*time.Millisecond, 400*time.Millisecond)), func() bool { return false })
	m.heal()
	m.run(m.now.Add(20*time.Second), m.idle)
	m.verify()
	return m
}

// verify demands, in a healed world, that everything has ended and that new work completes; then, that nothing is left.
func (m *model) verify() {
	k := m.check
	if !m.idle() {
		k.fail("%d tasks pending, %d slices outstanding in a healed world", m.core.Pending(), m.core.Outstanding())
	}
	for _, t := range k.tasks {
		k.look(t)
		if !t.ended || (t.out != 0) {
			k.fail("task %d: ended %v, %d slices out", t.index, t.ended, t.out)
		}
	}
	for _, id := range m.batches {
		if k.ends[id] != 1 {
			k.fail("batch %#x ended %d times", id, k.ends[id])
		}
	}
	m.left = 1
	before := len(k.tasks)
	m.run(m.now.Add(400*time.Millisecond), func() bool { return false }) // rails that were fenced come back
	for _, key := range m.order {
		m.raise(m.rails[key])
	}
	m.traffic()
	m.run(m.now.Add(20*time.Second), m.idle)
	for _, t := range k.tasks[before:] {
		k.look(t)
		if t.state != Completed && t.state != Canceled && t.state != TimedOut {
			status, _ := m.core.Status(t.batch, t.index)
			k.fail("new task %d in a healed world: %v, %v", t.index, t.state, status.Err)
		}
	}
	for _, id := range m.batches {
		require.Nil(k.t, m.core.FreeBatch(id, m.now))
	}
	m.leaks()
}

func (m *model) leaks() {
	c, k := m.core, m.check
	for _, s := range c.stages[1:] {
		if len(s.free) != s.spec.Slots {
			k.fail("%d of %d stage slots came back", len(s.free), s.spec.Slots)
		}
	}
	if len(c.pieces.free) != c.pieces.total || len(c.tasks.free) != c.tasks.total || len(c.runs.free) != c.runs.total {
		k.fail("records leak: pieces %d of %d, tasks %d of %d, runs %d of %d", len(c.pieces.free), c.pieces.total,
			len(c.tasks.free), c.tasks.total, len(c.runs.free), c.runs.total)
	}
	for _, l := range c.links[1:] {
		if l == nil {
			continue
		}
		if c.LinkBusy(l.id) || l.peer.open != 0 || len(l.retired) != 0 {
			k.fail("link %d is not idle: %s", l.id, c.Explain(l.id))
		}
		for _, r := range l.rails {
			if r.bytes != 0 || r.slices != 0 {
				k.fail("rail %s has %d bytes in flight for ever", r.name(), r.bytes)
			}
		}
	}
}

// TestModel runs random worlds; TENT_SIM_SEEDS says how many, TENT_SIM_SEED which one alone.
func TestModel(t *testing.T) {
	first, n := uint64(1), uint64(2000)
	if s := os.Getenv("TENT_SIM_SEEDS"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		n = v
	}
	if s := os.Getenv("TENT_SIM_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		first, n = v, 1
	} else if testing.Short() {
		n = min(n, 300)
	}
	var ends [Failed + 1]int
	dirty := 0
	for seed := first; seed < first+n; seed++ {
		for _, task := range runModel(t, seed).check.tasks {
			ends[task.state]++
			if task.dirty {
				dirty++
			}
		}
	}
	t.Logf("%d worlds: %d completed, %d failed, %d timed out, %d canceled, %d dirty", n, ends[Completed], ends[Failed],
		ends[TimedOut], ends[Canceled], dirty)
	if n >= 300 { // a model that never comes to these ends proves nothing about them
		require.NotZero(t, ends[Completed]*ends[Failed]*ends[TimedOut]*ends[Canceled]*dirty)
	}
}
