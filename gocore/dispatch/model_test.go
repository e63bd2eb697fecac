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
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

func modelOptions(r *rand.Rand, seed uint64) Options {
	o := Options{Failovers: []int{3, 1, 2, 3}[r.IntN(4)], Retries: 4 + r.IntN(5),
		Stall: []time.Duration{150 * time.Millisecond, 2 * time.Second}[r.IntN(2)], FenceHost: 10 * time.Millisecond,
		FenceNetwork: 50 * time.Millisecond, Merge: r.IntN(2) == 0, LinkWait: 60 * time.Millisecond,
		SuspectAfter: 5 * time.Millisecond, CondemnAfter: 40 * time.Millisecond, Transports: []string{"a", "b", "c"},
		SilentAfter: 30 * time.Millisecond,
		Rails:       slices.Repeat([]RailOptions{{OwnNode: r.IntN(2) == 0}}, 3)}
	for k := range o.Rails { // every third seed on all transports, others on some
		o.Rails[k].ByDeadline = seed%3 == 0 || seed>>k&3 == 3
	}
	return o
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
	inlined int // tasks that a caller has carried out
	late    []*wire

	pausesOnly bool // nothing else goes wrong
}

func newModel(t require.TestingT, seed uint64) *model {
	r := rand.New(rand.NewPCG(seed, 1))
	nics := rand.New(rand.NewPCG(seed, 2))
	options := modelOptions(r, seed)
	nicOptions(nics, &options)
	w := &world{}
	options.Neighbours = w.neighbours(nics.IntN(2) == 0)
	*w = *newWorld(seed, options)
	m := &model{world: w, next: 1 << 30, left: 5 + r.IntN(25)}
	m.check, m.keys = newChecker(t, seed, m.world), newKeys(seed, m.world)
	m.owners = newDescriptors(seed, m)
	m.peers = 1 + r.IntN(2)
	for p := range m.peers {
		var links []plan.LinkID
		for k := range 1 + r.IntN(3) {
			probes := r.IntN(3) > 0
			number := transport.Link(len(m.owners.numbers) + 1)
			id := m.core.AddLink(LinkSpec{Peer: uint32(p), PeerName: fmt.Sprint("peer", p), Transport: uint8(k),
				Link: number, Info: &transport.Info{Vectors: r.IntN(2) == 0, SliceMax: 64 << 10},
				SameHost: k == 0 && r.IntN(2) == 0, Probes: probes})
			m.owners.numbers[number] = id
			m.check.probes[id] = probes
			m.check.links[id] = &linkFacts{uint32(p), uint8(k)}
			links = append(links, id)
			for i := range 1 + r.IntN(3) {
				m.anyRail(r, id, i)
			}
			if nics.IntN(3) == 0 {
				m.after(m.between(0, 150*time.Millisecond), func() { m.lateRail(nics, id) })
			}
		}
		m.links = append(m.links, links)
		m.plans = append(m.plans, [2][]*plan.Plan{m.makePlans(r, links, transport.Read),
			m.makePlans(r, links, transport.Write)})
	}
	m.after(0, m.traffic)
	m.after(m.between(0, 20*time.Millisecond), m.trouble)
	m.after(m.between(0, 40*time.Millisecond), m.owners.replace)
	return m
}

// makePlans: every order of direct routes, and one through stages.
func (m *model) makePlans(r *rand.Rand, links []plan.LinkID, op transport.Op) (plans []*plan.Plan) {
	route := func(id plan.LinkID) plan.Route {
		hop := plan.Hop{Link: id, Op: op, RemoteKey: firstKey}
		m.keys.give(&hop, len(m.core.link(id).rails))
		return plan.Route{Transport: m.check.links[id].transport, Hops: []plan.Hop{hop},
			SliceMax: 64 << 10, SliceBest: uint64(4+r.IntN(28)) << 10 / unit * unit, Alignment: unit}
	}
	for i := range links {
		p := &plan.Plan{Node: r.IntN(3)}
		for k := range links {
			p.Routes = append(p.Routes, route(links[(i+k)%len(links)]))
		}
		plans = append(plans, p)
	}
	var stages [2]plan.StageID
	for i := range stages {
		id := plan.StageID(len(m.core.stages))
		spec := StageSpec{Slots: 2 + r.IntN(6), SlotBytes: 8 << 10, Local: uintptr(id) * stageBase,
			Remote: uint64(id) * stageBase, Shared: r.IntN(2) == 0}
		made, err := m.core.AddStage(spec)
		require.Nil(m.check.t, err)
		require.Equal(m.check.t, id, made)
		m.check.stages[id] = &stageFacts{spec, map[uint64]uintptr{}}
		stages[i] = id
	}
	staged := route(links[0])
	last := links[len(links)-1]
	staged.Hops = []plan.Hop{{Link: links[0], Op: op, Remote: stages[0]},
		{Link: last, Op: op, Local: stages[0], Remote: stages[1]},
		{Link: links[0], Op: op, Local: stages[1], RemoteKey: firstKey}}
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
		task := &known{batch: id, index: i, local: m.next, length: length, window: length, deadline: deadline}
		if m.IntN(3) == 0 {
			m.divide(task)
		}
		task.learn()
		specs = append(specs, TaskSpec{Terms: request.Terms{Op: op, Class: class, Deadline: deadline}, Plan: p,
			Local: m.next, Remote: uint64(m.next),
			Length: task.length, Parts: task.parts, Epoch: m.check.epochs[peer]})
		m.check.tasks = append(m.check.tasks, task)
		m.check.batches[id] = append(m.check.batches[id], task)
		m.next += uintptr(task.window)
	}
	m.batches = append(m.batches, id)
	if held, ok := m.core.Reserve(id, specs, m.now); ok && m.IntN(2) == 0 {
		m.carryOut(held, id, specs)
	} else {
		if ok {
			m.core.Unreserve(&held)
		}
		_, err = m.core.Submit(id, specs, m.now)
		require.Nil(m.check.t, err)
	}
	if m.IntN(4) == 0 {
		first := m.IntN(n)
		m.after(m.between(0, 30*time.Millisecond), func() { _, _ = m.core.Cancel(id, first, m.IntN(n-first+1), m.now) })
	}
	m.after(m.between(0, 8*time.Millisecond), m.traffic)
}

// carryOut plays a caller that copies by itself, and sometimes finds that it cannot.
func (m *model) carryOut(held Reservation, id BatchID, specs []TaskSpec) {
	m.owners.hold(&held, specs)
	m.after(m.between(0, 5*time.Millisecond), func() {
		m.owners.release(&held)
		if m.IntN(4) == 0 {
			m.core.Unreserve(&held)
			for i := range specs { // the owner would refuse them, which this world does not play
				specs[i].Epoch = m.check.epochs[m.check.links[specs[i].Plan.Routes[0].Hops[0].Link].peer]
			}
			_, err := m.core.Submit(id, specs, m.now)
			require.Nil(m.check.t, err)
			return
		}
		m.core.Record(&held, specs, m.now)
		for _, t := range m.check.batches[id] {
			copy(t.arrived, t.mine)
			t.there = t.length
			m.check.look(t)
			m.inlined++
		}
		m.check.ends[id]++
	})
}

// divide gives a task parts in some order, some of them with gaps between them.
func (m *model) divide(t *known) {
	n := 1 + m.IntN(1<<m.IntN(7))
	t.parts = &transport.Pieces{Bytes: uint64(1+m.IntN(1<<m.IntN(6))) * unit}
	places := make([]uint64, n)
	for i := range places {
		places[i] = uint64(i)
	}
	if m.IntN(3) > 0 {
		places = append(places, uint64(n), uint64(n+1)) // two will not be used
		m.Shuffle(n+2, func(i, j int) { places[i], places[j] = places[j], places[i] })
	}
	t.window = uint64(len(places)) * t.parts.Bytes
	for _, at := range places[:n] {
		t.parts.LocalAt = append(t.parts.LocalAt, at*t.parts.Bytes)
	}
	t.parts.RemoteAt, t.length = t.parts.LocalAt, uint64(n)*t.parts.Bytes
}

// learn prepares the books of a task.
func (t *known) learn() {
	t.mine, t.arrived = make([]bool, t.window/unit), make([]bool, t.window/unit)
	if t.parts == nil {
		for i := range t.mine {
			t.mine[i] = true
		}
		return
	}
	for _, at := range t.parts.LocalAt {
		for i := at / unit; i < (at+t.parts.Bytes)/unit; i++ {
			t.mine[i] = true
		}
	}
}

// trouble makes rails and links fall, fall silent and come back.
func (m *model) trouble() {
	if m.calm {
		return
	}
	if m.pausesOnly {
		m.pause(m.IntN(m.peers), 500*time.Millisecond)
		m.after(m.between(0, 100*time.Millisecond), m.trouble)
		return
	}
	r := m.rails[m.order[m.IntN(len(m.order))]]
	cause := errs.New(errs.Lost, "sim", "trouble").WithScope(errs.ScopeRail, errs.SidePath)
	switch m.IntN(14) {
	case 12, 13:
		m.pause(int(m.check.links[r.key.link].peer), 100*time.Millisecond)
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
	case 7, 8: // slow for a while
		r.rate = r.usual / 20
		m.after(m.between(0, 100*time.Millisecond), func() { r.rate = r.usual })
	case 10, 11: // the peer fences its region
		facts := m.check.links[r.key.link]
		m.check.epochs[facts.peer]++
		for _, id := range m.links[facts.peer] { // a plan has some of them
			at := RegionKey{id, keyIn(m.owners.told, id)}
			m.core.Fenced(map[RegionKey]transport.Epoch{at: m.check.epochs[facts.peer]}, m.now)
		}
		m.check.seen["fenced"]++
	case 9: // this process is stopped; news waits meanwhile
		m.frozen = m.now.Add(m.between(0, 60*time.Millisecond))
	case 6:
		if m.peers == 2 && m.IntN(4) == 0 {
			m.endPeer()
		} else if r.up && m.pauseLeft(r.key.link) == 0 {
			m.check.hear(r.key.link)
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

// heal mends the world: rails are up and carry everything; slices that silent rails have swallowed come back.
func (m *model) heal() {
	m.calm, m.paused = true, [peersMax]clock.Time{}
	for _, key := range m.order {
		r := m.rails[key]
		r.silent, r.busy, r.rate = false, m.now, r.usual
		for _, p := range m.outOn(r) {
			m.complete(p, errs.New(errs.Lost, "sim", "healed").WithScope(errs.ScopeRail, errs.SidePath),
				m.between(0, time.Millisecond))
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
	m.core.options.Stall = 2 * time.Second // rails of some MB/s, of which each refuses a key first, may need 150 ms
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
		require.Nil(k.t, m.core.FreeBatch(id))
	}
	m.leaks()
	m.owners.verify()
	for _, r := range m.late {
		if r.carried > 0 {
			k.seen["late rail carries"]++
		}
	}
}

func (m *model) leaks() {
	c, k := m.core, m.check
	for _, s := range c.stages[1:] {
		if len(s.free) != s.spec.Slots {
			k.fail("%d of %d stage slots came back", len(s.free), s.spec.Slots)
		}
	}
	if c.pieces.Free() != c.pieces.Total() || c.tasks.Free() != c.tasks.Total() || c.runs.Free() != c.runs.Total() {
		k.fail("records leak: pieces %d of %d, tasks %d of %d, runs %d of %d", c.pieces.Free(), c.pieces.Total(),
			c.tasks.Free(), c.tasks.Total(), c.runs.Free(), c.runs.Total())
	}
	for _, l := range c.links[1:] {
		if l == nil {
			continue
		}
		for class := range l.queues {
			if l.queues[class].bytes != 0 {
				k.fail("link %d counts %d bytes that wait in an empty queue", l.id, l.queues[class].bytes)
			}
		}
		if c.LinkBusy(l.id) || l.peer.open != 0 || len(l.retired) != 0 {
			k.fail("link %d is not idle: %s", l.id, c.Explain(l.id))
		}
		for _, r := range l.rails {
			if r != nil && (r.low != 0 || !r.device.idle()) {
				k.fail("NIC %v is not idle", r.device.key)
			}
			if r != nil && (r.bytes != 0 || r.slices != 0) {
				k.fail("rail %s has %d bytes in flight for ever", r.name(), r.bytes)
			}
		}
	}
}

// modelSeeds returns the first seed and the number of worlds. TENT_SIM_SEEDS says how many, TENT_SIM_SEED which one
// alone.
func modelSeeds(t *testing.T, standard uint64) (first, n uint64) {
	first, n = 1, standard
	if s := os.Getenv("TENT_SIM_SEEDS"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		n = v
	}
	if s := os.Getenv("TENT_SIM_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		return v, 1
	}
	if testing.Short() {
		n = min(n, 300)
	}
	return first, n
}

// TestModel runs random worlds.
func TestModel(t *testing.T) {
	first, n := modelSeeds(t, 2000)
	var ends [Failed + 1]int
	dirty := 0
	seen := map[string]int{}
	for seed := first; seed < first+n; seed++ {
		m := runModel(t, seed)
		seen["carried out by callers"] += m.inlined
		for _, task := range m.check.tasks {
			ends[task.state]++
			if task.dirty {
				dirty++
			}
		}
		for what, times := range m.check.seen {
			seen[what] += times
		}
		seen["hedged"] += int(m.core.hedged)
		for k := range m.core.counters {
			for class := range ClassCount {
				seen["slot waits"] += int(m.core.counters[k][class].SlotWaits)
			}
		}
		seen["ordered by deadline"] += int(m.core.arrivals)
		for _, k := range m.core.counters {
			for class := range k {
				seen["not sent, hopeless"] += int(k[class].Infeasible)
				seen["missed waiting"] += int(k[class].Misses[MissedQueued])
				seen["missed on the way"] += int(k[class].Misses[MissedSent])
			}
		}
	}
	t.Logf("%d worlds: %d completed, %d failed, %d timed out, %d canceled, %d dirty; %v", n,
		ends[Completed], ends[Failed], ends[TimedOut], ends[Canceled], dirty, seen)
	if n >= 300 { // a model that never comes to these ends proves nothing about them
		require.NotZero(t, ends[Completed]*ends[Failed]*ends[TimedOut]*ends[Canceled]*dirty)
		for _, what := range []string{"promoted", "slot waits", "NIC windows", "doubt", "probe", "fenced",
			"carried out by callers", "hedged", "rail_suspected", "rail_paused", "rail_probed", "rail_recovered",
			"ordered by deadline", "missed waiting", "missed on the way", "deadline_missed",
			"rail_condemned", "failover", "failover_exhausted", "withdrawn", "stalled", "peer_gone", "peer_silent",
			"peer_back", "paused",
			"refused key", "set aside", "late rail carries", "descriptor replaced", "replaced key refused",
			"forgotten key refused",
			"description asked for", "key retired"} {
			require.NotZero(t, seen[what], what)
		}
	}
	if n >= 1000 { // rare: the rates of all rails of all routes must be known. deadline_test.go shows it by itself
		require.NotZero(t, seen["not sent, hopeless"])
	}
}
