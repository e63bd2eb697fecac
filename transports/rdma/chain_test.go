package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// onOneLane gives a rail one queue pair.
func onOneLane(s *Settings) { s.Lanes = 1 }

// chain returns the latest posting of the first lane of a rig's first rail.
func (r *rig) chain(t *testing.T) []verbs.WR {
	t.Helper()
	rail := r.railOfA(t)
	rail.mu.Lock()
	defer rail.unlock()
	return append([]verbs.WR{}, rail.lanes[0].pair.Chain...)
}

// TestSmallSlicesOfAPostingShareALane counts doorbells: one for small slices, and one for each that is large.
func TestSmallSlicesOfAPostingShareALane(t *testing.T) {
	r := newRigOver(t, 1, nil)
	for _, each := range []struct {
		bytes        uint64
		slices, most int
	}{{4 << 10, 8, 1}, {gathered, 3, 3}, {gathered / 4, 12, 3}} {
		r.remote.Fill(before, 0, rigSize)
		var list []*transport.Slice
		for i := range each.slices {
			s := r.slice(t, r.c.Rail(t), uint64(i)*each.bytes, each.bytes)
			s.Class = 1 // of three lanes
			list = append(list, s)
		}
		posts := r.f.Control(t, "posts")
		r.c.Must(t, list...)
		require.Equal(t, each.most, r.f.Control(t, "posts")-posts, "postings of %+v", each)
		whole := uint64(each.slices) * each.bytes
		require.NoError(t, r.remote.Check(moved, 0, 0, whole))
		require.NoError(t, r.remote.Check(before, whole, whole, rigSize-whole))
	}
}

// TestNothingButTheFlushEndsAWRITE looks at a chain of both operations. A completion ends all slices before it.
func TestNothingButTheFlushEndsAWRITE(t *testing.T) {
	r := newRigOver(t, 1, onOneLane)
	rail := r.c.Rail(t)
	var list []*transport.Slice
	both := []transport.Op{transport.Read, transport.Write, transport.Read, transport.Write, transport.Read}
	for i, op := range both {
		at := uint64(i) * 4096
		list = append(list, r.c.Slice(op, rail, r.local, at, r.remote, at, 4096))
	}
	r.c.Must(t, list...)
	require.NoError(t, r.remote.Check(moved, 4096, 4096, 4096))
	require.NoError(t, r.remote.Check(moved, 3*4096, 3*4096, 4096))
	require.NoError(t, r.local.Check(before, 4*4096, 4*4096, 4096))
	chain := r.chain(t)
	flush := chain[len(list)]
	require.Equal(t, verbs.OpRead, flush.Op)
	require.EqualValues(t, 8, flush.Length)
	require.Equal(t, chain[3].Remote, flush.Remote, "of the last WRITE")
	var signaled []bool
	for _, wr := range chain[:len(list)+1] {
		signaled = append(signaled, wr.Flags&verbs.Signaled != 0)
	}
	require.Equal(t, []bool{true, false, false, false, false, true}, signaled)
}

// TestASubmitOfSeveralClassesPostsTheMostUrgentFirst has one lane for all of them.
func TestASubmitOfSeveralClassesPostsTheMostUrgentFirst(t *testing.T) {
	r := newRigOver(t, 1, onOneLane)
	var list []*transport.Slice
	for i, class := range []uint8{2, 1, 0, 2, 0} {
		s := r.slice(t, r.c.Rail(t), uint64(i)*4096, 4096)
		s.Class = class
		list = append(list, s)
	}
	r.c.Must(t, list...)
	require.NoError(t, r.remote.Check(moved, 0, 0, 5*4096))
	chain := r.chain(t)
	for i, which := range []int{2, 4, 1, 0, 3} {
		require.Equal(t, uint64(list[which].Local), chain[i].Local, "place %d", i)
	}
}

// TestEachSliceOfASubmitHasTheKeysOfItsRegions changes one end or both from slice to slice.
func TestEachSliceOfASubmitHasTheKeysOfItsRegions(t *testing.T) {
	r := newRigOver(t, 1, nil)
	const page = 4096
	local := r.a.Register(t, rigSize, mem.LocalReadWrite)
	remote := r.c.Import(t, r.b.Register(t, rigSize, mem.GlobalReadWrite))
	local.Fill(after, 0, rigSize)
	remote.Fill(before, 0, rigSize)
	var list []*transport.Slice
	for i, ends := range []int{0, 1, 3, 3, 2, 0, 2, 1} {
		from, to := r.local, r.remote
		if ends&1 != 0 {
			from = local
		}
		if ends&2 != 0 {
			to = remote
		}
		list = append(list, r.c.Slice(transport.Write, r.c.Rail(t), from, uint64(i)*page, to, uint64(i)*page, page))
	}
	stale := r.slice(t, r.c.Rail(t), 9*page, page)
	stale.LocalKey = 0
	list = append(list[:4], append([]*transport.Slice{stale}, list[4:]...)...)
	require.Equal(t, len(list), r.c.Send(list...))
	for i, end := range r.c.Wait(t, list...) {
		require.Equal(t, i == 4, end.Err != nil, "slice %d: %v", i, end.Err)
	}
	for i, ends := range []int{0, 1, 3, 3, 2, 0, 2, 1} {
		to, other, tag := r.remote, remote, uint64(moved)
		if ends&1 != 0 {
			tag = after
		}
		if ends&2 != 0 {
			to, other = other, to
		}
		at := uint64(i) * page
		require.NoError(t, to.Check(tag, at, at, page), "slice %d", i)
		require.NoError(t, other.Check(before, at, at, page), "beside slice %d", i)
	}
	require.NoError(t, r.remote.Check(before, 9*page, 9*page, page))
}
