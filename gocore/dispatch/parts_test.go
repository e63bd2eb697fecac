package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// paged adds a link of a transport that takes slices of many pieces, or does not.
func (r *rig) paged(vectors bool, window uint64) plan.LinkID {
	id := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "10.0.0.1:7000", Transport: 1,
		Info: &transport.Info{Vectors: vectors}})
	r.railUp(id, 0, 1, window)
	return id
}

func withParts(p *plan.Plan, bytes uint64, local, remote []uint64) TaskSpec {
	return TaskSpec{Terms: request.Terms{Op: transport.Write}, Plan: p, Local: 1 << 20, Remote: 1 << 30,
		Length: bytes * uint64(len(local)), Parts: &transport.Pieces{LocalAt: local, RemoteAt: remote, Bytes: bytes}}
}

// places is n offsets that follow one another from first on, size apart.
func places(first, n, size uint64) (list []uint64) {
	for i := range n {
		list = append(list, (first+i)*size)
	}
	return list
}

// shape is the part of a slice that a test looks at.
type shape struct {
	local  uintptr
	remote uint64
	length uint64
	first  uint32
	vector bool
}

func shapes(list []*transport.Slice) (out []shape) {
	for _, s := range list {
		out = append(out, shape{s.Local - 1<<20, s.Remote - 1<<30, s.Length, s.First, s.Pieces != nil})
	}
	return out
}

func (r *rig) missing(b BatchID) (list []int) {
	r.Helper()
	err := r.core.Missing(b, 0, func(part int) { list = append(list, part) })
	require.Nil(r, err)
	return list
}

func TestOneSliceCarriesManyPartsWhereTheTransportCan(t *testing.T) {
	r := newRig(t, Options{})
	p := to(r.core, r.paged(true, 1<<20))
	b := r.submitAll(withParts(p, 4*kib, places(3, 20, 4*kib), places(40, 20, 8*kib)))
	require.Equal(t, []shape{{0, 0, 64 * kib, 0, true}, {0, 0, 16 * kib, 16, true}}, shapes(r.out),
		"slices of at most 64 KiB")
	require.Same(t, r.out[0].Pieces, r.out[1].Pieces)
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
	require.Empty(t, r.missing(b))

	r.submitAll(withParts(p, 4*kib, []uint64{7 * kib}, []uint64{3}))
	require.Equal(t, []shape{{7 * kib, 3, 4 * kib, 0, false}}, shapes(r.out), "a single part is a plain range")
}

// A copy engine takes as long for a short page as for one of 64 KiB.
func TestASliceHasNoMorePartsThanItsTransportTakes(t *testing.T) {
	r := newRig(t, Options{})
	p := to(r.core, r.paged(true, 1<<20))
	p.Routes[0].PiecesMax = 3
	b := r.submitAll(withParts(p, 16, places(3, 8, 32), places(40, 8, 48)))
	require.Equal(t, []shape{{0, 0, 48, 0, true}, {0, 0, 48, 3, true}, {0, 0, 32, 6, true}}, shapes(r.out))
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

func TestPartsThatFollowOneAnotherShareASliceElsewhere(t *testing.T) {
	local, remote := []uint64{0, 10, 20, 30, 90, 100}, []uint64{50, 60, 70, 90, 100, 110}
	r := newRig(t, Options{Merge: true})
	r.submitAll(withParts(to(r.core, r.paged(false, 1<<20)), 10, local, remote))
	require.Equal(t, []shape{{0, 50, 30, 0, false}, {30, 90, 10, 0, false}, {90, 100, 20, 0, false}}, shapes(r.out),
		"only as long as they do so here and there")

	r = newRig(t, Options{})
	r.submitAll(withParts(to(r.core, r.paged(false, 1<<20)), 10, local, remote))
	require.Len(t, r.out, 6, "unless merging is switched off")
}

func TestAPartThatIsLongerThanASliceIsCutInside(t *testing.T) {
	for _, vectors := range []bool{true, false} {
		r := newRig(t, Options{Merge: true})
		r.submitAll(withParts(to(r.core, r.paged(vectors, 1<<20)), 96*kib, []uint64{0, 96 * kib},
			[]uint64{512 * kib, 608 * kib}))
		require.Equal(t, []shape{{0, 512 * kib, 64 * kib, 0, false}, {64 * kib, 576 * kib, 32 * kib, 0, false},
			{96 * kib, 608 * kib, 64 * kib, 0, false}, {160 * kib, 672 * kib, 32 * kib, 0, false}}, shapes(r.out))
	}
}

func TestWhatAFailedSliceHasDeliveredIsNotSentAgain(t *testing.T) {
	r := newRig(t, Options{})
	b := r.submitAll(withParts(to(r.core, r.paged(true, 1<<20)), 4*kib, places(0, 8, 16*kib), places(0, 8, 16*kib)))
	require.Len(t, r.out, 1)
	s := r.out[0]
	r.out = nil
	e := errs.New(errs.Lost, "test", "broken").WithScope(errs.ScopeRail, errs.SidePath)
	e.Collateral = true
	r.core.Complete(0, []transport.Completion{{Slice: s, Id: s.Id, Bytes: 9 * kib, Err: e}}, r.now)
	r.step()
	require.Equal(t, []shape{{33 * kib, 33 * kib, 3 * kib, 0, false}, {0, 0, 20 * kib, 3, true}}, shapes(r.out),
		"the rest of the third part, then whole ones")
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
	require.EqualValues(t, 32*kib, r.status(b).Bytes)
}

func TestATaskThatFailsNamesThePartsThatAreMissing(t *testing.T) {
	r := newRig(t, Options{})
	b := r.submitAll(withParts(to(r.core, r.paged(true, 128*kib)), 4*kib, places(0, 64, 8*kib), places(0, 64, 8*kib)))
	require.Len(t, r.out, 2, "two of four slices")
	r.finish(1, nil)
	require.Len(t, r.out, 2)
	_, err := r.core.Cancel(b, 0, 1, r.now)
	require.Nil(t, err)
	r.step()
	require.Empty(t, r.missing(b), "nothing is said before the end")
	r.finish(1, errs.New(errs.Withdrawn, "test", "withdrawn"))
	r.finish(0, nil)
	require.Equal(t, Canceled, r.status(b).State)
	var want []int
	for i := 32; i < 64; i++ {
		want = append(want, i)
	}
	require.Equal(t, want, r.missing(b),
		"the first two slices have arrived, the third was withdrawn, the fourth never cut")
	k := r.core.Counters(1, High)
	require.EqualValues(t, 64, k.Requests[transport.Write], "each part counts as a request")
	require.EqualValues(t, 32, k.Canceled)
}

func TestPartsThatDoNotAddUpAreRefused(t *testing.T) {
	r := newRig(t, Options{})
	p := to(r.core, r.paged(true, 1<<20))
	for name, parts := range map[string]*transport.Pieces{
		"none": {Bytes: 4 * kib}, "of no bytes": {LocalAt: places(0, 2, 1), RemoteAt: places(0, 2, 1)},
		"on one side": {LocalAt: places(0, 2, 1), RemoteAt: places(0, 1, 1), Bytes: 4 * kib},
		"too short":   {LocalAt: places(0, 2, 1), RemoteAt: places(0, 2, 1), Bytes: 4*kib - 1},
	} {
		s := withParts(p, 4*kib, places(0, 2, 4*kib), places(0, 2, 4*kib))
		s.Parts = parts
		id, err := r.core.NewBatch(1)
		require.Nil(t, err)
		_, err = r.core.Submit(id, []TaskSpec{s}, r.now)
		require.NotNil(t, err, name)
		require.Equal(t, errs.InvalidArgument, err.Code, name)
	}
	p.Routes[0].Alignment = 512
	s := withParts(p, 4*kib, places(0, 2, 4*kib), []uint64{0, 4*kib + 1})
	id, err := r.core.NewBatch(1)
	require.Nil(t, err)
	_, err = r.core.Submit(id, []TaskSpec{s}, r.now)
	require.ErrorContains(t, err, "alignment")
}
