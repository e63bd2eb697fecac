package kit

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestAReaderGivesBackWhatWasWrittenAndNothingOfAShortMessage(t *testing.T) {
	whole := AppendBool(AppendText([]byte{7}, "name"), true)
	whole = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(whole, 1<<31), 1<<63)
	read := func(b []byte) *Reader {
		r := NewReader(b)
		first, text, yes, small, large := r.U8(), r.Text(), r.U8(), r.U32(), r.U64()
		if !r.Short() {
			require.Equal(t, []any{byte(7), "name", byte(1), uint32(1 << 31), uint64(1 << 63)},
				[]any{first, text, yes, small, large})
		} else {
			require.Zero(t, large)
		}
		return r
	}
	for n := range whole {
		r := read(whole[:n])
		require.True(t, r.Short() && !r.Whole(), "%d bytes", n)
	}
	require.True(t, read(whole).Whole())
	longer := read(append(whole, 0))
	require.False(t, longer.Whole())
	require.Equal(t, 1, longer.Left())
	require.Len(t, AppendText(nil, string(make([]byte, 300))), 256)
	hostile := NewReader(AppendText(nil, "mlx5_0\r\n\x1b[2J\xff"))
	require.Equal(t, "mlx5_0\uFFFD\uFFFD\uFFFD[2J\uFFFD", hostile.Text(), "a peer writes no lines, and moves no cursor")
	require.True(t, hostile.Whole())
}

// Neither side of a message takes another byte for a yes.
func TestABoolIsOneOfTwoBytes(t *testing.T) {
	for b := range 256 {
		r := NewReader([]byte{byte(b)})
		require.Equal(t, b == 1, r.Bool())
		require.Equal(t, b < 2, r.Whole(), "%d", b)
	}
}

func TestTheEndBeginsBehindTheGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Lifecycle
		goOn, ended := make(chan struct{}), false
		require.True(t, l.Go(func() { <-goOn }))
		closed := make(chan error)
		go func() { closed <- l.Close(t.Context(), func() error { ended = true; return nil }) }()
		synctest.Wait()
		require.False(t, ended)
		require.False(t, l.Go(func() { t.Error("it has begun after Close") }))
		close(goOn)
		require.NoError(t, <-closed)
		require.True(t, ended)
	})
}

func TestNothingBeginsAfterCloseAndEndSeesAllThatBegan(t *testing.T) {
	for range 200 {
		var l Lifecycle
		var begun, seen int
		var mu sync.Mutex
		var wait sync.WaitGroup
		for range 4 {
			wait.Go(func() {
				for l.Begin(func() { mu.Lock(); begun++; mu.Unlock() }) {
				}
			})
		}
		require.NoError(t, l.Close(t.Context(), func() error { mu.Lock(); seen = begun; mu.Unlock(); return nil }))
		wait.Wait()
		require.Equal(t, seen, begun)
		require.True(t, l.Closed())
	}
}

func TestEachCloseReturnsWhenEndHasOrItsContextEnds(t *testing.T) {
	var l Lifecycle
	require.False(t, l.Closed())
	release, why := make(chan struct{}), errors.New("held")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, l.Close(ctx, func() error { <-release; return why }), context.Canceled)
	close(release)
	never := func() error { t.Error("end runs once"); return nil }
	require.ErrorIs(t, l.Close(t.Context(), never), why)
	require.ErrorIs(t, l.Close(ctx, never), why, "it has ended, so the context does not matter")
}

func TestOnlyMemoryOfTheHostThatIsThereIsRegistered(t *testing.T) {
	var life Lifecycle
	require.Nil(t, CheckRegister("x", &life, &mem.Region{Addr: 1, Size: 1}))
	elsewhere := mem.Region{Addr: 1, Size: 1, Kind: mem.File}
	require.Equal(t, errs.NotHere, errs.CodeOf(CheckRegister("x", &life, &elsewhere)), "another transport moves it")
	for _, m := range []mem.Region{{Size: 1}, {Addr: 1}, {Addr: 2, Size: math.MaxUint64}} {
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(CheckRegister("x", &life, &m)), "%+v", m)
	}
	require.NoError(t, life.Close(t.Context(), func() error { return nil }))
	require.Equal(t, errs.EngineClosed, errs.CodeOf(CheckRegister("x", &life, &mem.Region{Addr: 1, Size: 1})))
}

func TestChecksOfASlicesTwoEnds(t *testing.T) {
	local := func(op transport.Op, at uintptr, n uint64, fixed bool) errs.Code {
		return CheckLocal(&transport.Slice{Op: op, Local: at, Length: n}, 1000, 100, fixed)
	}
	require.Equal(t, errs.OK, local(transport.Read, 1000, 100, false))
	require.Equal(t, errs.OK, local(transport.Write, 1000, 100, true))
	require.Equal(t, errs.PermissionDenied, local(transport.Read, 1000, 100, true))
	require.Equal(t, errs.AddressNotRegistered, local(transport.Read, 999, 1, false))
	require.Equal(t, errs.AddressNotRegistered, local(transport.Read, 1001, 100, false))

	pieces := &transport.Pieces{LocalAt: []uint64{0, 50, 90}, RemoteAt: []uint64{8, 0, math.MaxUint64 - 3}, Bytes: 4}
	s := &transport.Slice{Local: 1000, Remote: 4, Length: 8, Pieces: pieces}
	require.True(t, InsideRemote(s, 16))
	require.False(t, InsideRemote(s, 15), "its first piece ends at 16")
	s.First = 1
	require.False(t, InsideRemote(s, 1000), "the sum of offsets overflows")
	require.True(t, InsideRemote(&transport.Slice{Remote: 4, Length: 8}, 12))
	require.False(t, InsideRemote(&transport.Slice{Remote: 5, Length: 8}, 12))

	var parts [][3]uint64
	note := func(local uintptr, remote, n uint64) { parts = append(parts, [3]uint64{uint64(local), remote, n}) }
	s.First = 0
	EachPart(s, note)
	EachPart(&transport.Slice{Local: 7, Remote: 5, Length: 8}, note)
	require.Equal(t, [][3]uint64{{1000, 12, 4}, {1050, 4, 4}, {7, 5, 8}}, parts)
}
