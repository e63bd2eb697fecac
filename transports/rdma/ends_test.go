package rdma

import (
	"encoding/binary"
	"maps"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// TestASliceEndsBehindTheEndOfItsQueuePairAlone: the device does not answer the calls that end a queue pair, which goes
// on to move bytes. It is lost then, and its slices wait for the proof all the same.
func TestASliceEndsBehindTheEndOfItsQueuePairAlone(t *testing.T) {
	for _, op := range []transport.Op{transport.Read, transport.Write} {
		r := newRigOver(t, 1, func(s *Settings) {
			often(s)
			s.Lanes, s.Timeout, s.Retries = 1, 14, 6 // a packet that is lost is sent again for half a second
		})
		a := r.a.Transport.(*Transport)
		first := a.nics()[0]
		from, to := r.local.Memory, r.remote.Operand.Memory
		if op == transport.Read {
			from, to = to, from
		}
		from.Fill(moved, 0, rigSize)
		to.Fill(before, 0, rigSize)
		r.f.Control(t, "silence fake0 1") // the request waits in the NIC
		s := r.c.Slice(op, r.c.Rail(t), r.local, 0, r.remote, 0, 4096)
		require.Equal(t, 1, r.c.Submit(s))
		r.f.Control(t, "stuck 1")
		a.Fence(s.Rail)
		r.f.Control(t, "silence fake0 0")
		await(t, "the bytes", func() bool { return to.Check(moved, 0, 0, 4096) == nil })
		await(t, "the device to be given up", first.lost.Load)
		require.Zero(t, r.w.Ended(s), "its queue pair is there")
		r.f.Control(t, "stuck 0")
		require.Error(t, r.c.Wait(t, s)[0].Err)
		await(t, "the device to be back", func() bool { return a.nics()[0] != first && r.keysThere(0) })
		r.again(t)
		r.works(t)
	}
}

// TestAWRITEThatWasOutEndsBehindThePeersAnswer: our queue pair is closed, and a packet may still be under way to the
// peer's, which nobody can ask to end.
func TestAWRITEThatWasOutEndsBehindThePeersAnswer(t *testing.T) {
	r := newRigOver(t, 1, func(s *Settings) { s.Timeout, s.Retries = 14, 6 })
	rail := r.first()
	r.f.Control(t, "silence fake0 1") // the requests wait in the NIC
	write := r.slice(t, r.c.Rail(t), 0, 4096)
	read := r.c.Slice(transport.Read, r.c.Rail(t), r.local, 8192, r.remote, 8192, 4096)
	require.Equal(t, 2, r.c.Submit(write, read))
	r.alone.Store(true)
	r.f.Control(t, "event fake0 %d", verbs.PortFailed)
	await(t, "the WRITE to wait for the peer", func() bool {
		rail.mu.Lock()
		defer rail.unlock()
		o := rail.opOf(write)
		return o != nil && o.limbo
	})
	require.Error(t, r.c.Wait(t, read)[0].Err, "its end needs no answer")
	require.Zero(t, r.w.Ended(write))
	r.alone.Store(false)
	require.Error(t, r.c.Wait(t, write)[0].Err)
	r.f.Control(t, "silence fake0 0")
	r.works(t)
}

// TestAnAnswerProvesTheEndOfQueuePairs: a peer that leaves hears of an error while its queue pairs are there, and not
// of a link that has ended. A fence of the peer closes keys meanwhile.
func TestAnAnswerProvesTheEndOfQueuePairs(t *testing.T) {
	r := newRigOver(t, 1, nil)
	owner := r.b.Transport.(*Transport)
	pairs := r.f.Control(t, "pairs")
	key := rkey(r.b, r.remote.Operand.Key)
	r.f.Control(t, "stuck 1")
	detach := message(kindDetach, uint64(r.c.Link))
	release := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(
		message(kindRelease, uint64(r.c.Link)), 1<<40), 0)
	for _, question := range [][]byte{release, detach, release, detach} {
		_, err := owner.Serve(t.Context(), r.a.Peer, question)
		require.Error(t, err)
		require.False(t, proof(err), "%v", err)
	}
	require.Equal(t, pairs, r.f.Control(t, "pairs"))
	owner.Disconnect(r.a.Peer.ID)
	require.NoError(t, owner.Revoke(t.Context(), r.remote.Operand.Key, &r.a.Peer, transport.ForGood))
	require.NotEqual(t, key, rkey(r.b, r.remote.Operand.Key), "its queue pairs open nothing by the new keys")
	r.f.Control(t, "stuck 0")
	await(t, "the end of its queue pairs", func() bool { return r.f.Control(t, "pairs") == pairs/2 })
	_, err := owner.Serve(t.Context(), r.a.Peer, detach)
	require.NoError(t, err)
}

// TestAFenceThatCutsItsGuestForgetsTheTrouble: a device is lost when a queue pair goes on not to end, and not for
// moments of trouble between which it ended well.
func TestAFenceThatCutsItsGuestForgetsTheTrouble(t *testing.T) {
	r := newRigOver(t, 1, nil)
	owner := r.b.Transport.(*Transport)
	d, g := owner.nics()[0], owner.guests.all(transport.ID{})[0]
	n := news{region: uint64(r.remote.Operand.Key), floor: 1}
	first := func() clock.Time {
		d.mu.Lock()
		defer d.mu.Unlock()
		require.NotEmpty(t, d.unended)
		return slices.Min(slices.Collect(maps.Values(d.unended)))
	}
	r.f.Control(t, "stuck 1")
	require.Error(t, g.cut(n))
	began := first()
	require.Error(t, g.cut(n))
	require.Equal(t, began, first(), "it goes on")
	r.f.Control(t, "stuck 0")
	require.NoError(t, g.cut(n))
	r.f.Control(t, "stuck 1")
	later := clock.Now()
	require.Error(t, g.cut(n))
	require.GreaterOrEqual(t, first(), later, "a moment of its own")
	r.f.Control(t, "stuck 0")
}

// TestAGuestIsExpelledByOneGoroutine, however often its peer says goodbye while its queue pairs do not end.
func TestAGuestIsExpelledByOneGoroutine(t *testing.T) {
	r := newRigOver(t, 1, nil)
	owner := r.b.Transport.(*Transport)
	r.f.Control(t, "stuck 1")
	before := runtime.NumGoroutine()
	for range 200 {
		_, err := owner.Serve(t.Context(), r.a.Peer, message(kindGoodbye, 0))
		require.NoError(t, err)
	}
	require.Less(t, runtime.NumGoroutine(), before+100)
	r.f.Control(t, "stuck 0")
	await(t, "the end of the guest", func() bool { return len(owner.guests.all(r.a.Peer.ID)) == 0 })
}

// TestAFenceFailsWhileAKeyIsThere, and the next one closes it. The end of a region does, too.
func TestAFenceFailsWhileAKeyIsThere(t *testing.T) {
	r := newRigOver(t, 2, nil)
	theirs := r.b.Register(t, rigSize, mem.GlobalReadWrite)
	owner, objects := r.b.Transport.(*Transport), r.f.Control(t, "objects")
	r.f.Control(t, "kept 1")
	for epoch := range transport.Epoch(3) {
		err := owner.Revoke(t.Context(), theirs.Key, nil, 1+epoch)
		require.ErrorContains(t, err, "does not end")
		require.Equal(t, errs.RdmaError, errs.CodeOf(err))
	}
	require.ErrorContains(t, owner.Deregister(t.Context(), theirs.Key), "does not end")
	r.f.Control(t, "kept 0")
	require.NoError(t, owner.Deregister(t.Context(), theirs.Key))
	require.Equal(t, objects-2*2, r.f.Control(t, "objects"), "a local and a remote key of each device")
}
