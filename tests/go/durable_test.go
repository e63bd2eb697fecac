package tests

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

// mapped reports whether the first byte of a region is in the address space.
func mapped(r mem.Region) bool {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return false
	}
	for line := range bytes.Lines(maps) {
		var from, to uintptr
		if _, err := fmt.Sscanf(string(line), "%x-%x", &from, &to); err == nil && from <= r.Addr && r.Addr < to {
			return true
		}
	}
	return false
}

// durableRig is an engine with one file of 64 KiB. The test answers its syncs.
type durableRig struct {
	*storage
	engine *engine.Engine
	own    []byte
	file   engine.SegmentID
}

func newDurableRig(t *testing.T, settings map[string]any, o engine.FileOptions) *durableRig {
	s := newStorage(t)
	r := &durableRig{storage: s, engine: s.engine(t, settings), own: memory(t, 65536)}
	fill(r.own, 1)
	offer(t, r.engine, r.own, "")
	o.Create, o.Size = true, 65536
	r.file = openFile(t, r.engine, "/kv.bin", o)
	s.network.Disk().Hold()
	t.Cleanup(func() { s.network.Disk().Release(nil) })
	return r
}

func (r *durableRig) disk() *sim.Disk { return r.network.Disk() }

func TestADurableTransferEndsWhenItIsOnStableStorage(t *testing.T) {
	r := newDurableRig(t, nil, engine.FileOptions{})
	plain := ended(t, r.engine, put(t, r.engine, r.own[:100], r.file, 0, false))
	require.Equal(t, dispatch.Completed, plain.State, "without durability nobody waits for the disk")
	require.Zero(t, r.disk().Held())
	id := put(t, r.engine, r.own, r.file, 0, true)
	sum, err := r.engine.Summary(id)
	require.NoError(t, err)
	require.Equal(t, dispatch.Pending, sum.State)
	require.EqualValues(t, len(r.own), sum.Bytes, "the bytes are there, only their end is not")
	require.Equal(t, dispatch.Pending, r.engine.Wait(id, 10*time.Millisecond))
	require.Equal(t, r.own, r.disk().Bytes("/kv.bin"))
	require.Equal(t, 1, r.disk().Held())
	r.disk().Release(nil)
	require.Equal(t, dispatch.Completed, ended(t, r.engine, id).State)
	r.disk().Crash()
	require.Equal(t, r.own, r.disk().Bytes("/kv.bin"), "what was reported durable survives")
}

func TestAFileThatWasOpenedDurableMakesEveryWriteDurable(t *testing.T) {
	r := newDurableRig(t, nil, engine.FileOptions{Durability: request.DurabilityData})
	id := put(t, r.engine, r.own, r.file, 0, false)
	require.Equal(t, dispatch.Pending, stateOf(r.engine, id))
	r.disk().Release(nil)
	require.Equal(t, dispatch.Completed, ended(t, r.engine, id).State)
	require.Equal(t, dispatch.Completed, get(t, r.engine, r.own, r.file, 0).State)
	require.Equal(t, 1, r.disk().Synced(), "a READ has nothing to sync")
	batch, err := r.engine.NewBatch(4)
	require.NoError(t, err)
	for round := range 2 { // a batch that takes more after its end ends again
		_, err = r.engine.Submit(batch, []engine.Request{{Terms: engine.Terms{Op: transport.Write},
			Source: address(r.own), Length: 10,
			Remote: engine.Remote{Segment: r.file}}}, nil)
		require.NoError(t, err)
		require.Equal(t, dispatch.Completed, r.engine.Wait(batch, patience))
		require.Equal(t, 2+round, r.disk().Synced())
	}
	require.NoError(t, r.engine.FreeBatch(batch))
}

func TestEachFileOfABatchIsSyncedOnceAndTheNotificationComesLast(t *testing.T) {
	r := newDurableRig(t, nil, engine.FileOptions{})
	other := r.storage.engine(t, nil)
	theirs := memory(t, 65536)
	offer(t, other, theirs, "kv")
	peer := segment(t, r.engine, other, "kv")
	second := openFile(t, r.engine, "/two.bin", engine.FileOptions{Create: true, Size: 65536})
	third := openFile(t, r.engine, "/three.bin", engine.FileOptions{Create: true, Size: 65536})
	c, err := r.engine.Begin(engine.Terms{})
	require.NoError(t, err)
	add := func(op transport.Op, to engine.SegmentID, from, n uint64) {
		require.NoError(t, c.With(engine.Terms{Op: op, Durability: request.DurabilityData}))
		require.NoError(t, c.AddRange(address(r.own)+uintptr(from), engine.Remote{Segment: to, Offset: from}, n))
	}
	for i := range uint64(16) {
		add(transport.Write, []engine.SegmentID{r.file, second, peer}[i%3], i*4096, 4096)
	}
	add(transport.Read, third, 0, 1)
	id, err := c.Commit(&engine.Note{Name: []byte("done")})
	require.NoError(t, err)
	require.Equal(t, dispatch.Pending, stateOf(r.engine, id))
	require.Equal(t, 2, r.disk().Held(), "one sync for each file that was written")
	require.Zero(t, other.NotesWait(0), "data, sync, then the notification")
	r.disk().Release(nil)
	require.Equal(t, dispatch.Completed, ended(t, r.engine, id).State)
	require.Equal(t, 1, other.NotesWait(patience))
	require.Equal(t, 2, r.disk().Synced())
}

func TestAFailedSyncFailsTheTransfer(t *testing.T) {
	r := newDurableRig(t, nil, engine.FileOptions{})
	id := put(t, r.engine, r.own, r.file, 0, true)
	r.disk().Release(errs.New(errs.StorageError, "sync", "fdatasync: input/output error"))
	require.Equal(t, dispatch.Failed, r.engine.Wait(id, patience))
	require.Equal(t, 1, r.engine.Failed(id, nil), "what was written may be gone")
	sum := ended(t, r.engine, id)
	require.Equal(t, dispatch.Failed, sum.State)
	require.Equal(t, errs.StorageError, sum.Err.Code)
	require.ErrorContains(t, sum.Err, "fdatasync")
	require.Zero(t, r.disk().Synced(), "a failed fdatasync is not tried again: the kernel has forgotten what it lost")
	require.Empty(t, r.disk().Durable("/kv.bin"))
}

func TestAFaultOfTheDiskIsOneOfTheLanguage(t *testing.T) {
	r := newDurableRig(t, nil, engine.FileOptions{Durability: request.DurabilityData})
	r.disk().Release(nil)
	require.NoError(t, r.faults.Apply("fail_sync peer=file:///kv.bin nth=2"))
	for round := range 3 {
		sum := ended(t, r.engine, put(t, r.engine, r.own, r.file, 0, false))
		if round != 1 {
			require.Equal(t, dispatch.Completed, sum.State)
			continue
		}
		require.Equal(t, dispatch.Failed, sum.State)
		require.Equal(t, errs.StorageError, sum.Err.Code)
	}
}

func TestWhoeverWaitsForADiskCanStop(t *testing.T) {
	r := newDurableRig(t, nil, engine.FileOptions{})
	id := put(t, r.engine, r.own, r.file, 0, true)
	asked, err := r.engine.Cancel(id, -1)
	require.NoError(t, err)
	require.Equal(t, 1, asked)
	sum := ended(t, r.engine, id)
	require.Equal(t, dispatch.Canceled, sum.State)
	require.ErrorContains(t, sum.Err, "perhaps not on stable storage")

	late, err := r.engine.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write,
		Durability: request.DurabilityData,
		Deadline:   clock.Now().Add(20 * time.Millisecond)},
		Source: address(r.own), Length: 100, Remote: engine.Remote{Segment: r.file}})
	require.NoError(t, err)
	sum = ended(t, r.engine, late)
	require.Equal(t, dispatch.TimedOut, sum.State)
	require.Equal(t, errs.Timeout, sum.Err.Code)
	require.Equal(t, 2, r.disk().Held(), "the kernel goes on")
	r.disk().Release(nil) // and its answers come too late for anybody
	require.Equal(t, dispatch.Completed, ended(t, r.engine, put(t, r.engine, r.own, r.file, 0, true)).State)
}

func TestADiskThatDoesNotAnswerHasALimit(t *testing.T) {
	r := newDurableRig(t, map[string]any{"transfer_sync_timeout": 0.05}, engine.FileOptions{})
	for range 3 {
		sum := ended(t, r.engine, put(t, r.engine, r.own, r.file, 0, true))
		require.Equal(t, dispatch.TimedOut, sum.State)
		require.ErrorContains(t, sum.Err, "transfer_sync_timeout")
	}
	one, two := put(t, r.engine, r.own, r.file, 0, true), put(t, r.engine, r.own, r.file, 0, true)
	_, err := r.engine.Cancel(one, -1)
	require.NoError(t, err)
	require.Equal(t, dispatch.Canceled, ended(t, r.engine, one).State)
	require.Equal(t, dispatch.TimedOut, ended(t, r.engine, two).State, "the limit of the other one is kept")
}

func TestCloseDoesNotWaitForADisk(t *testing.T) {
	s := newStorage(t)
	c := s.unclosed(t)
	own := memory(t, 4096)
	offer(t, c, own, "")
	file := openFile(t, c, "/kv.bin", engine.FileOptions{Create: true, Size: 4096})
	s.network.Disk().Hold()
	id := put(t, c, own, file, 0, true)
	require.NoError(t, c.Watch(id))
	require.Empty(t, c.Close(10*time.Millisecond, false))
	require.Equal(t, dispatch.Canceled, c.Wait(id, 0))
	require.NoError(t, c.Forget())
	_, err := c.OpenFile(context.Background(), "/kv.bin", engine.FileOptions{})
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err))
}
