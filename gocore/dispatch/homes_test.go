package dispatch

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// scattered submits six parts by address, which the region of before refuses, and gives them two homes.
func scattered(r *rig, terms func(s *TaskSpec)) (b BatchID, homes []Home) {
	r.Helper()
	first, second := r.paged(true, 1<<20), r.paged(true, 1<<20)
	spec := withParts(to(r.core, first), kib, places(0, 6, kib), places(0, 6, 10*kib))
	spec.ByAddress = true
	if terms != nil {
		terms(&spec)
	}
	b = r.submitAll(spec)
	r.refuse(gone())
	require.Len(r, r.astray, 1)
	for i, at := range r.astray[0].Parts {
		require.EqualValues(r, 1<<30+i*10*kib, at)
	}
	return b, []Home{{Plan: to(r.core, first), Parts: []uint32{1, 3, 5}, At: []uint64{100, 300, 500}},
		{Plan: to(r.core, second), Parts: []uint32{0, 4, 2}, At: []uint64{7000, 7400, 7200}}}
}

func (r *rig) move(homes []Home) []*transport.Slice {
	r.core.Relocate(&r.astray[0], homes, nil, r.now)
	return r.step()
}

func TestPartsMoveToOneRegionAfterAnother(t *testing.T) {
	r := newRig(t, Options{})
	b, homes := scattered(r, nil)
	for i, want := range homes {
		var out []*transport.Slice
		if i == 0 {
			out = r.move(homes)
		} else {
			out = r.finish(0, nil)
		}
		require.Len(t, out, 1, "the next region waits for the last slice of the one before")
		s := out[0]
		require.EqualValues(t, want.Plan.Routes[0].Hops[0].Link, s.Rail.Link)
		require.EqualValues(t, 3*kib, s.Length)
		for k, part := range want.Parts {
			require.EqualValues(t, part*kib, s.Pieces.LocalAt[int(s.First)+k])
			require.Equal(t, want.At[k], s.Remote+s.Pieces.RemoteAt[int(s.First)+k])
		}
		require.Equal(t, Pending, r.status(b).State)
	}
	r.drain()
	s := r.status(b)
	require.Equal(t, Completed, s.State)
	require.EqualValues(t, 6*kib, s.Bytes)
	require.Empty(t, r.missing(b))
	k := r.core.Counters(1, High)
	require.EqualValues(t, 6, k.Requests[transport.Write])
}

// The parts of the regions that were not begun are missing then, each by the index of its submission.
func TestATaskThatEndsInItsFirstRegionMissesThePartsOfTheOthers(t *testing.T) {
	const limit = 50 * ms
	ends := map[State]func(r *rig, b BatchID){
		Failed:   func(r *rig, _ BatchID) { r.refuse(gone()) },
		TimedOut: func(r *rig, _ BatchID) { r.wait(limit) },
		Canceled: func(r *rig, b BatchID) {
			n, err := r.core.Cancel(b, 0, 1, r.now)
			require.Nil(r, err)
			require.Equal(r, 1, n)
			r.step()
		},
	}
	for state, end := range ends {
		for _, begun := range []int{0, 1} {
			r := newRig(t, Options{})
			b, homes := scattered(r, func(s *TaskSpec) { s.Deadline = r.now.Add(limit) })
			r.move(homes)
			want := []int{0, 1, 2, 3, 4, 5}
			if begun == 1 {
				r.finish(0, nil)
				want = []int{0, 2, 4}
			}
			end(r, b)
			r.refuse(withdrawn)
			require.Equal(t, state, r.status(b).State)
			require.Equal(t, want, r.missing(b))
			spec, err := r.core.Task(b, 0)
			require.Nil(t, err)
			require.EqualValues(t, 6*kib, spec.Length)
			require.Equal(t, places(0, 6, kib), spec.Parts.LocalAt)
			require.Zero(t, r.core.Pending())
		}
	}
}

// A straggler of the first region comes back before the second one begins. A cancel meanwhile ends the task.
func TestATaskAwaitsItsStragglersBeforeItsNextRegion(t *testing.T) {
	for _, canceled := range []bool{false, true} {
		r := newRig(t, Options{})
		b, homes := scattered(r, nil)
		at := homes[0].Plan.Routes[0].Hops[0].Link
		r.railUp(at, 1, 1, 1<<20)
		r.move(homes)
		r.core.RailDown(at, r.out[0].Rail, broken(errs.ScopeRail), r.now)
		r.step()
		require.Len(t, r.out, 2, "the slice is sent again")
		require.Empty(t, r.finish(1, nil), "the first copy is out")
		require.EqualValues(t, 3*kib, r.status(b).Bytes)
		if canceled {
			_, err := r.core.Cancel(b, 0, 1, r.now)
			require.Nil(t, err)
			require.Empty(t, r.step())
		}
		next := r.finish(0, withdrawn)
		if canceled {
			require.Empty(t, next)
			require.Equal(t, Canceled, r.status(b).State)
			require.Equal(t, []int{0, 2, 4}, r.missing(b))
			continue
		}
		require.Len(t, next, 1)
		r.drain()
		require.Equal(t, Completed, r.status(b).State)
	}
}

// A straggler that never comes back may still land. The task ends dirty after the stall limit, without its next region.
func TestATaskWithAStragglerThatStaysOutHasNoNextRegion(t *testing.T) {
	r := newRig(t, Options{Stall: time.Second})
	b, homes := scattered(r, nil)
	at := homes[0].Plan.Routes[0].Hops[0].Link
	r.railUp(at, 1, 1, 1<<20)
	r.move(homes)
	r.core.RailDown(at, r.out[0].Rail, broken(errs.ScopeRail), r.now)
	r.step()
	require.Empty(t, r.finish(1, nil), "the first copy is out")
	require.Empty(t, r.wait(time.Second))
	s := r.status(b)
	require.Equal(t, Failed, s.State)
	require.True(t, s.Dirty)
	require.Len(t, r.missing(b), 6)
}

// The owner of the second region counts on nothing that began before its fence, also while the first one is served.
func TestAFenceOfALaterRegionEndsTheTask(t *testing.T) {
	r := newRig(t, Options{})
	b, homes := scattered(r, nil)
	r.move(homes)
	hop := homes[1].Plan.Routes[0].Hops[0]
	r.core.Fenced(map[RegionKey]transport.Epoch{{hop.Link, hop.RemoteKey}: 1}, r.now)
	r.step()
	r.refuse(withdrawn)
	require.Equal(t, Failed, r.status(b).State)
	require.Zero(t, r.core.Outstanding())
}

// A region that no route reaches fails the whole task, before anything has moved.
func TestATaskBeginsInNoneOfItsRegionsUnlessAllCanBeReached(t *testing.T) {
	r := newRig(t, Options{})
	b, homes := scattered(r, nil)
	homes[1].Plan.Routes[0].Alignment = 4096
	require.Empty(t, r.move(homes))
	s := r.status(b)
	require.Equal(t, Failed, s.State)
	require.Equal(t, errs.InvalidArgument, s.Err.Code)
	require.Equal(t, []int{0, 1, 2, 3, 4, 5}, r.missing(b))
}

// Slices of a task fail at random, and go over other rails and routes, in each of its regions. Each part arrives where
// its region has it, and nothing elsewhere. A region is served when the ones before it have everything.
func TestPartsArriveInTheirRegionsWhateverHappensToSlices(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		r := newRig(t, Options{Failovers: 100, Retries: 100})
		links := make([]plan.LinkID, 4)
		for i := range links {
			links[i] = r.paged(random.IntN(2) == 0, 64*kib)
			r.railUp(links[i], 1, 1, 64*kib)
		}
		n := 1 + random.IntN(60)
		size := uint64(1+random.IntN(8)) * kib
		spec := withParts(to(r.core, links[0]), size, places(0, uint64(n), size), places(0, uint64(n), 1<<20))
		spec.ByAddress = true
		b := r.submitAll(spec)
		r.refuse(gone())
		require.Len(t, r.astray, 1)
		homes := make([]Home, min(n, 1+random.IntN(len(links))))
		want := make(map[[2]uint64]uint64) // of a region's key and an offset: the offset here
		for i, part := range random.Perm(n) {
			k := i
			if i >= len(homes) {
				k = random.IntN(len(homes))
			}
			at := uint64(part) * 100 * kib
			homes[k].Parts, homes[k].At = append(homes[k].Parts, uint32(part)), append(homes[k].At, at)
			want[[2]uint64{uint64(k + 10), at}] = uint64(part) * size
		}
		for k := range homes {
			p := to(r.core, links[random.IntN(len(links))], links[random.IntN(len(links))])
			for i := range p.Routes {
				p.Routes[i].Hops[0].RemoteKey = transport.RemoteKey(k + 10)
			}
			homes[k].Plan = p
		}
		have, latest := make(map[[2]uint64]uint64), transport.RemoteKey(0)
		r.move(homes)
		for steps := 0; r.status(b).State == Pending; steps++ {
			require.Less(t, steps, 100000)
			if len(r.out) == 0 {
				r.wait(ms)
				continue
			}
			i := random.IntN(len(r.out))
			s := r.out[i]
			require.GreaterOrEqual(t, s.RemoteKey, latest, "a region of before is served again")
			latest = s.RemoteKey
			if random.IntN(3) == 0 {
				r.finish(i, broken([]errs.Scope{errs.ScopeSlice, errs.ScopeRail, errs.ScopeLink}[random.IntN(3)]))
				continue
			}
			land(s, size, func(local, remote uint64) { have[[2]uint64{uint64(s.RemoteKey), remote}] = local })
			r.finish(i, nil)
		}
		require.Equal(t, Completed, r.status(b).State)
		require.Equal(t, want, have)
		require.EqualValues(t, uint64(n)*size, r.status(b).Bytes)
	}
}

// land calls each with the places of the parts that a slice has, as offsets here and there.
func land(s *transport.Slice, size uint64, each func(local, remote uint64)) {
	local := uint64(s.Local) - 1<<20
	if s.Pieces == nil {
		each(local, s.Remote)
		return
	}
	for i := range s.Length / size {
		at := uint64(s.First) + i
		each(local+s.Pieces.LocalAt[at], s.Remote+s.Pieces.RemoteAt[at])
	}
}
