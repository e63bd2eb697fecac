package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// onNodes adds a link with rails on these NUMA nodes, and windows of two slices.
func (r *rig) onNodes(nodes ...int) plan.LinkID {
	id := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Info: &transport.Info{}, Probes: true})
	for i := range nodes {
		r.upOn(id, i, 1, nodes[i])
	}
	return id
}

func (r *rig) upOn(id plan.LinkID, index, generation, node int) {
	r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, index, generation), Local: string(rune('a' + index)),
		Remote:   string(rune('A' + index)),
		BytesMax: 128 * kib, Bandwidth: 1e9, Node: node}, r.now)
}

// from is a plan for memory on a NUMA node; -1 is one that is not known.
func from(c *Core, node int, link plan.LinkID) *plan.Plan {
	p := to(c, link)
	p.Node = node + 1
	return p
}

// taken lists the rails of the slices that are out, in the order of handing out.
func (r *rig) taken() (rails []int) {
	for _, s := range r.out {
		rails = append(rails, int(s.Rail.Index))
	}
	return rails
}

func TestTheNearRailComesFirstAndOthersHelp(t *testing.T) {
	for _, c := range []struct {
		name   string
		rails  []int
		memory int
		want   [2]int // of two slices
	}{
		{"memory of node 1", []int{0, 1}, 1, [2]int{1, 1}},
		{"memory of node 0", []int{1, 0}, 0, [2]int{1, 1}},
		{"node 0 beside one that is not known", []int{-1, 0}, 0, [2]int{1, 1}},
		{"memory without a node", []int{0, 1}, -1, [2]int{0, 1}},
		{"memory of a node without rails", []int{0, 1}, 2, [2]int{0, 1}},
		{"all on one node", []int{1, 1}, 1, [2]int{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Options{})
			p := from(r.core, c.memory, r.onNodes(c.rails...))
			r.submit(p, High, 128*kib, clock.Never)
			require.Equal(t, c.want[:], r.taken())
			r.submit(p, High, 128*kib, clock.Never)
			require.ElementsMatch(t, []int{0, 0, 1, 1}, r.taken(), "what the near one has no room for")
		})
	}
}

// ownNode is allow_cross_numa = false.
func ownNode() Options { return Options{Rails: []RailOptions{{OwnNode: true}}} }

func TestRailsOfOtherNodesStayAwayIfTheyMust(t *testing.T) {
	for _, c := range []struct {
		name   string
		rails  []int
		memory int
		want   []int // of four slices, while windows of two are full
	}{
		{"memory of node 1", []int{0, 1}, 1, []int{1, 1}},
		{"memory of node 0", []int{0, 1}, 0, []int{0, 0}},
		{"a rail that does not know its node takes everything", []int{-1, 0, 1}, 1, []int{2, 2, 0, 0}},
		{"memory without a node goes everywhere", []int{0, 1}, -1, []int{0, 1, 0, 1}},
		{"no NIC on the node of the memory", []int{0, 1}, 2, []int{0, 1, 0, 1}},
		{"nodes beyond those that are told apart", []int{0, 64}, 64, []int{0, 1, 0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, ownNode())
			r.submit(from(r.core, c.memory, r.onNodes(c.rails...)), High, 256*kib, clock.Never)
			require.ElementsMatch(t, c.want, r.taken())
			r.drain()
		})
	}
}

func TestARailPassesOverWhatBelongsToAnotherNode(t *testing.T) {
	r := newRig(t, ownNode())
	link := r.onNodes(0, 1)
	const here, there = 1 << 20, 1 << 30
	submit := func(node int, local uintptr, length uint64) BatchID {
		return r.submitAll(TaskSpec{Terms: request.Terms{Op: transport.Write, Class: High}, Plan: from(r.core, node,
			link), Local: local, Remote: uint64(local),
			Length: length})
	}
	first := submit(1, there, 1<<20)
	require.Equal(t, []int{1, 1}, r.taken())
	second := submit(0, here, 256*kib)
	require.Equal(t, []int{1, 1, 0, 0}, r.taken(), "the other node's task does not wait behind it")
	r.finish(0, broken(errs.ScopeSlice)) // a piece of node 1 waits for its retry in front of all
	r.wait(ms)
	for i := 0; len(r.out) > 0; i++ {
		require.Less(t, i, 100)
		require.Equal(t, r.out[0].Local >= there, r.out[0].Rail.Index == 1)
		r.finish(0, nil)
	}
	require.Equal(t, []State{Completed, Completed}, []State{r.status(first).State, r.status(second).State})
}

func TestOtherNodesHelpWhenTheOwnOneHasNoRailLeft(t *testing.T) {
	r := newRig(t, ownNode())
	link := r.onNodes(0, 1)
	p := from(r.core, 1, link)
	b := r.submit(p, High, 1<<20, clock.Never)
	require.Equal(t, []int{1, 1}, r.taken())
	r.core.RailDown(link, railOf(link, 1, 1), broken(errs.ScopeRail), r.now)
	r.step()
	require.Equal(t, []int{1, 1, 0, 0}, r.taken(), "nobody waits for a NIC that is gone while there is a path")
	r.finish(0, broken(errs.ScopeRail))
	r.finish(0, broken(errs.ScopeRail))
	r.upOn(link, 1, 2, 1)
	r.step()
	r.finish(0, nil)
	r.finish(0, nil)
	require.NotEmpty(t, r.out)
	require.NotContains(t, r.taken(), 0, "the own rail is back")
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

// A piece that its own rail has failed must not wait for a rail that will never take it.
func TestAPieceOfOneNodeIsRetriedThere(t *testing.T) {
	r := newRig(t, ownNode())
	link := r.onNodes(0, 1)
	b := r.submit(from(r.core, 1, link), High, 64*kib, clock.Never)
	for range 2 {
		require.Equal(t, []int{1}, r.taken())
		r.finish(0, broken(errs.ScopeRail))
		for i := 0; len(r.out) == 0; i++ {
			require.Less(t, i, 100)
			r.wait(ms)
		}
	}
	require.Equal(t, []int{1}, r.taken())
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}
