package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// record is a packed WRITE.
func record(source uintptr, to engine.SegmentID, offset, length uint64) request.Record {
	return request.Record{Source: uint64(source), TargetID: uint64(to), TargetOffset: offset, Length: length,
		Packed: request.Packed{Opcode: uint64(transport.Write)}}
}

func TestAFailedAddLeavesTheCallAsItWas(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		here, there := w.open(t, nil), w.open(t, nil)
		own, theirs := memory(t, 8192), newGuarded(t, 8192)
		fill(own, 1)
		offer(t, here, own, "")
		offer(t, there, theirs.bytes, "kv")
		kv := segment(t, here, there, "kv")
		to := engine.Remote{Segment: kv}
		c, err := here.Begin(engine.Terms{Op: transport.Write})
		require.NoError(t, err)
		require.NoError(t, c.AddRange(address(own), to, 100))
		require.Error(t, c.AddRange(address(own), to, 8193))
		require.ErrorContains(t, c.With(engine.Terms{Class: 3}), "priority is 3")
		offsets, lengths := []int64{200, 9000}, []int64{100, 100}
		require.ErrorContains(t, c.AddRanges(&engine.Ranges{Local: address(own), LocalSize: 8192, Remote: to,
			RemoteSize: 8192,
			N:          2, LocalOffsets: engine.IndexesOf(offsets), RemoteOffsets: engine.IndexesOf(offsets),
			Bytes: engine.IndexesOf(lengths)}), "range [1]")
		bad := record(address(own), kv, 300, 100)
		bad.Priority = 3
		err = c.AddRecords([]request.Record{record(address(own), kv, 300, 100), bad})
		require.ErrorContains(t, err, "[1]")
		require.ErrorContains(t, err, "PRIO_LOW")
		require.NoError(t, c.AddRecords([]request.Record{record(address(own)+4096, kv, 4096, 4096)}))
		id, err := c.Commit(nil)
		require.NoError(t, err)
		sum := ended(t, here, id)
		require.Equal(t, dispatch.Completed, sum.State)
		require.Equal(t, 2, sum.Tasks)
		require.EqualValues(t, 4196, sum.Bytes)
		require.Equal(t, own[:100], theirs.bytes[:100])
		require.Equal(t, own[4096:], theirs.bytes[4096:])
		require.NotEqual(t, own[100:400], theirs.bytes[100:400], "a failed shape moved something")
		theirs.check(t)
	})
}

// A shape that failed binds the call to nothing: its peer is not told, its file is not held, and its regions may go.
func TestAFailedAddBindsTheCallToNothing(t *testing.T) {
	s := newStorage(t)
	here, there, third := s.engine(t, nil), s.engine(t, nil), s.engine(t, nil)
	own, other := newGuarded(t, 8192), memory(t, 8192)
	fill(own.bytes, 1)
	offer(t, here, own.bytes, "")
	theirs := newGuarded(t, 8192)
	offer(t, there, theirs.bytes, "kv")
	offer(t, third, memory(t, 8192), "kv")
	kv := engine.Remote{Segment: segment(t, here, there, "kv")}
	file := openFile(t, here, "/kv.bin", engine.FileOptions{Create: true, Size: 8192,
		Durability: request.DurabilityData})
	for name, to := range map[string]engine.SegmentID{"peer": segment(t, here, third, "kv"), "file": file,
		"same": kv.Segment} {
		mine := offer(t, here, other, "")
		c, err := here.Begin(engine.Terms{Op: transport.Write})
		require.NoError(t, err)
		require.NoError(t, c.AddRange(address(own.bytes), kv, 64), name)
		bad := &engine.Ranges{Local: address(other), LocalSize: 8192, Remote: engine.Remote{Segment: to},
			RemoteSize: 8192, N: 2, LocalOffsets: engine.IndexesOf([]int64{0, 8000}),
			RemoteOffsets: engine.IndexesOf([]int64{0, 0}), Bytes: engine.IndexesOf([]int64{64, 512})}
		require.ErrorContains(t, c.AddRanges(bad), "range [1]", name)
		require.NoError(t, c.AddRange(address(own.bytes)+64, engine.Remote{Segment: kv.Segment, Offset: 64}, 64), name)
		require.NoError(t, here.CloseRegion(t.Context(), mine))
		if to != kv.Segment {
			require.NoError(t, here.CloseSegment(to))
		}
		id, err := c.Commit(&engine.Note{Name: []byte(name)})
		require.NoError(t, err, name)
		sum := ended(t, here, id)
		require.Equal(t, dispatch.Completed, sum.State, name)
		require.Equal(t, 2, sum.Tasks)
		same(t, theirs.bytes[:128], 1, 0)
		theirs.check(t)
	}
}

// A file is synced for the shapes that follow one that has failed.
func TestAFileIsSyncedAlthoughItsFirstShapeFailed(t *testing.T) {
	s := newStorage(t)
	e := s.engine(t, nil)
	own := memory(t, 8192)
	offer(t, e, own, "")
	file := openFile(t, e, "/kv.bin", engine.FileOptions{Create: true, Size: 8192})
	c, err := e.Begin(engine.Terms{Op: transport.Write, Durability: request.DurabilityData})
	require.NoError(t, err)
	bad := &engine.Ranges{Local: address(own), LocalSize: 8192, Remote: engine.Remote{Segment: file},
		RemoteSize: 8192, N: 2, LocalOffsets: engine.IndexesOf([]int64{0, 8000}),
		RemoteOffsets: engine.IndexesOf([]int64{0, 0}), Bytes: engine.IndexesOf([]int64{64, 512})}
	require.ErrorContains(t, c.AddRanges(bad), "range [1]")
	require.NoError(t, c.AddRange(address(own), engine.Remote{Segment: file}, 8192))
	id, err := c.Commit(nil)
	require.NoError(t, err)
	require.Equal(t, dispatch.Completed, ended(t, e, id).State)
	require.Equal(t, 1, s.network.Disk().Synced())
}

func TestACallWithoutShapesIsRefused(t *testing.T) {
	e := worlds()[0].open(t, nil)
	c, err := e.Begin(engine.Terms{})
	require.NoError(t, err)
	_, err = c.Commit(nil)
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	require.ErrorContains(t, err, "nothing to move")
	_, err = e.Begin(engine.Terms{Integrity: 2})
	require.ErrorContains(t, err, "integrity is 2")
}

// A call that asks nobody fails at once where a peer would have to answer. Behind Ask the same call succeeds, or its
// error is the answer.
func TestACallThatAsksNobodyLeavesTheQuestionToItsCaller(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		here, there := w.open(t, nil), w.open(t, nil)
		own, theirs, late := memory(t, 4096), newGuarded(t, 4096), newGuarded(t, 4096)
		offer(t, here, own, "")
		offer(t, there, theirs.bytes, "kv")
		blob, err := there.Export(nil)
		require.NoError(t, err)
		to, err := here.OpenBlob(blob)
		require.NoError(t, err)
		add := func(at uint64) error {
			c, err := here.Begin(engine.Terms{Op: transport.Write})
			require.NoError(t, err)
			defer c.Discard()
			c.AskNobody()
			return c.AddRecords([]request.Record{record(address(own), to, at, 8)})
		}
		var question *engine.Unasked
		require.ErrorAs(t, add(uint64(address(theirs.bytes))), &question, "a blob was not used yet")
		require.NoError(t, here.Ask(question.Segment, question.Deadline))
		require.NoError(t, add(uint64(address(theirs.bytes))))
		require.ErrorAs(t, add(uint64(address(late.bytes))), &question)
		require.NoError(t, here.Ask(question.Segment, question.Deadline))
		require.ErrorContains(t, add(uint64(address(late.bytes))), "[0]: 8 bytes")
		offer(t, there, late.bytes, "late")
		require.NoError(t, here.Ask(question.Segment, question.Deadline))
		require.NoError(t, add(uint64(address(late.bytes))))
		self := record(address(own), engine.Local, uint64(address(own)), 8)
		c, err := here.Begin(engine.Terms{})
		require.NoError(t, err)
		defer c.Discard()
		c.AskNobody()
		require.NoError(t, c.AddRecords([]request.Record{self}), "own memory needs no question")
	})
}
