package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// filing is a transport for files; its syncs are done at once, unless it is slow. Any goroutine of the engine may ask.
type filing struct {
	*hand
	slow  bool // it keeps done
	syncs int  // guarded by the hand, and so is done
	done  func(*errs.Error)
}

func (f *filing) Info() transport.Info {
	info := f.hand.Info()
	info.Files = true
	info.Pairs[mem.Host] = [mem.KindCount]bool{mem.File: true}
	return info
}

func (f *filing) OpenFile(_ context.Context, s transport.FileSpec) (transport.FileCard, error) {
	return transport.FileCard{Path: s.Path, Size: s.Size}, nil
}

func (f *filing) Sync(_ transport.Link, _ transport.RemoteKey, done func(*errs.Error)) {
	f.locked(func() { f.syncs, f.done = f.syncs+1, done })
	if !f.slow {
		done(nil)
	}
}

// asked returns the number of syncs, and the end of the latest one.
func (f *filing) asked() (n int, done func(*errs.Error)) {
	f.locked(func() { n, done = f.syncs, f.done })
	return n, done
}

// Bytes that were written by a transport that has left the file meanwhile may be lost: nobody has synced them.
func TestADurableTransferFailsWhenNoTransportIsLeftToSync(t *testing.T) {
	h, f := newHand("hand"), &filing{hand: newHand("disk")}
	w := newWorkshopOver(t, []*hand{h, f.hand}, handFactory{h}, handFactory{f})
	own, far := w.region("own"), w.region("far")
	file, err := w.OpenFile(t.Context(), "/kv.bin", FileOptions{Create: true, Size: own.Size})
	require.NoError(t, err)
	open, failure := w.segments.get(file)
	require.Nil(t, failure)
	for _, leaves := range []bool{false, true} {
		c, err := w.Begin(Terms{Op: transport.Write, Durability: request.DurabilityData})
		require.NoError(t, err)
		require.NoError(t, c.AddRange(own.Addr, Remote{Segment: file}, 4096))
		require.NoError(t, c.With(Terms{Op: transport.Write}))
		require.NoError(t, c.AddRange(own.Addr, Remote{Region: far.ID}, 4096))
		id, err := c.Commit(nil)
		require.NoError(t, err)
		f.complete(nil)
		require.Eventually(t, func() bool { // another goroutine may run the step
			sum, err := w.Summary(id)
			return err == nil && sum.Bytes == 4096
		}, 10*time.Second, time.Millisecond)
		if leaves {
			open.peer.detach(closedSegment())
		}
		require.Equal(t, dispatch.Pending, w.Wait(id, 0), "its other bytes are under way")
		h.complete(nil)
		if leaves {
			w.requireEnd(id, dispatch.Failed, errs.Stale)
		} else {
			require.Equal(t, dispatch.Completed, w.Wait(id, 10*time.Second))
		}
		syncs, _ := f.asked()
		require.Equal(t, 1, syncs)
	}
}

// The next step comes a minute late. The limit of a sync is put off by that.
func TestAStopOfThisProcessPutsOffTheLimitOfASync(t *testing.T) {
	h, f := newHand("hand"), &filing{hand: newHand("disk"), slow: true}
	w := newWorkshopOver(t, []*hand{h, f.hand}, handFactory{h}, handFactory{f})
	own := w.region("own")
	file, err := w.OpenFile(t.Context(), "/kv.bin", FileOptions{Create: true, Size: own.Size})
	require.NoError(t, err)
	for i, timeout := range []time.Duration{0, w.Config().Engine.TransferSyncTimeout} {
		terms := Terms{Op: transport.Write, Durability: request.DurabilityData}
		if timeout > 0 {
			terms.Deadline = clock.Now().Add(timeout)
		}
		c, err := w.Begin(terms)
		require.NoError(t, err)
		require.NoError(t, c.AddRange(own.Addr, Remote{Segment: file}, 4096))
		id, err := c.Commit(nil)
		require.NoError(t, err)
		f.complete(nil)
		require.Eventually(t, func() bool { n, _ := f.asked(); return n == i+1 }, 10*time.Second, time.Millisecond)
		require.Equal(t, dispatch.Pending, w.Wait(id, 0))
		w.mu.Lock()
		w.stepAt(clock.Now().Add(w.Config().Engine.TransferSyncTimeout + time.Second))
		w.unlockAndDrain()
		if timeout > 0 {
			w.requireEnd(id, dispatch.TimedOut, errs.Timeout)
			continue
		}
		require.Equal(t, dispatch.Pending, w.Wait(id, 0))
		_, done := f.asked()
		done(nil)
		require.Equal(t, dispatch.Completed, w.Wait(id, 10*time.Second))
	}
}

// The cancel comes too late for the bytes, and not for the sync: a disk may take minutes for it.
func TestACanceledBatchWaitsForNoSyncWhenItsBytesArriveNevertheless(t *testing.T) {
	h, f := newHand("hand"), &filing{hand: newHand("disk"), slow: true}
	w := newWorkshopOver(t, []*hand{h, f.hand}, handFactory{h}, handFactory{f})
	own := w.region("own")
	file, err := w.OpenFile(t.Context(), "/kv.bin", FileOptions{Create: true, Size: own.Size})
	require.NoError(t, err)
	r := Request{Terms: Terms{Op: transport.Write, Durability: request.DurabilityData}, Source: own.Addr,
		Remote: Remote{Segment: file}, Length: 4096}
	id, err := w.Move(&r)
	require.NoError(t, err)
	var delivered []*transport.Slice // the withdrawal finds none
	f.locked(func() { delivered, f.slices = f.slices, nil })
	n, err := w.Cancel(id, -1)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	f.locked(func() { f.slices = delivered })
	f.complete(nil)
	w.requireEnd(id, dispatch.Canceled, errs.Canceled)
	syncs, _ := f.asked()
	require.Zero(t, syncs)
}
