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
