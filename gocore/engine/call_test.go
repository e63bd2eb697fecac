package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// An Add that fails gives its regions up. The next one with the same pair of regions takes its own use: without it, the
// region could be closed, and its memory freed, while the transfer reads it.
func TestAnAddBehindOneThatHasFailedUsesItsRegion(t *testing.T) {
	w := newWorkshop(t, "hand")
	own, far := w.region("own"), w.region("far")
	c, err := w.Begin(Terms{Op: transport.Write})
	require.NoError(t, err)
	good, bad := []int64{0, 0}, []int64{0, 1 << 20}
	ranges := Ranges{Local: own.Addr, LocalSize: own.Size, Remote: Remote{Region: far.ID}, RemoteSize: far.Size, N: 2,
		LocalOffsets: IndexesOf(good), RemoteOffsets: IndexesOf(bad), Bytes: IndexesOf([]int64{64, 64})}
	require.Error(t, c.AddRanges(&ranges))
	require.Empty(t, c.specs)
	require.Empty(t, c.uses)
	require.NoError(t, c.AddRange(own.Addr, Remote{Region: far.ID}, 64))
	id, err := c.Commit(nil)
	require.NoError(t, err)
	w.requireUses(1, own)
	w.hands[0].complete(nil)
	require.Equal(t, dispatch.Completed, w.Wait(id, patience))
}

// A notification is the end of a transfer to one peer. Tasks to two peers are two runs, each with the epoch of its own.
func TestACallToTwoPeersHasTwoRunsAndNoNotification(t *testing.T) {
	w := newWorkshop(t, "hand")
	own, far := w.region("own"), w.region("far")
	h, failure := w.segments.get(Local)
	require.Nil(t, failure)
	c, err := w.Begin(Terms{Op: transport.Write})
	require.NoError(t, err)
	defer c.Discard()
	require.NoError(t, c.AddRange(own.Addr, Remote{Region: far.ID}, 64))
	other := newPeer(w.Engine, transport.Peer{Address: "other"})
	other.hear(7)
	c.peer = other
	*c.task(&c.terms) = dispatch.TaskSpec{Terms: c.terms, Plan: c.plan, Local: own.Addr, Length: 128}
	c.peer = h.peer
	require.NoError(t, c.AddRange(own.Addr, Remote{Region: far.ID}, 256))
	require.Len(t, c.runs, 3)
	for i, want := range []struct {
		to     *peer
		length uint64
	}{{h.peer, 64}, {other, 128}, {h.peer, 256}} {
		require.Same(t, want.to, c.runs[i].to)
		require.Len(t, c.tasksOf(i), 1)
		require.Equal(t, want.length, c.tasksOf(i)[0].Length)
	}
	failed := c.complete(&Note{Name: []byte("done")})
	require.NotNil(t, failed)
	require.Equal(t, errs.InvalidArgument, failed.Code)
	require.Contains(t, failed.Cause, "several peers")
	for i, epoch := range []transport.Epoch{0, 7, 0} {
		require.Equal(t, epoch, c.specs[i].Epoch)
	}
}

// Packed requests come from outside. Their terms are checked whenever they differ from those of their neighbour.
func TestTheTermsOfPackedRequestsAreChecked(t *testing.T) {
	w := newWorkshop(t, "hand")
	own, far := w.region("own"), w.region("far")
	record := func(priority uint64) request.Record {
		r := request.Record{Source: uint64(own.Addr), TargetRegion: uint64(far.ID), Length: 64}
		r.Opcode, r.Priority = uint64(transport.Write), priority
		return r
	}
	c, err := w.Begin(Terms{})
	require.NoError(t, err)
	defer c.Discard()
	failure := c.AddRecords([]request.Record{record(0), record(0), record(200)})
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(failure))
	require.ErrorContains(t, failure, "[2]")
	require.Empty(t, c.specs)
	require.NoError(t, c.AddRecords([]request.Record{record(0), record(1)}))
	require.Equal(t, []uint8{0, 1}, []uint8{c.specs[0].Class, c.specs[1].Class})
}

// A goroutine that finds the mutex held leaves its work in the inbox. The holder finds it there when it lets go.
func TestAHolderOfTheMutexLooksForWorkThatCameMeanwhile(t *testing.T) {
	w := newWorkshop(t, "hand")
	w.mu.Lock()
	w.notice(notice{kind: noticeAnswered})
	require.True(t, w.inbox.filled.Load())
	w.unlockAndDrain()
	require.False(t, w.inbox.filled.Load(), "it would wait for somebody else")
}

// A step has orders for more rails than it can list. All of them are carried out.
func TestAStepWithOrdersForManyRailsCarriesAllOut(t *testing.T) {
	w := newWorkshop(t, "hand")
	h := w.hands[0]
	own, far := w.region("own"), w.region("far")
	r := w.request(own, far)
	id, err := w.Move(&r)
	require.NoError(t, err)
	h.complete(nil)
	require.Equal(t, dispatch.Completed, w.Wait(id, patience))
	local, failure := w.segments.get(Local)
	require.Nil(t, failure)
	link := (*local.peer.links.Load())[0]
	rails := len(w.deferred.boxes) + 3
	w.mu.Lock()
	for i := range rails {
		at := transport.Rail{Link: link.link, Index: uint16(i), Generation: 1}
		w.post(orderSubmit, &dispatch.Posting{Link: link.id, Rail: at, Slices: []*transport.Slice{{Rail: at}}})
	}
	w.unlockAndDrain()
	seen := map[uint16]bool{}
	h.locked(func() {
		for _, s := range h.slices {
			seen[s.Rail.Index] = true
		}
		h.slices = nil
	})
	require.Len(t, seen, rails)
}

// A batch takes all of a call or nothing, and that is true of the caller's name for the transfer.
func TestACallThatIsRefusedLeavesTheNameOfTheBatch(t *testing.T) {
	w := newWorkshop(t, "hand")
	own, far := w.region("own"), w.region("far")
	id, err := w.NewBatch(1)
	require.NoError(t, err)
	for _, c := range []struct {
		trace string
		code  errs.Code
	}{{"first", errs.OK}, {"second", errs.TooManyRequests}, {"", errs.TooManyRequests}} {
		call, err := w.Begin(Terms{Op: transport.Write})
		require.NoError(t, err)
		require.NoError(t, call.AddRange(own.Addr, Remote{Region: far.ID}, 64))
		require.NoError(t, call.Trace(c.trace))
		_, err = call.CommitTo(id, nil)
		require.Equal(t, c.code, errs.CodeOf(err), "%v", err)
		sum, err := w.Summary(id)
		require.NoError(t, err)
		require.Equal(t, "first", sum.Trace)
	}
}

// An id of 0 is that of no batch, also for a call small enough to be carried out at once.
func TestACallToNoBatchMovesNothing(t *testing.T) {
	w := newWorkshop(t, "hand")
	carried := 0
	w.hands[0].inline = func() bool { carried++; return true }
	r := w.request(w.region("own"), w.region("far"))
	r.Length = 64
	_, err := w.Submit(0, []Request{r}, nil)
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(err))
	require.Zero(t, carried)
	require.Zero(t, w.UnderWay())
}
