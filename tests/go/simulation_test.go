package tests

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

// The simulation of whole engines: several cores, each with two transports of one simulated network, in one thread and
// in virtual time. A seed decides everything: each move, its time, and each fault. The byte oracle looks at each
// destination when its task ends and again at the end of the run; sources are overwritten as soon as their task has
// ended.
//
// After the random phase the world is healed, and every engine that is left must make progress.

// simSeeds is how many runs a test makes: make sim SEEDS=n asks for more.
func simSeeds(standard int) (first, n int) {
	first = 1
	if s, err := strconv.Atoi(os.Getenv("TENT_SIM_FIRST")); err == nil {
		first = s
	}
	if s, err := strconv.Atoi(os.Getenv("TENT_SIM_SEEDS")); err == nil {
		return first, s
	}
	return first, standard
}

func TestSimulationOfWholeEnginesKeepsEveryPromise(t *testing.T) {
	first, n := simSeeds(1500)
	arena := memory(t, simArena)
	seen = map[string]int{}
	for seed := first; seed < first+n; seed++ {
		if !runSeed(t, uint64(seed), arena) {
			t.Fatalf("seed %d failed: run it alone with TENT_SIM_FIRST=%d TENT_SIM_SEEDS=1", seed, seed)
		}
	}
	t.Logf("%d runs from seed %d: %v", n, first, seen)
	for _, what := range []string{"COMPLETED", "CANCELED", "TIMEOUT", "FAILED", "dirty", "rerouted", "failover",
		"restart",
		"rail_suspected", "rail_paused", "rail_probed", "rail_recovered", "rail_condemned", "withdrawn", "peer_gone",
		"peer_silent", "peer_back",
		"pages of a failed transfer", "began before a fence", "ended by a fence",
		"rekeyed while transfers ran", "refused as replaced", "key forgotten",
		"keys of some rails", "refused on a rail"} {
		if n >= 1000 {
			require.NotZero(t, seen[what], "no run has seen it, so nothing was proved about it: %s", what)
		}
	}
}

// seen counts the cases that the runs met: a simulation that never meets a case proves nothing about it.
var seen map[string]int

const (
	simEngines = 3
	simSlots   = 24       // places of transfers in one engine's memory
	simSlot    = 24 << 10 // bytes
	simArena   = simEngines * 2 * simSlots * simSlot
	simActions = 60
)

// runSeed makes one run and reports whether every promise held.
func runSeed(t *testing.T, seed uint64, arena []byte) bool {
	return t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
		r := newSimRun(t, seed, arena, simEngines, everybody)
		for range simActions {
			r.act()
			r.advance(clock.Time(r.random.IntN(int(3 * time.Millisecond))))
		}
		r.heal()
		r.settle("after the world was healed")
		r.demandProgress()
		r.secondLook()
	})
}

// simRun is one run.
type simRun struct {
	t       *testing.T
	random  *rand.Rand
	network *sim.Network
	seed    uint64
	engines []*simEngine
	moves   []*simMove
	stopped map[*simEngine]bool
	calls   []simCall

	arena        []byte
	incarnations []uint64          // how often an engine was opened at each place
	near         func(i int) []int // the places of the peers of each place
}

// simMove is one transfer with its places.
type simMove struct {
	engine, peer *simEngine
	spec         dispatch.TaskSpec
	batch        dispatch.BatchID
	source       []byte
	destination  []byte
	kind         int    // of the pattern
	want         []byte // the destination of a transfer of pages when all have arrived
	bytes        uint64 // as reported last
	ended        bool
	state        dispatch.State
	dirty        bool
	after        []byte // the destination when the task ended
	fenced       []byte // the destination when the peer fenced it; nil: it did not
	deadline     clock.Time
}

// everybody is the near of a small world.
func everybody(i int) (list []int) {
	for k := range simEngines {
		if k != i {
			list = append(list, k)
		}
	}
	return list
}

func newSimRun(t *testing.T, seed uint64, arena []byte, count int, near func(int) []int) *simRun {
	r := &simRun{t: t, random: rand.New(rand.NewPCG(seed, 1)), network: sim.New(seed), seed: seed, arena: arena,
		stopped: map[*simEngine]bool{}, incarnations: make([]uint64, count), near: near}
	r.network.Advance(uptime(seed))
	for i := range count {
		r.engines = append(r.engines, newSimEngine(t, r, i, r.part(i)))
	}
	for i, e := range r.engines {
		for _, k := range near(i) {
			e.attach(r.engines[k])
		}
	}
	return r
}

// uptime is the clock at the begin of a run: from a second to half a year, as machines have it. A reading that is
// compared with the zero of "never" is a mistake that only some of them show.
func uptime(seed uint64) clock.Time {
	random := rand.New(rand.NewPCG(seed, 0x7570))
	return clock.Time(time.Second)<<random.IntN(24) + clock.Time(random.Int64N(int64(time.Second)))
}

// part is the memory of the engine at a place.
func (r *simRun) part(i int) []byte {
	size := len(r.arena) / len(r.incarnations)
	return r.arena[i*size:][:size]
}

// act does one random thing: mostly a transfer, sometimes a fault, a repair or a cancel.
func (r *simRun) act() {
	place := r.random.IntN(len(r.engines))
	near := r.near(place)
	e, p := r.engines[place], r.engines[near[r.random.IntN(len(near))]]
	where := sim.Between(e.address, p.address).On(r.random.IntN(4) - 1)
	where.Transport = []string{"fast", "slow", ""}[r.random.IntN(3)]
	switch dice := r.random.IntN(100); {
	case dice < 56:
		if e != p && !e.dead {
			r.move(e, p)
		}
	case dice < 58:
		if !p.dead && !r.stopped[p] {
			r.replace(p)
		}
	case dice < 60:
		if e != p && !p.dead && !r.stopped[p] {
			r.fence(e, p)
		}
	case dice < 86:
		r.disturb(dice-60, where)
	case dice < 94:
		if n := len(r.moves); n > 0 {
			r.cancel(r.moves[r.random.IntN(n)])
		}
	case dice < 96:
		r.network.Stop(e.address)
		r.stopped[e] = true
	case dice < 99:
		r.network.Continue(e.address)
		delete(r.stopped, e)
	default:
		if e.dead {
			r.restart(e)
		} else {
			r.kill(e)
		}
	}
	r.runAll()
	r.look()
}

// move submits one transfer between two places that nobody else uses.
func (r *simRun) move(e, p *simEngine) {
	if e.peers[p] == nil { // it had ended when this engine was opened
		return
	}
	mine, theirs := e.take(true), p.take(false)
	if mine < 0 || theirs < 0 {
		e.giveBack(true, mine)
		p.giveBack(false, theirs)
		return
	}
	length := 1 + r.random.IntN(simSlot)
	if r.random.IntN(3) == 0 {
		length = 1 + r.random.IntN(256)
	}
	m := &simMove{engine: e, peer: p, kind: len(r.moves) + 1, deadline: clock.Never}
	local, remote := e.slot(true, mine)[:length], p.slot(false, theirs)[:length]
	op := transport.Op(r.random.IntN(2))
	m.source, m.destination = local, remote
	if op == transport.Read {
		m.source, m.destination = remote, local
	}
	fill(m.source, m.kind)
	clear(m.destination)
	parts := r.pages(m, op)
	if parts != nil {
		length = len(parts.LocalAt) * int(parts.Bytes)
	}
	if r.random.IntN(4) == 0 {
		m.deadline = r.network.Now() + clock.Time(r.random.IntN(int(20*time.Millisecond)))
	}
	m.spec = dispatch.TaskSpec{Terms: request.Terms{Op: op, Class: uint8(r.random.IntN(3)), Deadline: m.deadline},
		Plan: e.plan(r.t, p, op), Local: address(local),
		Remote: uint64(theirs * simSlot), Length: uint64(length), Parts: parts, Epoch: e.peers[p].epoch}
	batch, err := e.core.NewBatch(1)
	require.Nil(r.t, err)
	_, err = e.core.Submit(batch, []dispatch.TaskSpec{m.spec}, r.network.Now())
	require.Nil(r.t, err)
	m.batch, e.asked = batch, true
	e.moves[batch] = m
	r.moves = append(r.moves, m)
}

// fence makes an owner fence its area, for one peer or for all. The bytes of transfers of before may not change there
// any more, and the sources of READs are overwritten at once: no byte of after the fence may arrive.
func (r *simRun) fence(e, owner *simEngine) {
	owner.fences++
	whom := &e.identity
	if r.random.IntN(2) == 0 {
		whom = nil
	}
	for k, tr := range owner.transports {
		require.NoError(r.t, tr.Revoke(context.Background(), owner.keys[1][k], whom, owner.fences))
	}
	for _, m := range r.moves {
		if m.peer != owner || whom != nil && m.engine != e || m.fenced != nil || m.ended && !m.dirty {
			continue
		}
		seen["began before a fence"]++
		if m.spec.Op == transport.Write {
			m.fenced = append([]byte{}, m.destination...)
		} else {
			fill(m.source, -m.kind)
			m.fenced = []byte{}
		}
	}
}

// unmoved checks that a fenced transfer has not written since.
func (r *simRun) unmoved(m *simMove) {
	if m.fenced != nil && m.spec.Op == transport.Write {
		require.True(r.t, bytes.Equal(m.fenced, m.destination), "WRITE %d began before a fence and landed after it",
			m.kind)
	}
}

// pages makes every third transfer one of pages in two different orders, with gaps.
func (r *simRun) pages(m *simMove, op transport.Op) *transport.Pieces {
	size := 1 << r.random.IntN(13)
	places := len(m.source) / size
	if places < 2 || r.random.IntN(3) > 0 {
		return nil
	}
	n := 1 + r.random.IntN(min(places, 200))
	p := &transport.Pieces{Bytes: uint64(size)}
	here, there := r.random.Perm(places)[:n], r.random.Perm(places)[:n]
	if r.random.IntN(3) == 0 { // runs of neighbours, which share slices where pieces are not known
		slices.Sort(here)
		slices.Sort(there)
	}
	m.want = make([]byte, len(m.destination))
	for i := range n {
		from, to := here[i]*size, there[i]*size
		if op == transport.Read {
			from, to = to, from
		}
		copy(m.want[to:to+size], m.source[from:])
		p.LocalAt, p.RemoteAt = append(p.LocalAt, uint64(here[i]*size)), append(p.RemoteAt, uint64(there[i]*size))
	}
	return p
}

// missing checks that pages which are not named are complete, and that nothing lies between pages.
func (r *simRun) missing(m *simMove) {
	p := m.spec.Parts
	if p == nil {
		return
	}
	at := p.RemoteAt
	if m.spec.Op == transport.Read {
		at = p.LocalAt
	}
	rest := append([]byte(nil), m.destination...)
	lost := map[int]bool{}
	require.Nil(r.t, m.engine.core.Missing(m.batch, 0, func(part int) { lost[part] = true }))
	require.NotEmpty(r.t, lost)
	for i, begin := range at {
		if !lost[i] {
			require.Equal(r.t, m.want[begin:begin+p.Bytes], m.destination[begin:begin+p.Bytes],
				"page %d is not named and not there", i)
			seen["pages of a failed transfer"]++
		}
		clear(rest[begin : begin+p.Bytes])
	}
	require.Equal(r.t, make([]byte, len(rest)), rest, "bytes between pages")
}

func (r *simRun) cancel(m *simMove) {
	if m.ended || m.engine.dead {
		return
	}
	_, err := m.engine.core.Cancel(m.batch, 0, 1, r.network.Now())
	require.Nil(r.t, err)
	m.engine.asked = true
}

// runAll runs every engine that is not stopped until none has work at this moment.
func (r *simRun) runAll() {
	for busy := true; busy; {
		busy = false
		r.answerCalls()
		for _, e := range r.engines {
			if !e.dead && !r.stopped[e] && e.step(r) {
				busy = true
			}
		}
	}
}

// advance lets virtual time pass, with a step of each engine whenever something is due.
func (r *simRun) advance(by clock.Time) {
	until := r.network.Now() + by
	for {
		r.runAll()
		next := min(r.network.NextEvent(), r.nextCall(), until)
		for _, e := range r.engines {
			if !e.dead && !r.stopped[e] {
				next = min(next, e.due)
			}
		}
		r.network.Advance(max(next, r.network.Now()+1))
		if r.network.Now() >= until {
			r.runAll()
			return
		}
	}
}

func (r *simRun) heal() {
	for _, e := range r.engines {
		r.network.Continue(e.address)
		delete(r.stopped, e)
	}
	r.network.Shape(sim.Anywhere, sim.Shape{Rate: 1e9, Delay: 20 * time.Microsecond})
	r.network.Heal(sim.Anywhere)
	r.network.Up(sim.Anywhere)
}

// settle demands that everything ends: every wait has a bound.
func (r *simRun) settle(when string) {
	for range 400 {
		if r.pending() == 0 {
			return
		}
		r.advance(clock.Time(time.Second))
	}
	for _, m := range r.moves {
		if !m.ended && !m.engine.dead {
			s, _ := m.engine.core.Status(m.batch, 0)
			r.t.Errorf("batch %d: %v of %d bytes from %s to %s never ended %s: %+v", m.batch, m.spec.Op, m.spec.Length,
				m.engine.address, m.peer.address, when, s)
			for _, to := range m.engine.links {
				r.t.Log(m.engine.core.Explain(to.id))
			}
		}
	}
	r.t.FailNow()
}

func (r *simRun) pending() (n int) {
	for _, m := range r.moves {
		if !m.ended && !m.engine.dead {
			n++
		}
	}
	return n
}

// demandProgress submits a transfer of each class between all that live; every one must be COMPLETED.
func (r *simRun) demandProgress() {
	r.advance(clock.Time(400 * time.Second)) // longer than the longest pause of a rail
	from := len(r.moves)
	for i, e := range r.engines {
		for _, k := range r.near(i) {
			if p := r.engines[k]; !e.dead && !p.dead {
				r.move(e, p)
			}
		}
	}
	r.settle("in a healthy world")
	for _, m := range r.moves[from:] {
		if m.deadline == clock.Never {
			s, _ := m.engine.core.Status(m.batch, 0)
			require.Equal(r.t, dispatch.Completed, m.state, "in a healthy world: %+v", s)
		}
	}
}

// end takes note of a task's end: the oracle's first look.
func (r *simRun) end(m *simMove, s dispatch.Status) {
	require.False(r.t, m.ended, "a task ended twice")
	r.unmoved(m)
	if m.fenced != nil && s.Err != nil && strings.Contains(s.Err.Error(), "fenced") {
		seen["ended by a fence"]++
	}
	m.ended, m.state, m.dirty = true, s.State, s.Dirty
	seen[s.State.String()]++
	for what, happened := range map[string]bool{"dirty": s.Dirty,
		"rerouted": int(s.Attempts) > 1+int((m.spec.Length-1)/(4<<10)), "failover": s.Failovers > 0} {
		if happened {
			seen[what]++
		}
	}
	if s.State == dispatch.Completed {
		require.Equal(r.t, m.spec.Length, s.Bytes)
		if m.want != nil {
			require.Equal(r.t, m.want, m.destination)
		} else {
			same(r.t, m.destination, m.kind, 0)
		}
	} else {
		r.missing(m)
		require.NotNil(r.t, s.Err, "a task that is %s must say why", s.State)
	}
	m.after = append([]byte(nil), m.destination...)
	fill(m.source, -m.kind) // bytes of a source that was used again must never travel
}
