package file

import (
	"bytes"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// TestAnyRangeOfAnyMemory moves random ranges, at every alignment of file, memory and length. It compares file and
// memory with a shadow of the bytes that they should hold. On a disk, io-uring takes all its ways: direct, bounced,
// edges.
func TestAnyRangeOfAnyMemory(t *testing.T) {
	const size = 3<<20 + 777
	rounds := uint64(150)
	if transporttest.RaceEnabled { // every round meets the same goroutines
		rounds = 15
	}
	both(t, Settings{}, func(t *testing.T, r *rig) {
		random := seeded(t)
		o := r.open(transport.FileSpec{Path: onDisk(t), Create: true, Size: size})
		shadow := make([]byte, size)
		for _, aligned := range []bool{true, false} {
			m := r.memory(1<<20, aligned)
			for i := range rounds {
				length := []uint64{1 + random.Uint64N(100), 1 + random.Uint64N(20_000), 1 + random.Uint64N(1<<20),
					4096 * (1 + random.Uint64N(256))}[random.IntN(4)]
				offset := random.Uint64N(size - length + 1)
				at := random.Uint64N(m.size - length + 1)
				if random.IntN(2) == 0 {
					offset, at = offset&^4095, at&^4095
				}
				m.fill(i, at, length)
				r.must(o.slice(transport.Write, m, at, offset, length))
				transporttest.Pattern(shadow[offset:offset+length], i, at)
				back := random.Uint64N(m.size - length + 1)
				m.fill(1000, 0, m.size)
				r.must(o.slice(transport.Read, m, back, offset, length))
				require.NoError(t, m.check(1000, 0, 0, back), "before what was read")
				require.NoError(t, m.check(i, at, back, length))
				require.NoError(t, m.check(1000, back+length, back+length, m.size-back-length), "behind what was read")
			}
		}
		require.True(t, bytes.Equal(shadow, content(t, o.file.Path)), "the file is not what was written")
	})
}

// TestNeighboursInOneBlockLoseNothing lets four engines, two of each transport, write stripes of one file at the same
// time. The stripes are shorter than a block, or end inside one, so each block has bytes of several engines.
func TestNeighboursInOneBlockLoseNothing(t *testing.T) {
	const engines = 4
	for _, stripe := range []uint64{100, 5000, 70_001} {
		t.Run(fmt.Sprint(stripe), func(t *testing.T) {
			random, path, count := seeded(t), onDisk(t), min(600, 6<<20/stripe)
			var rigs [engines]*rig
			var lists [engines][]*transport.Slice
			for e := range rigs {
				r := newRig(t, factoryFor(e), Settings{})
				o := r.open(transport.FileSpec{Path: path, Create: true, Size: count * stripe})
				m := r.memory(int(count*stripe), e < 2)
				m.fill(7, 0, m.size)
				for _, i := range random.Perm(int(count)) {
					if at := uint64(i) * stripe; i%engines == e {
						lists[e] = append(lists[e], o.slice(transport.Write, m, at, at, stripe))
					}
				}
				rigs[e] = r
			}
			var wait sync.WaitGroup
			for e, r := range rigs {
				wait.Go(func() { r.send(lists[e]...) })
			}
			wait.Wait()
			for e, r := range rigs {
				for _, end := range r.wait(lists[e]...) {
					require.Nil(t, end.Err)
				}
			}
			want := make([]byte, count*stripe)
			transporttest.Pattern(want, 7, 0)
			require.True(t, bytes.Equal(want, content(t, path)))
		})
	}
}

// factoryFor gives engines io-uring and buf-io in turn, where there is io_uring.
func factoryFor(engine int) transport.Factory {
	if engine%2 == 1 || (UringFactory{}).Check() != nil {
		return BufferedFactory{}
	}
	return UringFactory{}
}

// TestPiecesGoWhereTheyBelong moves slices of many pieces, in any order on both sides, of sizes that fit blocks and do
// not.
func TestPiecesGoWhereTheyBelong(t *testing.T) {
	both(t, Settings{}, func(t *testing.T, r *rig) {
		random := seeded(t)
		for _, size := range []uint64{1, 100, 512, 4096, 5000, 65536} {
			n := min(200, 1<<20/size)
			o := r.open(transport.FileSpec{Path: onDisk(t), Create: true, Size: n*size + 10_000})
			for _, sorted := range []bool{true, false} {
				m := r.memory(int(n*size), size%512 == 0)
				p := &transport.Pieces{Bytes: size}
				local, remote := random.Perm(int(n)), random.Perm(int(n))
				for i := range n {
					if sorted {
						remote[i] = int(i) // neighbours in the file, anywhere in memory
					}
					p.LocalAt = append(p.LocalAt, uint64(local[i])*size)
					p.RemoteAt = append(p.RemoteAt, uint64(remote[i])*size)
				}
				base := []uint64{0, 4096, 333}[random.IntN(3)]
				move := func(op transport.Op) {
					var list []*transport.Slice
					for first := uint64(0); first < n; {
						count := min(n-first, 1+random.Uint64N(n))
						s := o.slice(op, m, 0, base, count*size)
						s.Pieces, s.First = p, uint32(first)
						list = append(list, s)
						first += count
					}
					r.must(list...)
				}
				m.fill(5, 0, m.size)
				move(transport.Write)
				got := content(t, o.file.Path)
				want := make([]byte, size)
				for i := range n {
					transporttest.Pattern(want, 5, p.LocalAt[i])
					at := base + p.RemoteAt[i]
					require.True(t, bytes.Equal(want, got[at:at+size]), "piece %d of %d bytes", i, size)
				}
				m.fill(6, 0, m.size)
				move(transport.Read)
				require.NoError(t, m.check(5, 0, 0, m.size))
			}
		}
	})
}

// TestEachAnswerOfTheKernelHasItsOutcome: those that a disk on this machine never gives, too.
func TestEachAnswerOfTheKernelHasItsOutcome(t *testing.T) {
	f := &file{}
	f.direct.Store(true)
	land := func(op transport.Op, direct bool, result int32) (*operation, outcome) {
		s := &transport.Slice{Op: op, Length: 8192}
		o := &operation{item: &item{file: f, slice: s}, length: 8192, direct: direct}
		return o, o.land(&base{name: "io-uring"}, result)
	}
	for _, op := range []transport.Op{transport.Read, transport.Write} {
		o, is := land(op, true, 4096)
		require.Equal(t, opAgain, is)
		require.Equal(t, []uint64{4096, 4096}, []uint64{o.done, o.offset})
		_, is = land(op, true, 8192)
		require.Equal(t, opDone, is)
		for _, again := range []syscall.Errno{unix.EINTR, unix.EAGAIN, unix.ECANCELED} {
			o, is = land(op, true, -int32(again))
			require.Equal(t, opAgain, is)
			o.tries = retryMost
			require.Equal(t, opFailed, o.land(&base{}, -int32(again)), "not for good")
		}
		o, is = land(op, false, 0)
		require.Equal(t, opFailed, is)
		want := [...]errs.Code{errs.AddressNotRegistered, errs.StorageError} // cut short, or the disk's trouble
		require.Equal(t, want[op&1], o.err.Code)
		o, is = land(op, true, -int32(unix.EINVAL))
		require.Equal(t, opAgain, is, "O_DIRECT is refused: the page cache takes it")
		require.False(t, o.direct)
		require.False(t, f.direct.Load(), "and all others of the file")
		o, is = land(op, false, -int32(unix.EINVAL))
		require.Equal(t, opFailed, is)
		require.Equal(t, errs.InvalidArgument, o.err.Code)
	}
}

// TestAPieceBeyondTheEndOfNumbersIsRefused: it would lie inside again, at another place.
func TestAPieceBeyondTheEndOfNumbersIsRefused(t *testing.T) {
	const size = 1 << 16
	tr, f := &base{name: "io-uring"}, &file{card: card{transport.FileCard{Path: "/x", Size: size}}}
	r := &mem.Region{Addr: 1 << 20, Size: size}
	for _, each := range []struct {
		local, remote uint64 // of the second piece, beside the first ones
		is            errs.Code
	}{
		{4096, 4096, errs.OK},
		{size - 8192, size - 8192, errs.OK},
		{size - 4096, 0, errs.AddressNotRegistered},
		{0, size - 4096, errs.InvalidArgument},
		{^uint64(4095), 0, errs.AddressNotRegistered}, // one piece in front of both
		{0, ^uint64(4095), errs.InvalidArgument},
	} {
		s := &transport.Slice{Local: r.Addr + 4096, Remote: 4096, Length: 8192, Pieces: &transport.Pieces{Bytes: 4096,
			LocalAt: []uint64{0, each.local}, RemoteAt: []uint64{0, each.remote}}}
		is := errs.OK
		if err := tr.checkPieces(s, f, r); err != nil {
			is = err.Code
		}
		require.Equal(t, each.is, is, "%+v", each)
	}
}

// TestAWriteIsWholeOrHasAReason: one that takes nothing, or is disturbed for good, ends as well.
func TestAWriteIsWholeOrHasAReason(t *testing.T) {
	for _, each := range []struct {
		takes int
		err   error
		done  int
		errno syscall.Errno
	}{{10, nil, 10, 0}, {3, nil, 10, 0}, {0, nil, 0, unix.EIO}, {-1, unix.EINTR, 0, unix.EINTR},
		{-1, unix.EAGAIN, 0, unix.EAGAIN}, {-1, unix.ENOSPC, 0, unix.ENOSPC}} {
		var got []byte
		done, errno := writeAll([]byte("0123456789"), func(rest []byte, done int) (int, error) {
			require.Len(t, rest, 10-done)
			if each.err != nil {
				return each.takes, each.err
			}
			n := min(each.takes, len(rest))
			got = append(got, rest[:n]...)
			return n, nil
		})
		require.Equal(t, each.done, done)
		require.Equal(t, each.errno, errno)
		require.Equal(t, "0123456789"[:done], string(got))
	}
}
