package staging

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// The slot is the remote end of our own copy and the local end of the wire, whichever way the bytes go.
func TestARouteIsACopyAndAWire(t *testing.T) {
	way := func(index uint8, op transport.Op, limit, best, align uint64, vectors bool) *plan.Plan {
		r := plan.Route{Transport: index, SliceMax: limit, SliceBest: best, Alignment: align, Vectors: vectors,
			Hops: []plan.Hop{{Link: plan.LinkID(index + 1), Op: op, LocalKey: 1, RemoteKey: 2}}}
		return &plan.Plan{Routes: []plan.Route{r}, Region: "kv"}
	}
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		own, wire := way(3, op, 1<<20, 0, 1, true), way(5, op, 0, 64<<10, 512, true)
		made := Add(nil, false, op, own, wire, 7)
		require.Equal(t, "kv", made.Region)
		require.Len(t, made.Routes, 1)
		r := &made.Routes[0]
		require.EqualValues(t, 5, r.Transport)
		require.Equal(t, plan.LinkID(6), r.Across().Link)
		require.True(t, r.Vectors)
		require.EqualValues(t, []uint64{1 << 20, 64 << 10, 512}, []uint64{r.SliceMax, r.SliceBest, r.Alignment})
		near, far := r.Hops[0], r.Hops[1]
		if op == transport.Read {
			near, far = far, near
		}
		require.Equal(t, [2]plan.StageID{0, 7}, [2]plan.StageID{near.Local, near.Remote})
		require.Equal(t, [2]plan.StageID{7, 0}, [2]plan.StageID{far.Local, far.Remote})

		behind := Add(way(9, op, 0, 0, 1, false), false, op, own, way(5, op, 0, 0, 1, false), 7)
		require.Len(t, behind.Routes, 2)
		require.EqualValues(t, 9, behind.Routes[0].Transport, "the direct way comes first")
		require.False(t, behind.Routes[1].Vectors, "both have to take lists")
		require.Zero(t, wire.Routes[0].Hops[0].Local, "plans are shared, and stay as they are")

		wire.Rejected = []plan.Rejected{{Transport: "b", Reason: "no wire"}}
		alone := Add(&plan.Plan{Rejected: []plan.Rejected{{Transport: "a", Reason: "not direct"}}}, false, op, own,
			wire, 7)
		require.Len(t, alone.Routes, 1)
		require.Equal(t, []plan.Rejected{{Transport: "a", Reason: "not direct"}, {Transport: "b", Reason: "no wire"}},
			alone.Rejected)
	}
}
