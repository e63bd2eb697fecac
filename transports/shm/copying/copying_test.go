package copying

import (
	"math/rand/v2"
	"os"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
)

const page = 4096

// Copiers for which every transfer is large (they try both ways by turns), or none is.
func always() *Copier { return newCopier(0) }
func never() *Copier  { return newCopier(^uint64(0)) }

// area is mapped memory that the test owns.
func area(t testing.TB, size int) []byte {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

// fill writes a pattern that depends on the position and a seed.
func fill(b []byte, seed uint64) {
	for i := range b {
		b[i] = byte((uint64(i) + seed) * 0x9e37_79b9_7f4a_7c15 >> 56)
	}
}

// Every length and alignment around the borders of lines and chunks: the bytes arrive, and those beside them stay.
func TestCopyIsExact(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	from, to := area(t, 3<<20), area(t, 3<<20)
	fill(from, seed)
	fill(to, seed+1)
	want := append([]byte(nil), to...)
	copiers := []*Copier{always(), never()}
	sizes := []uint64{1, 63, 64, 65, 127, 128, streamBytes - 1, streamBytes, streamBytes + 1, chunkBytes - 1,
		chunkBytes, chunkBytes + 1, 2*chunkBytes + 77}
	for round := range 400 {
		size := sizes[random.IntN(len(sizes))]
		if round%2 == 0 {
			size = 1 + random.Uint64N(1<<17)
		}
		copier := copiers[random.IntN(2)]
		i, o := random.Uint64N(uint64(len(from))-size+1), random.Uint64N(uint64(len(to))-size+1)
		copy(want[o:o+size], from[i:i+size])
		require.Nil(t, copier.Copy(mem.AddressOf(to)+uintptr(o), mem.AddressOf(from)+uintptr(i), size, size))
		require.Equal(t, want[o:o+size], to[o:o+size], "%d bytes from %d to %d", size, i, o)
	}
	require.Equal(t, want, []byte(to))
	for n := range uint64(200) { // the assembly itself, with every alignment
		size := 16384 + 300*n
		copy(want[n:], from[2*n:2*n+size])
		stream(mem.AddressOf(to)+uintptr(n), mem.AddressOf(from)+uintptr(2*n), size)
	}
	require.Equal(t, want, []byte(to))
}

func TestPiecesArriveWhereTheyBelong(t *testing.T) {
	for _, copier := range []*Copier{always(), never()} {
		const bytes, count = streamBytes + 1, 20
		from, to := area(t, 2*bytes*count), area(t, 2*bytes*count)
		fill(from, 1)
		fill(to, 2)
		want := append([]byte(nil), to...)
		var dstAt, srcAt []uint64
		for i, n := range rand.Perm(count) {
			dstAt, srcAt = append(dstAt, uint64(2*i*bytes)), append(srcAt, uint64(2*n*bytes+n))
			copy(want[dstAt[i]:][:bytes], from[srcAt[i]:])
		}
		done, fault := copier.Pieces(mem.AddressOf(to), mem.AddressOf(from), dstAt, srcAt, bytes, bytes*count)
		require.Nil(t, fault)
		require.Equal(t, count, done)
		require.Equal(t, want, []byte(to))
	}
}

// Memory that is not there is an answer: SIGSEGV of memory that was unmapped or may not be written, SIGBUS of a file
// cut short.
func TestFaultIsAnAnswer(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	const size = 1 << 20
	require.NoError(t, file.Truncate(size))
	cut, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer unix.Munmap(cut)
	require.NoError(t, file.Truncate(size/2))
	none, fixed, good := area(t, size), area(t, size), area(t, size)
	require.NoError(t, unix.Mprotect(none[size/2:], unix.PROT_NONE))
	require.NoError(t, unix.Mprotect(fixed[size/2:], unix.PROT_READ))
	for name, c := range map[string]struct{ dst, src []byte }{
		"into a hole": {none, good}, "out of a hole": {good, none}, "into read-only memory": {fixed, good},
		"into a file cut short": {cut, good}, "out of a file cut short": {good, cut},
	} {
		bad := c.dst
		if &c.dst[0] == &good[0] {
			bad = c.src
		}
		for _, copier := range []*Copier{always(), never()} {
			for _, bytes := range []uint64{size, size/2 + 1, size/2 + page} {
				fault := copier.Copy(mem.AddressOf(c.dst), mem.AddressOf(c.src), bytes, bytes)
				require.NotNil(t, fault, name)
				require.GreaterOrEqual(t, fault.Addr, mem.AddressOf(bad)+size/2, name)
				require.Less(t, fault.Addr, mem.AddressOf(bad)+size, name)
			}
			require.Nil(t, copier.Copy(mem.AddressOf(c.dst), mem.AddressOf(c.src), size/2, size/2),
				"%s: what is there", name)
			at := []uint64{0, page, size / 2, 2 * page}
			done, fault := copier.Pieces(mem.AddressOf(c.dst), mem.AddressOf(c.src), at, at, page, size)
			require.NotNil(t, fault, name)
			require.Equal(t, 2, done, name)
		}
	}
}

// A mistake in our own code must not be taken for a fault of the user's memory, and the goroutine is as it was.
func TestOtherPanicsGoOn(t *testing.T) {
	require.Panics(t, func() { _, _ = never().Pieces(page, page, []uint64{1}, nil, 1, 1) })
	require.False(t, debug.SetPanicOnFault(false), "as before the call")
	require.Equal(t, &Fault{Addr: 8}, never().Copy(8, page, 1, 1), "near zero")
	require.NotNil(t, never().Copy(page, 2*page, 1, 1))
	require.False(t, debug.SetPanicOnFault(false))
}

func TestCopyingCostsNoAllocation(t *testing.T) {
	a, b := area(t, 1<<20), area(t, 1<<20)
	at := []uint64{0, page, 3 * page}
	for _, copier := range []*Copier{always(), never()} {
		require.Zero(t, testing.AllocsPerRun(100, func() {
			copier.Copy(mem.AddressOf(a), mem.AddressOf(b), 1<<20, 1<<20)
			copier.Pieces(mem.AddressOf(a), mem.AddressOf(b), at, at, page, 1<<20)
		}))
	}
}

func TestCopierKnowsTheCache(t *testing.T) {
	c := New()
	require.GreaterOrEqual(t, c.largeFrom, uint64(64<<10))
	require.LessOrEqual(t, c.largeFrom, uint64(1<<30))
}
