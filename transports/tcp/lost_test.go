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

// takeAway makes memory untouchable, as unmapping it does, but nobody else gets the addresses.
func takeAway(t *testing.T, b []byte) {
	t.Helper()
	require.NoError(t, unix.Mprotect(b, unix.PROT_NONE))
}

// everything reads a socket until its writer has nothing more to say.
func everything(t *testing.T, fd int, c *conn) (stream []byte) {
	t.Helper()
	b := make([]byte, 64<<10)
	for {
		n, err := unix.Read(fd, b)
		if err == unix.EAGAIN && (c.dirty.Load() || c.wantOut.Load()) {
			c.dirty.Store(true)
			c.pump(workerBudget)
			continue
		}
		if err == unix.EAGAIN {
			return stream
		}
		require.NoError(t, err)
		require.Positive(t, n, "the lane is closed")
		stream = append(stream, b[:n]...)
	}
}

// take splits a frame without payload from a stream.
func take(t *testing.T, stream *[]byte) (h header, table []record) {
	t.Helper()
	h = getHeader(*stream)
	*stream = (*stream)[headerBytes:]
	for range h.count {
		table = append(table, getRecord(*stream))
		*stream = (*stream)[recordBytes:]
	}
	return h, table
}

// requireZerosFrom requires bytes to be those of the source up to a point, and zeros behind it. It returns the point.
func requireZerosFrom(t *testing.T, got, source []byte) int {
	t.Helper()
	good := len(bytes.TrimRight(got, "\x00"))
	require.Equal(t, source[:good], got[:good])
	return good
}

// TestAReadWhoseBytesGoWhileTheyAreSentIsRefused loses the region of a READ in the middle of its frame. The frame goes
// on with zeros, and the READ is refused before SERVED can complete it, or when the rest of it comes to its turn.
func TestAReadWhoseBytesGoWhileTheyAreSentIsRefused(t *testing.T) {
	gone := record{id: 1, length: uint32(errs.AddressNotRegistered)}
	for name, length := range map[string]uint32{"its last frame": 200 << 10, "one of several": 700 << 10} {
		t.Run(name, func(t *testing.T) {
			memory := mapping(t, 3<<20)
			source := bytes.Clone(memory)
			a := newAsker(t, Settings{}, memory)
			a.ask(0, length)
			require.True(t, a.lane.wantOut.Load(), "its socket took it all")
			takeAway(t, memory)
			stream := everything(t, a.fd, &a.lane.conn)
			h, _ := take(t, &stream)
			require.Equal(t, kindData, h.kind)
			good := requireZerosFrom(t, stream[:h.length], source[1<<20:])
			require.Positive(t, good, "nothing had left")
			stream = stream[h.length:]
			end := [2]kind{kindNack, kindServed}
			if length > dataBytes {
				end = [2]kind{kindServed, kindNack}
			}
			for _, want := range end {
				h, table := take(t, &stream)
				require.Equal(t, want, h.kind)
				if want == kindNack {
					require.Equal(t, []record{gone}, table)
				}
			}
			require.Empty(t, stream)
			require.False(t, a.lane.isDown(), "the lane lives on")
		})
	}
}

// TestAWriteWhoseBytesAreGoneFailsByItself loses the source of one of two WRITEs in a frame. Before it leaves, its
// record names no region; later, zeros end it. The error comes when the peer has said that nothing lands any more.
func TestAWriteWhoseBytesAreGoneFailsByItself(t *testing.T) {
	const length = 300 << 10
	for name, first := range map[string]bool{"before it leaves": true, "while it is sent": false} {
		t.Run(name, func(t *testing.T) {
			e := newTestEndpoint(t, Settings{Workers: 1})
			memory := mapping(t, 1<<20)
			source := bytes.Clone(memory)
			key, _, err := e.tr.Register(context.Background(), regionOf(memory))
			require.NoError(t, err)
			l, other := handLane(t, e.tr.(*Transport))
			require.NoError(t, unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096))
			var list []*transport.Slice
			for i := range 2 {
				list = append(list, &transport.Slice{Op: transport.Write, LocalKey: key, RemoteKey: 5,
					Local: mem.AddressOf(memory) + uintptr(i)<<19, Length: length})
			}
			if first {
				takeAway(t, memory[:length])
			}
			var w *worker
			n, _ := l.accept(list, &w)
			require.Equal(t, 1, n, "a large slice goes by itself")
			n, _ = l.accept(list[1:], &w)
			require.Equal(t, 1, n)
			l.pump(submitBudget)
			if !first {
				require.True(t, l.wantOut.Load(), "its socket took it all")
				takeAway(t, memory[:length])
			}
			stream := everything(t, other, &l.conn)
			h, table := take(t, &stream)
			require.Equal(t, kindWrite, h.kind)
			require.Len(t, table, 2)
			require.Equal(t, first, table[0].id == 0)
			require.EqualValues(t, 5, table[1].id)
			good := requireZerosFrom(t, stream[:length], source)
			require.Equal(t, first, good == 0)
			require.Equal(t, source[1<<19:][:length], stream[length:], "its neighbour")
			require.False(t, l.isDown(), "the lane lives on")
			answer := appendFrame(nil, header{kind: kindAck, seq: 2})
			if first {
				refusal := record{id: 1, length: uint32(errs.AddressNotRegistered)}
				answer = append(appendFrame(nil, header{kind: kindNack}, refusal), answer...)
			}
			w = e.tr.(*Transport).newWorker()
			require.Empty(t, w.ended)
			_, err = unix.Write(other, answer)
			require.NoError(t, err)
			l.readMu.Lock()
			l.drain(w, 1<<20)
			l.readMu.Unlock()
			require.Len(t, w.ended, 2)
			for _, end := range w.ended {
				if end.Slice == list[1] {
					require.Nil(t, end.Err)
					continue
				}
				require.Equal(t, errs.AddressNotRegistered, end.Err.Code)
				require.Equal(t, errs.SideLocal, end.Err.Side)
				require.Equal(t, errs.ScopeSlice, end.Err.Scope)
			}
			l.link.settleLane(l, w)
		})
	}
}

// TestACheckedReadFailsWhenItsMemoryGoesBeforeTheCheck takes away bytes that have landed, while the rest is on its way:
// nobody can say any more that they were right.
func TestACheckedReadFailsWhenItsMemoryGoesBeforeTheCheck(t *testing.T) {
	const first, rest = 1 << 12, 100
	e := newTestEndpoint(t, Settings{Workers: 1})
	tr := e.tr.(*Transport)
	memory := mapping(t, 2*first)
	key, _, err := tr.Register(t.Context(), regionOf(memory))
	require.NoError(t, err)
	l, other := handLane(t, tr)
	s := &transport.Slice{Op: transport.Read, Checked: true, LocalKey: key, RemoteKey: 1, Local: mem.AddressOf(memory),
		Length: first + rest}
	var w *worker
	n, _ := l.accept([]*transport.Slice{s}, &w)
	require.Equal(t, 1, n)
	l.pump(submitBudget)
	w = tr.newWorker()
	arrive := func(stream []byte) {
		_, err := unix.Write(other, stream)
		require.NoError(t, err)
		l.readMu.Lock()
		defer l.readMu.Unlock()
		l.drain(w, 1<<20)
	}
	zeros := make([]byte, first+rest)
	sum, _ := checksum(mem.AddressOf(zeros), first+rest)
	arrive(append(appendFrame(nil, header{kind: kindData, flag: flagChecked, length: first + rest},
		record{id: 1, length: first + rest, classOrSum: sum}), zeros[:first]...))
	require.Equal(t, zeros[:first], memory[:first])
	takeAway(t, memory[:first])
	arrive(appendFrame(zeros[first:], header{kind: kindServed}))
	require.Equal(t, zeros[:rest], memory[first:][:rest])
	require.Len(t, w.ended, 1)
	require.NotNil(t, w.ended[0].Err)
	require.Equal(t, errs.AddressNotRegistered, w.ended[0].Err.Code)
	require.Equal(t, errs.SideLocal, w.ended[0].Err.Side)
	require.False(t, l.isDown(), "the lane lives on")
	l.link.settleLane(l, w)
}
