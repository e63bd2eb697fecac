package engine

import (
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// The number of a segment that was closed means nobody, although its place has another one.
func TestAClosedSegmentIsNotItsSuccessor(t *testing.T) {
	r, other := newReach(t), newWorkshop(t, "hand")
	old, _ := r.open(r.there)
	require.NoError(t, r.CloseSegment(old))
	now, _ := r.open(other)
	require.Equal(t, uint32(old), uint32(now), "it has the place of the other")
	_, err := r.Segment(t.Context(), old, false)
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(err))
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(r.CloseSegment(old)))
	info, err := r.Segment(t.Context(), now, false)
	require.NoError(t, err)
	require.Equal(t, other.Address(), info.Peer.Address)
}

// A program that wants one engine is given no other one, and nothing of it stays open.
func TestAnEngineThatIsNotTheWantedOneIsNotOpened(t *testing.T) {
	here, there := newWorkshop(t, "hand"), newWorkshop(t, "hand")
	there.region("kv")
	for wanted, code := range map[transport.ID]errs.Code{
		here.credentials.ID(): errs.PeerNotAdmitted, there.credentials.ID(): errs.OK} {
		only := OpenOptions{Identities: []string{"id:" + wanted.String()}}
		id, err := here.OpenWith(t.Context(), there.Address(), only)
		require.Equal(t, code, errs.CodeOf(err), "%v", err)
		if code != errs.OK {
			require.Empty(t, here.segments.peersWith(there.credentials.ID()))
			continue
		}
		require.NoError(t, here.CloseSegment(id))
	}
}

// The numbers of a place for segments come again. None is negative: such a segment could not be used, nor closed.
func TestNumbersOfSegmentsComeAgain(t *testing.T) {
	r := newReach(t)
	first, _ := r.open(r.there)
	require.NoError(t, r.CloseSegment(first))
	r.segments.generations[uint32(first)] = math.MaxInt32
	for _, generation := range []SegmentID{math.MaxInt32, 0, 1} {
		id, _ := r.open(r.there)
		require.Equal(t, generation<<32|first&math.MaxUint32, id)
		_, err := r.Segment(t.Context(), id, false)
		require.NoError(t, err)
		require.NoError(t, r.CloseSegment(id))
	}
}

// An open beside many other handles takes no more memory than beside one: nothing is copied.
func TestAHandleAllocatesTheSameBesideAnyNumberOfOthers(t *testing.T) {
	var table segmentTable
	cost := func(handles int) uint64 {
		for table.count() < handles {
			table.add(new(handle))
		}
		const opens = 100
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range opens {
			h := new(handle)
			table.add(h)
			require.True(t, table.drop(h))
			require.False(t, table.drop(h))
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / opens
	}
	few := cost(10)
	require.Less(t, cost(20_000), few+1<<10, "bytes")
}

// Two handles of a peer share its links, and a handle is given back once. Our own memory stays open.
func TestAPeerStaysOpenForItsOtherHandle(t *testing.T) {
	r := newReach(t)
	far := r.there.region("far")
	first, p := r.open(r.there)
	second, same := r.open(r.there)
	require.Same(t, p, same)
	h, failure := r.segments.get(first)
	require.Nil(t, failure)
	require.NoError(t, r.CloseSegment(first))
	require.False(t, r.segments.drop(h), "another call has closed it meanwhile")
	require.Equal(t, 1, p.handles)
	r.move(second, far)
	for range 2 {
		require.NoError(t, r.CloseSegment(Local))
		_, err := r.Segment(t.Context(), Local, false)
		require.NoError(t, err)
	}
}

// A blob has the regions that peers may use, and none that are private. A lease is in it by its name, with all ranges.
func TestABlobHasNoPrivateRegions(t *testing.T) {
	w := newWorkshop(t, "hand")
	kv := w.region("kv")
	b := make([]byte, 4096)
	_, err := w.Register(Memory{Addr: mem.AddressOf(b), Size: 4096, Name: "private", Location: "cpu:0"})
	require.NoError(t, err)
	_, err = w.Share(kv.ID, Share{Name: "pages", Ranges: []Range{{0, 64}, {4096, 64}}})
	require.NoError(t, err)
	in := func(names ...string) (sizes []uint64) {
		blob, err := w.Export(names)
		require.NoError(t, err)
		d, err := segment.Decode(blob)
		require.NoError(t, err)
		for _, r := range d.Regions {
			require.NotEqual(t, mem.LocalReadWrite, r.Permission)
			sizes = append(sizes, r.Size)
		}
		return sizes
	}
	require.Equal(t, []uint64{1 << 16}, in())
	require.Equal(t, []uint64{64, 64}, in("pages"))
	require.Len(t, in("pages", "kv"), 3)
	for _, name := range []string{"private", "nobody's"} {
		_, err = w.Export([]string{"kv", name})
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), name)
		require.ErrorContains(t, err, name)
	}
	blob, err := w.Export(nil)
	require.NoError(t, err)
	id, err := w.OpenBlob(blob)
	require.NoError(t, err)
	require.Equal(t, Local, id, "our own blob is our own memory")
	clear(b)
}

// A peer that is gone is not asked any more: its segments have the cause. Opened anew, it is another peer.
func TestASegmentOfAPeerThatIsGoneSaysWhy(t *testing.T) {
	r := newReach(t)
	old, p := r.open(r.there)
	alive, err := r.Alive(t.Context(), old)
	require.NoError(t, err)
	require.True(t, alive)
	r.peerGone(p, errs.New(errs.PeerRestarted, "test", "another incarnation answers"))
	for _, refresh := range []bool{false, true} {
		_, err = r.Segment(t.Context(), old, refresh)
		require.Equal(t, errs.PeerRestarted, errs.CodeOf(err))
	}
	alive, err = r.Alive(t.Context(), old)
	require.NoError(t, err)
	require.False(t, alive)
	now, successor := r.open(r.there)
	require.NotSame(t, p, successor)
	alive, err = r.Alive(t.Context(), now)
	require.NoError(t, err)
	require.True(t, alive)
	_, err = r.Alive(t.Context(), now+1)
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(err))
}
