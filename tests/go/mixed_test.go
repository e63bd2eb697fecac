package tests

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// mixing puts shapes of every kind into one call, to two peers with several regions each.
type mixing struct {
	*testing.T
	*cache
	random *rand.Rand
	peers  []mixedPeer
}

type mixedPeer struct {
	*cache
	free []int    // slots that nothing has been written to
	want [][]byte // by region
	list engine.GridID
}

func newMixing(t *testing.T, w world, random *rand.Rand) *mixing {
	first := newCache(t, w)
	second := newCache(t, w)
	second.here, second.own, second.at = first.here, first.own, segment(t, first.here, second.there, "")
	m := &mixing{T: t, cache: first, random: random}
	for k, c := range []*cache{first, second} {
		p := mixedPeer{cache: c, free: random.Perm(cacheRegions * cacheSlots)}
		for i := range c.theirs {
			fill(c.own[i].bytes, i)
			fill(c.theirs[i].bytes, 100*(k+1)+i)
			p.want = append(p.want, bytes.Clone(c.theirs[i].bytes))
		}
		_, p.list = c.prepare(t, []int64{slotBytes})
		m.peers = append(m.peers, p)
	}
	return m
}

// draw chooses n slots of each side. The far ones have not been chosen before, and are in the expectation afterwards.
func (m *mixing) draw(p *mixedPeer, n int, bytes ...int64) (near, far []int) {
	near, p.free, far = m.random.Perm(cacheRegions * cacheSlots)[:n], p.free[n:], p.free[:n]
	for i := range n {
		copy(p.want[far[i]/cacheSlots][far[i]%cacheSlots*slotBytes:], content(m.own, near[i], int(bytes[i])))
	}
	return near, far
}

// add puts one shape to a peer into a call.
func (m *mixing) add(call *engine.Call, p *mixedPeer) error {
	n := 1 + m.random.IntN(3)
	lengths := make([]int64, n)
	for i := range lengths {
		lengths[i] = int64(1 + m.random.IntN(slotBytes))
	}
	switch kind := m.random.IntN(5); kind {
	case 0, 1: // one range, in a region or by address
		near, far := m.draw(p, 1, lengths...)
		to := engine.Remote{Segment: p.at, Offset: uint64(slot(p.theirs, far[0]))}
		if kind == 0 {
			to.Region, to.Offset = p.offered[far[0]/cacheSlots], uint64(far[0]%cacheSlots*slotBytes)
		}
		return call.AddRange(uintptr(slot(m.own, near[0])), to, uint64(lengths[0]))
	case 2: // ranges by address
		near, far := m.draw(p, n, lengths...)
		return call.AddRanges(&engine.Ranges{N: n, Remote: engine.Remote{Segment: p.at},
			LocalOffsets:  engine.IndexesOf(addresses(m.own, near)),
			RemoteOffsets: engine.IndexesOf(addresses(p.theirs, far)), Bytes: engine.IndexesOf(lengths)})
	case 3: // records
		near, far := m.draw(p, n, lengths...)
		var list []request.Record
		for i := range near {
			list = append(list, record(uintptr(slot(m.own, near[i])), p.at, uint64(slot(p.theirs, far[i])),
				uint64(lengths[i])))
		}
		return call.AddRecords(list)
	}
	for i := range lengths {
		lengths[i] = slotBytes
	}
	near, far := m.draw(p, n, lengths...)
	own, _ := m.prepare(m.T, []int64{slotBytes})
	return call.AddPages(&engine.Pages{Local: own, Remote: p.list, N: n, Src: engine.IndexesOf(wide(near)),
		Dst: engine.IndexesOf(wide(far))})
}

// Each shape of a call goes to the peer and the region that it names, behind shapes of any kind.
func TestEachShapeOfACallGoesWhereItSays(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		m := newMixing(t, w, rand.New(rand.NewPCG(seed, 0)))
		for range 8 {
			call, err := m.here.Begin(engine.Terms{Op: transport.Write})
			require.NoError(t, err)
			for range 10 {
				require.NoError(t, m.add(call, &m.peers[m.random.IntN(len(m.peers))]))
			}
			id, err := call.Commit(nil)
			require.NoError(t, err)
			require.Equal(t, dispatch.Completed, ended(t, m.here, id).State)
			for _, p := range m.peers {
				for i := range p.theirs {
					require.True(t, bytes.Equal(p.want[i], p.theirs[i].bytes), "region %d of %s", i, p.there.Address())
					p.theirs[i].check(t)
				}
			}
		}
	})
}
