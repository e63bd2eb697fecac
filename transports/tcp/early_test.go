package tcp

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// newOwer is a debtor with one slice that is longer than its socket: a part of it stays under way. Its number is 1.
func newOwer(t *testing.T, op transport.Op, size int) *debtor {
	tr := newTestEndpoint(t, Settings{Workers: 1}).tr.(*Transport)
	d := &debtor{T: t, memory: mapping(t, size), w: tr.newWorker()}
	key, _, err := tr.Register(context.Background(), regionOf(d.memory))
	require.NoError(t, err)
	d.lane, d.peer = handLane(t, tr)
	d.slices = []*transport.Slice{{Op: op, LocalKey: key, RemoteKey: 1, Local: mem.AddressOf(d.memory),
		Length: uint64(size)}}
	var w *worker
	n, _ := d.lane.accept(d.slices, &w)
	require.Equal(t, 1, n)
	d.lane.pump(size)
	t.Cleanup(func() {
		d.lane.link.settleLane(d.lane, d.w)
		d.lane.link.fenced(1, []record{{}}, d.w)
	})
	return d
}

// rest reads all that the initiator sends until it has sent everything or its lane has ended.
func (d *debtor) rest() (stream []byte) {
	b := make([]byte, 1<<20)
	for {
		n, err := unix.Read(d.peer, b)
		if n <= 0 || err != nil {
			return stream
		}
		stream = append(stream, b[:n]...)
		d.lane.dirty.Store(true)
		d.lane.pump(1 << 20)
	}
}

// TestAResponderCannotEndAWriteThatIsBeingSent: a user may use the memory of a slice again when it has ended. The bytes
// of then are not for the peer.
func TestAResponderCannotEndAWriteThatIsBeingSent(t *testing.T) {
	const size = 1 << 20
	for name, frame := range map[string][]byte{
		"acknowledged": appendFrame(nil, header{kind: kindAck, seq: 1}),
		"refused":      appendFrame(nil, header{kind: kindNack}, record{id: 1, length: uint32(errs.PermissionDenied)}),
		"confirmed":    appendFrame(nil, header{kind: kindConfirm, seq: 1}, record{id: 1}),
		"void":         appendFrame(nil, header{kind: kindConfirm, seq: 1}, record{id: 1, length: verdictVoid}),
	} {
		t.Run(name, func(t *testing.T) {
			d := newOwer(t, transport.Write, size)
			require.NotZero(t, d.lane.tx.left, "a part of it waits for the socket")
			d.says(frame)
			if len(d.w.ended) > 0 { // its user has other plans with the memory
				copy(d.memory, bytes.Repeat([]byte("SECRET, "), size/8))
			}
			require.False(t, bytes.Contains(d.rest(), []byte("SECRET")), "memory was sent after its slice had ended")
		})
	}
}

// TestAWithdrawnWriteIsQuietBeforeItsVerdict: the answer to a withdrawal may come before the rest of the frame has
// left.
func TestAWithdrawnWriteIsQuietBeforeItsVerdict(t *testing.T) {
	const size = 1 << 20
	d := newOwer(t, transport.Write, size)
	before := bytes.Clone(d.memory)
	require.True(t, d.lane.withdraw(d.w, d.slices[0], 1))
	d.says(appendFrame(nil, header{kind: kindConfirm, seq: 1}, record{id: 1, length: verdictVoid}))
	require.Len(t, d.w.ended, 1)
	require.Equal(t, errs.Withdrawn, d.w.ended[0].Err.Code)
	require.False(t, d.lane.isDown(), "the peer has said nothing wrong")
	copy(d.memory, bytes.Repeat([]byte("SECRET, "), size/8))
	stream := d.rest()
	require.Equal(t, before, stream[len(stream)-size:], "the frame ends with the bytes that it was begun with")
	require.False(t, d.lane.withdraw(d.w, d.slices[0], 1), "it has ended")
	require.Zero(t, d.lane.out.asked)
}

// TestAnotherLaneCannotEndAReadThatComesIn: its reader is in the middle of the payload. Of READs nobody asks the peer.
func TestAnotherLaneCannotEndAReadThatComesIn(t *testing.T) {
	const size, half = 1 << 12, 1 << 11
	d := newOwer(t, transport.Read, size)
	frame := dataFrame(0, record{id: 1, length: size})
	for i := range size {
		frame[headerBytes+recordBytes+i] = 7
	}
	d.says(frame[:headerBytes+recordBytes+half])
	other, peer := handLane(t, d.lane.t)
	other.link = d.lane.link
	_, err := unix.Write(peer, appendFrame(nil, header{kind: kindConfirm, seq: 1}, record{id: 1, length: verdictVoid}))
	require.NoError(t, err)
	other.readMu.Lock()
	other.drain(d.w, 1<<20)
	other.readMu.Unlock()
	other.broke(errs.New(errs.Lost, "test", "the end"))
	other.closeSocket()
	before, ended := bytes.Clone(d.memory), len(d.w.ended) > 0
	d.says(frame[headerBytes+recordBytes+half:])
	if ended {
		require.Equal(t, before, d.memory, "bytes landed after the slice had ended")
	}
	require.Len(t, d.w.ended, 1)
	require.Nil(t, d.w.ended[0].Err)
	require.Equal(t, bytes.Repeat([]byte{7}, size), d.memory)
}

// TestAWaitingSliceIsWithdrawnAtOnce: nothing of it has left, so nobody is asked. The first one is the next to be sent.
func TestAWaitingSliceIsWithdrawnAtOnce(t *testing.T) {
	d := newDebtor(t)
	for i, s := range d.slices[4:] {
		require.EqualValues(t, 5+i, d.lane.out.next)
		require.False(t, d.lane.withdraw(d.w, s, uint64(5+i)), "nothing to ask")
		require.Len(t, d.w.ended, i+1)
		require.Same(t, s, d.w.ended[i].Slice)
		require.Equal(t, errs.Withdrawn, d.w.ended[i].Err.Code)
	}
	require.Equal(t, d.lane.out.tail, d.lane.out.next, "nothing waits any more")
}
