package tcp

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// TestWritesAreCheckedWhereTheyLand plays an initiator, and changes bytes on their way.
func TestWritesAreCheckedWhereTheyLand(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	memory := mapping(t, 4096)
	_, d, err := e.tr.Register(context.Background(), regionOf(memory))
	require.NoError(t, err)
	key := binary.LittleEndian.Uint64(d[8:])
	c := e.guest(t)
	one, two := []byte("some bytes"), []byte("and others")
	send := func(seq uint64, flag uint8, sums ...uint32) {
		f := appendFrame(nil, header{kind: kindWrite, flag: flag, length: 20, seq: seq},
			record{id: key, offset: 0, length: 10, classOrSum: sums[0]},
			record{id: key, offset: 100, length: 10, classOrSum: sums[1]})
		_, err := c.Write(append(append(f, one...), two...))
		require.NoError(t, err)
	}
	good := []uint32{crc32.Checksum(one, castagnoli), crc32.Checksum(two, castagnoli)}
	send(1, flagChecked, good...)
	require.Equal(t, header{kind: kindAck, seq: 2}, readHeader(t, c))
	require.Equal(t, "some bytes", string(memory[:10]))
	send(3, flagChecked, good[0], good[1]^1<<17)
	require.Equal(t, header{kind: kindNack, count: 1}, readHeader(t, c))
	require.Equal(t, record{id: 4, length: uint32(errs.Corrupted)}, readRecord(t, c))
	require.Equal(t, header{kind: kindAck, seq: 4}, readHeader(t, c), "the lane lives on")
	send(5, 0, 0, 0)
	require.Equal(t, header{kind: kindAck, seq: 6}, readHeader(t, c), "what is not checked is not compared")
}

func TestReadsCarryTheirChecksums(t *testing.T) {
	e := newTestEndpoint(t, Settings{})
	memory := mapping(t, 1<<20)
	_, d, err := e.tr.Register(context.Background(), regionOf(memory))
	require.NoError(t, err)
	key := binary.LittleEndian.Uint64(d[8:])
	c := e.guest(t)
	_, err = c.Write(appendFrame(nil, header{kind: kindRead, flag: flagChecked, seq: 1},
		record{id: key, length: 100}, record{id: key, offset: 1000, length: 600_000}))
	require.NoError(t, err)
	for left := 600_100; left > 0; {
		h := readHeader(t, c)
		require.Equal(t, kindData, h.kind)
		require.EqualValues(t, flagChecked, h.flag)
		var table []record
		for range h.count {
			table = append(table, readRecord(t, c))
		}
		for _, r := range table {
			b := make([]byte, r.length)
			_, err := io.ReadFull(c, b)
			require.NoError(t, err)
			require.Equal(t, crc32.Checksum(b, castagnoli), r.classOrSum)
			left -= len(b)
		}
		require.Equal(t, header{kind: kindServed}, readHeader(t, c))
	}
	_, err = c.Write(appendFrame(nil, header{kind: kindRead, seq: 3}, record{id: key, length: 100}))
	require.NoError(t, err)
	require.Zero(t, readHeader(t, c).flag)
	require.Zero(t, readRecord(t, c).classOrSum, "no cost for who does not ask")
}

func readHeader(t *testing.T, c net.Conn) header {
	t.Helper()
	b := make([]byte, headerBytes)
	_, err := io.ReadFull(c, b)
	require.NoError(t, err)
	return getHeader(b)
}

func readRecord(t *testing.T, c net.Conn) record {
	t.Helper()
	b := make([]byte, recordBytes)
	_, err := io.ReadFull(c, b)
	require.NoError(t, err)
	return getRecord(b)
}

// TestReadsAreCheckedWhereTheyLand plays a responder, and changes bytes on their way.
func TestReadsAreCheckedWhereTheyLand(t *testing.T) {
	bytes := []byte("the bytes of a slice")
	half, sum := len(bytes)/2, func(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
	frame := func(flag uint8, at int, b []byte, sum uint32) []byte {
		f := appendFrame(nil, header{kind: kindData, flag: flag, length: uint32(len(b))},
			record{id: 1, offset: uint64(at), length: uint32(len(b)), classOrSum: sum})
		return appendFrame(append(f, b...), header{kind: kindServed})
	}
	halves := func(first, second uint32) []byte {
		return append(frame(flagChecked, 0, bytes[:half], first), frame(flagChecked, half, bytes[half:], second)...)
	}
	first, second := sum(bytes[:half]), sum(bytes[half:])
	for name, c := range map[string]struct {
		stream []byte
		code   errs.Code
		open   bool
	}{
		"sound":          {frame(flagChecked, 0, bytes, sum(bytes)), errs.OK, true},
		"sound halves":   {halves(first, second), errs.OK, true},
		"a flipped bit":  {frame(flagChecked, 0, bytes, sum(bytes)^1), errs.Corrupted, true},
		"in first half":  {halves(0, second), errs.Corrupted, true},
		"in second half": {halves(first, 0), errs.Corrupted, true},
		"no checksum":    {frame(0, 0, bytes, 0), errs.Protocol, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newTestEndpoint(t, Settings{Workers: 1})
			memory := mapping(t, 4096)
			key, _, err := e.tr.Register(context.Background(), regionOf(memory))
			require.NoError(t, err)
			l, other := handLane(t, e.tr.(*Transport))
			s := &transport.Slice{Op: transport.Read, Checked: true, LocalKey: key, RemoteKey: 1,
				Local: mem.AddressOf(memory), Length: uint64(len(bytes))}
			var w *worker
			n, _ := l.accept([]*transport.Slice{s}, &w)
			require.Equal(t, 1, n)
			l.pump(submitBudget)
			_, err = unix.Write(other, c.stream)
			require.NoError(t, err)
			w = e.tr.(*Transport).newWorker()
			l.readMu.Lock()
			_, open := l.drain(w, 1<<20)
			l.readMu.Unlock()
			require.Equal(t, c.open, open)
			l.link.settleLane(l, w)
			require.Len(t, w.ended, 1)
			if c.code == errs.OK {
				require.Nil(t, w.ended[0].Err)
				require.Equal(t, bytes, memory[:len(bytes)])
				return
			}
			require.Equal(t, c.code, w.ended[0].Err.Code)
			if c.open {
				require.Equal(t, errs.ScopeSlice, w.ended[0].Err.Scope)
				require.Equal(t, errs.SidePath, w.ended[0].Err.Side)
				require.True(t, l.out.idle(), "the rest of the slice has gone by")
			}
		})
	}
}

// handLane is an initiator's lane; the test is its responder, at the returned socket.
func handLane(t testing.TB, tr *Transport) (*initiatorLane, int) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	l := tr.newLink(transport.Peer{})
	l.offer = offer{requests: requestsMin, bytes: 1 << 20}
	lane := (&laneSet{rail: &rail{link: l}}).newInitiatorLane(fds[0], 1, 0, nil, nil)
	l.lanes[1] = lane
	return lane, fds[1]
}

// TestASourceThatChangesWhileItIsSentIsFound goes the whole way. Either the bytes that were sealed arrive, or the slice
// fails, and the same slice passes when its source is at rest.
func TestASourceThatChangesWhileItIsSentIsFound(t *testing.T) {
	near, _ := neighbours(t, 8<<20)
	var stop atomic.Bool
	ended := make(chan struct{})
	word := near.memory[1<<20-8:][:8] // the last bytes of the slice
	go func() {
		defer close(ended)
		for n := uint64(0); !stop.Load(); n++ {
			binary.LittleEndian.PutUint64(word, n)
		}
	}()
	corrupted := 0
	late := time.Now().Add(10 * time.Second)
	for corrupted == 0 && time.Now().Before(late) {
		s := near.slice(transport.Write, 0, 0, 1<<20)
		s.Checked = true
		require.Equal(t, 1, near.tr.Submit([]*transport.Slice{s}))
		near.awaitEnds(t, 5*time.Second, s)
		if err := near.ends[s].Err; err != nil {
			require.Equal(t, errs.Corrupted, err.Code)
			require.Equal(t, errs.SidePath, err.Side)
			corrupted++
		}
	}
	stop.Store(true)
	<-ended
	require.NotZero(t, corrupted, "a source that changed was never noticed")
	s := near.slice(transport.Write, 0, 0, 1<<20)
	s.Checked = true
	require.Equal(t, 1, near.tr.Submit([]*transport.Slice{s}))
	near.awaitEnds(t, 5*time.Second, s)
	require.Nil(t, near.ends[s].Err)
	require.Zero(t, near.downs)
}

// BenchmarkChecksum measures the additional cost of a checked slice on each side.
func BenchmarkChecksum(b *testing.B) {
	memory := mapping(b, 1<<20)
	b.SetBytes(int64(len(memory)))
	for b.Loop() {
		crc32.Checksum(memory, castagnoli)
	}
}
