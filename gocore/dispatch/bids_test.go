package dispatch

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// The kept bids give every slice to the rail that would win if all rails were asked for every slice. Two cores get the
// same random traffic, and one of them forgets its bids before each slice. Its rails are asked more often, and note
// more often that they had no room, so it takes the meters of the other one after each act.
func TestKeptBidsChooseAsAskingEveryRailDoes(t *testing.T) {
	for seed := range uint64(100) {
		lazy, eager := newBidders(t, seed), newBidders(t, seed)
		eager.core.auction.forgets = true
		for range 150 {
			lazy.act()
			eager.act()
			require.Equal(t, eager.taken(), lazy.taken(), "seed %d", seed)
			eager.measureAs(lazy)
		}
		require.NotEmpty(t, lazy.log, "seed %d", seed)
	}
}

// bidders is a core with a few unequal rails and random tasks.
type bidders struct {
	*rig
	link   plan.LinkID
	random *rand.Rand
	log    []transport.Rail
	spec   TaskSpec
}

func newBidders(t *testing.T, seed uint64) *bidders {
	random := rand.New(rand.NewPCG(seed, 80))
	r := newRig(t, Options{Merge: random.IntN(2) == 0, Rails: []RailOptions{{OwnNode: random.IntN(4) == 0}}})
	r.now = uptime(seed) // both the same
	id := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Info: &transport.Info{Vectors: random.IntN(2) == 0}})
	for i := range 2 + random.IntN(7) {
		name := string(rune('a' + i))
		r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, i, 1), Local: name, Remote: name,
			Device: string(rune('A' + i/(1+random.IntN(3)))), Node: random.IntN(3) - 1,
			BytesMax:  uint64(1+random.IntN(40)) << 15,
			SlicesMax: 2 + random.IntN(30), Bandwidth: float64(1+random.IntN(20)) * 1e9}, r.now)
	}
	return &bidders{rig: r, link: id, random: random, spec: TaskSpec{Plan: from(r.core, random.IntN(3)-1, id)}}
}

// act submits something or completes something.
func (b *bidders) act() {
	b.now = b.now.Add(time.Duration(b.random.IntN(300)) * time.Microsecond)
	if len(b.out) > 0 && b.random.IntN(3) > 0 {
		failure := broken([]errs.Scope{errs.ScopeSlice, errs.ScopeRail}[b.random.IntN(2)])
		if b.random.IntN(10) > 0 {
			failure = nil
		}
		b.finish(b.random.IntN(len(b.out)), failure)
		return
	}
	specs := make([]TaskSpec, 1+b.random.IntN(6))
	class := uint8(b.random.IntN(ClassCount))
	for i := range specs {
		specs[i] = b.spec
		specs[i].Terms = request.Terms{Op: transport.Write, Class: class, Deadline: clock.Never}
		specs[i].Local, specs[i].Remote = uintptr(1+b.random.IntN(1000))<<24, uint64(1+b.random.IntN(1000))<<24
		specs[i].Length = 1 + b.random.Uint64N(1<<b.random.IntN(22))
		if n := uint64(1 + b.random.IntN(16)); b.random.IntN(4) == 0 {
			specs[i].Length = n * 4 * kib
			specs[i].Parts = &transport.Pieces{LocalAt: places(0, n, 8*kib), RemoteAt: places(0, n, 8*kib),
				Bytes: 4 * kib}
		}
	}
	b.submitAll(specs...)
}

// measureAs takes the meters of another core's rails and NICs.
func (b *bidders) measureAs(other *bidders) {
	ours, theirs := b.core.link(b.link), other.core.link(other.link)
	for i, r := range ours.rails {
		if like := theirs.rails[i]; r.device != nil {
			r.meter, r.device.meter = like.meter, like.device.meter
		}
	}
}

// taken lists the names, rails and lengths of the slices that are out.
func (b *bidders) taken() (list [][3]uint64) {
	for _, s := range b.out {
		list = append(list, [3]uint64{s.Id, uint64(s.Rail.Index), s.Length})
	}
	if len(b.out) > 0 {
		b.log = append(b.log, b.out[len(b.out)-1].Rail)
	}
	return list
}

// A rail that is far counts as slower by its factor, and no more than that.
func TestAFarRailHelpsWhenTheNearOneWouldTakeLonger(t *testing.T) {
	for _, c := range []struct {
		name      string
		penalties [3]float64
		want      []int // rails of the first eight slices, at 1 GB/s each
	}{
		{"upstream's", [3]float64{1, 5, 10}, []int{1, 1, 1, 1, 0, 1, 1, 1}},
		{"no distance counts", [3]float64{1, 1, 1}, []int{0, 1, 0, 1, 0, 1, 0, 1}},
		{"twice", [3]float64{1, 2, 2}, []int{1, 0, 1, 1, 0, 1, 1, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Options{Rails: []RailOptions{{Penalties: c.penalties}}})
			id := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Info: &transport.Info{}})
			for i := range 2 {
				r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, i, 1), Local: string(rune('a' + i)),
					BytesMax: 4 << 20, Bandwidth: 1e9, Node: i}, r.now)
			}
			r.submit(from(r.core, 1, id), High, 8*64*kib, clock.Never)
			slices.SortFunc(r.out, func(a, b *transport.Slice) int { return cmp.Compare(a.Id, b.Id) })
			require.Equal(t, c.want, r.taken())
			r.drain()
		})
	}
}

// Each transport has its own limit of silence.
func TestSuspicionIsASettingOfEachTransportsRails(t *testing.T) {
	r := newRig(t, Options{SuspectAfter: 50 * ms, CondemnAfter: 500 * ms,
		Rails: []RailOptions{{SuspectAfter: 2 * ms}, {}}})
	for transports, limit := range []time.Duration{2 * ms, 50 * ms} {
		id := r.link(uint32(transports), uint8(transports), 1, 1<<20)
		r.submit(to(r.core, id), High, 64*kib, clock.Never)
		r.wait(100 * time.Microsecond) // a first delivery: the rail's silence is known
		r.finish(0, nil)
		rail := r.core.links[id.Slot()].rails[0]
		require.Equal(t, limit, rail.link.options.SuspectAfter)
		r.submit(to(r.core, id), High, 64*kib, clock.Never)
		r.wait(limit - ms)
		require.Empty(t, r.doubts, "after %v", limit-ms)
		r.wait(2 * ms)
		require.NotEmpty(t, r.doubts, "after %v", limit+ms)
		r.drain()
	}
}
