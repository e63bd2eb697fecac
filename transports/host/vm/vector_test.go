package vm

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
)

const page = 4096

// area is mapped memory that the test owns.
func area(t testing.TB, size int) []byte {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

func addr(b []byte) uintptr { return uintptr(unsafePointer(b)) }

// fill writes a pattern that depends on the position and a seed.
func fill(b []byte, seed uint64) {
	for i := range b {
		b[i] = byte((uint64(i) + seed) * 0x9e37_79b9_7f4a_7c15 >> 56)
	}
}

// mover adds pieces to a vector and moves it whenever it is full.
type mover struct {
	t     testing.TB
	v     *Vector
	write bool
	moved uint64
}

func (m *mover) add(local, remote uintptr, bytes uint64) {
	for bytes > 0 {
		n := m.v.Add(local, remote, bytes)
		if n == 0 {
			m.flush()
			continue
		}
		local, remote, bytes = local+uintptr(n), remote+uintptr(n), bytes-n
	}
}

func (m *mover) flush() {
	want := m.v.Bytes()
	op := m.v.Read
	if m.write {
		op = m.v.Write
	}
	done, errno := op(os.Getpid())
	require.Zero(m.t, errno)
	require.Equal(m.t, want, done)
	require.Zero(m.t, m.v.Bytes())
	m.moved += done
}

// Random pieces in both directions, against the same moves by copy: every byte where it belongs, none elsewhere.
func TestPiecesArriveWhereTheyBelong(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const size = 1 << 20
	near, far := area(t, size), area(t, size)
	v := New(200_000) // several calls a round, cut in the midst of pieces
	for round := range 60 {
		fill(near, seed+uint64(2*round))
		fill(far, seed+uint64(2*round+1))
		m := &mover{t: t, v: v, write: random.IntN(2) == 0}
		from, to := far, near
		if m.write {
			from, to = near, far
		}
		want := append([]byte(nil), to...)
		total := 0
		for i, o := 0, 0; ; {
			bytes := 1 + random.IntN(random.IntN(5000)+1)
			i += random.IntN(2) * random.IntN(200) // half of the pieces touch the one before, on either side
			o += random.IntN(2) * random.IntN(200)
			if i+bytes > size || o+bytes > size {
				break
			}
			copy(want[o:o+bytes], from[i:i+bytes])
			if m.write {
				m.add(addr(near)+uintptr(i), addr(far)+uintptr(o), uint64(bytes))
			} else {
				m.add(addr(near)+uintptr(o), addr(far)+uintptr(i), uint64(bytes))
			}
			i, o, total = i+bytes, o+bytes, total+bytes
		}
		if v.Bytes() > 0 {
			m.flush()
		}
		require.EqualValues(t, total, m.moved)
		require.Equal(t, want, to, "round %d", round)
	}
}

// Pieces that come in any order are not one, wherever the next one begins.
func TestPiecesMayGoBackwards(t *testing.T) {
	near, far := area(t, 4*page), area(t, 4*page)
	fill(near, 1)
	fill(far, 2)
	want := append([]byte(nil), far...)
	v := New(0)
	for i := 3; i >= 0; i-- {
		o := uintptr(i) * page
		copy(want[o:o+page/2], near[o:o+page/2])
		require.EqualValues(t, page/2, v.Add(addr(near)+o, addr(far)+o, page/2))
	}
	done, errno := v.Write(os.Getpid())
	require.Zero(t, errno)
	require.EqualValues(t, 2*page, done)
	require.Equal(t, want, far)
}

func TestVectorIsBounded(t *testing.T) {
	v := New(10_000)
	require.EqualValues(t, 9000, v.Add(1<<20, 1<<30, 9000))
	require.EqualValues(t, 1000, v.Add(2<<20, 2<<30, 9000), "the beginning of a piece")
	require.Zero(t, v.Add(3<<20, 3<<30, 1))
	v.Reset()
	for i := range uintptr(PiecesMax) {
		require.EqualValues(t, 1, v.Add(1<<20+2*i, 1<<30+3*i, 1))
	}
	require.Zero(t, v.Add(2<<20, 2<<30, 1), "a piece too many")
	require.EqualValues(t, 5, v.Add(1<<20+2*(PiecesMax-1)+1, 1<<30+3*(PiecesMax-1)+1, 5),
		"what continues the last one has room")
}

// Bytes that were moved before the hole are counted to the byte's piece, and the side with the hole is named.
func TestFaultTellsWhereAndWhose(t *testing.T) {
	me := os.Getpid()
	for _, c := range []struct {
		name         string
		write, local bool
		protection   int
	}{
		{"write from a hole", true, true, unix.PROT_NONE},
		{"write into a hole", true, false, unix.PROT_NONE},
		{"write into read-only memory", true, false, unix.PROT_READ},
		{"read into a hole", false, true, unix.PROT_NONE},
		{"read into read-only memory", false, true, unix.PROT_READ},
		{"read from a hole", false, false, unix.PROT_NONE},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, far := area(t, 8*page), area(t, 8*page)
			fill(near, 1)
			fill(far, 2)
			hole, side := far[3*page:4*page], errs.SideRemote
			if c.local {
				hole, side = near[3*page:4*page], errs.SideLocal
			}
			require.NoError(t, unix.Mprotect(hole, c.protection))
			v := New(0)
			for i := range 8 * page / 512 { // pieces of half the distance: none touches the next
				require.EqualValues(t, 256, v.Add(addr(near)+uintptr(512*i), addr(far)+uintptr(512*i), 256))
			}
			op := v.Read
			if c.write {
				op = v.Write
			}
			done, errno := op(me)
			require.Equal(t, unix.EFAULT, errno)
			require.EqualValues(t, 3*page/2, done, "all that lies before the hole")
			bad := uintptr(3 * page)
			require.Equal(t, side, Blame(me, c.write, addr(near)+bad, addr(far)+bad))
			err := Error("shm.write", errno, side)
			require.True(t, err.Permanent())
			require.Equal(t, errs.ScopeSlice, err.Scope)
		})
	}
}

// A piece that the kernel moves in part goes on behind the moved bytes, and stops at its hole. A second call that began
// anew would find the first pages there, and take them for the rest.
func TestALongPieceStopsAtItsHole(t *testing.T) {
	me := os.Getpid()
	for _, write := range []bool{true, false} {
		near, far := area(t, 8*page), area(t, 8*page)
		fill(near, 1)
		fill(far, 2)
		from, to := far, near
		v := New(0)
		op := v.Read
		if write {
			from, to, op = near, far, v.Write
		}
		want := append([]byte(nil), to...)
		copy(want[:3*page], from[:3*page])
		require.NoError(t, unix.Mprotect(far[3*page:4*page], unix.PROT_NONE))
		require.EqualValues(t, 8*page, v.Add(addr(near), addr(far), 8*page))
		done, errno := op(me)
		require.Equal(t, unix.EFAULT, errno)
		require.EqualValues(t, 3*page, done)
		require.NoError(t, unix.Mprotect(far[3*page:4*page], unix.PROT_READ|unix.PROT_WRITE))
		require.Equal(t, want, to, "write %v: bytes behind the hole, or before it", write)
	}
}

func TestMovingCostsNoAllocation(t *testing.T) {
	b := area(t, 64*page)
	v := New(0)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for i := range uintptr(32) {
			v.Add(addr(b)+2*i*page, addr(b)+(2*i+1)*page, page)
		}
		if _, errno := v.Write(os.Getpid()); errno != 0 {
			t.Error(errno)
		}
	}))
}
