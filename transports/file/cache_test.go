package file

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// cachedFile is a file of a disk that a rig of io-uring has opened, with the pattern of a tag in it.
type cachedFile struct {
	*opened
	t     testing.TB
	plain *os.File
}

func newCachedFile(t *testing.T, tag, size uint64) *cachedFile {
	r, path := newRig(t, UringFactory{}, Settings{}), onDisk(t)
	content := make([]byte, size)
	transporttest.Pattern(content, tag, 0)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	plain, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = plain.Close() })
	c := &cachedFile{r.open(transport.FileSpec{Path: path}), t, plain}
	if !r.tr.(*Uring).fileOf(c.key).direct.Load() {
		t.Skip("not run: the file system of the temporary folder takes no O_DIRECT")
	}
	return c
}

// evict takes a range out of the page cache.
func (c *cachedFile) evict(at, n int64) {
	require.NoError(c.t, c.plain.Sync())
	require.NoError(c.t, unix.Fadvise(int(c.plain.Fd()), at, n, unix.FADV_DONTNEED))
}

// misdirect lets every READ past the page cache find other bytes, so that bytes show which way they came.
func (c *cachedFile) misdirect(tag, size uint64) {
	other := onDisk(c.t)
	content := make([]byte, size)
	transporttest.Pattern(content, tag, 0)
	require.NoError(c.t, os.WriteFile(other, content, 0o600))
	fd, err := unix.Open(other, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	require.NoError(c.t, err)
	defer unix.Close(fd)
	require.NoError(c.t, unix.Dup3(fd, int(c.r.tr.(*Uring).fileOf(c.key).straight.Load()), unix.O_CLOEXEC))
}

// TestReadsComeFromThePageCache: a READ of cached bytes needs no disk. Other bytes are read past the page cache. Both
// hold for aligned memory and for any other.
func TestReadsComeFromThePageCache(t *testing.T) {
	const size, cached, disk = 4 << 20, 1, 2
	for _, aligned := range []bool{true, false} {
		c := newCachedFile(t, cached, size)
		c.misdirect(disk, size)
		m := c.r.memory(size, aligned)
		all := func() (list []*transport.Slice) {
			for at := uint64(0); at < size; at += 1 << 20 {
				list = append(list, c.slice(transport.Read, m, at, at, 1<<20))
			}
			return list
		}
		c.r.must(all()...)
		require.NoError(t, m.check(cached, 0, 0, size))
		c.evict(0, size)
		c.r.must(all()...)
		require.NoError(t, m.check(disk, 0, 0, size))
	}
}

// TestInlineReadsCachedBytes: a small READ of cached bytes ends on its caller's thread. Bytes on the disk alone go by
// the ring, as does every WRITE.
func TestInlineReadsCachedBytes(t *testing.T) {
	const size = 64 << 10
	c := newCachedFile(t, 1, 2*size)
	m := c.r.memory(size, true)
	inline := func(op transport.Op, offset uint64) bool {
		return c.r.tr.(*Uring).Inline([]*transport.Slice{c.slice(op, m, 0, offset, size)})
	}
	require.True(t, inline(transport.Read, size))
	require.NoError(t, m.check(1, size, 0, size))
	require.False(t, inline(transport.Write, 0), "a WRITE would stay in the page cache")
	c.evict(0, 2*size)
	require.False(t, inline(transport.Read, 0))
	_, err := c.plain.ReadAt(make([]byte, 2*size), 0) // brings it back
	require.NoError(t, err)
	if c.r.tr.(*Uring).fileOf(c.key).blind.Load() {
		require.False(t, inline(transport.Read, 0), "one READ goes without a look after a miss")
	}
	require.True(t, inline(transport.Read, 0))
}

// TestMissesHideNoCachedBytes: where the kernel counts pages, bytes that come into the page cache behind many misses
// are found by the very next READ.
func TestMissesHideNoCachedBytes(t *testing.T) {
	const size, cached, disk = 1 << 20, 1, 2
	c := newCachedFile(t, cached, size)
	c.misdirect(disk, size)
	m := c.r.memory(size, true)
	c.evict(0, size)
	for range 200 {
		c.r.must(c.slice(transport.Read, m, 0, 0, 4096))
	}
	if c.r.tr.(*Uring).fileOf(c.key).blind.Load() {
		t.Skip("not run: the kernel counts no cached pages")
	}
	require.NoError(t, m.check(disk, 0, 0, 4096))
	_, err := c.plain.ReadAt(make([]byte, size), 0)
	require.NoError(t, err)
	c.r.must(c.slice(transport.Read, m, 0, 0, size))
	require.NoError(t, m.check(cached, 0, 0, size))
}

// TestALookAtAColdFileReadsNothing: a look that finds nothing leaves the page cache as it is, on the caller's thread
// and on the owner's. Reading ahead would read the disk twice.
func TestALookAtAColdFileReadsNothing(t *testing.T) {
	const size = 1 << 20
	c := newCachedFile(t, 1, size)
	m := c.r.memory(size, true)
	pages := func() uint64 {
		var found unix.Cachestat_t
		err := unix.Cachestat(uint(c.plain.Fd()), &unix.CachestatRange{Len: size}, &found, 0)
		if err != nil {
			t.Skipf("not run: the kernel counts no cached pages: %v", err)
		}
		return found.Cache
	}
	require.NotZero(t, pages())
	c.evict(0, size)
	require.False(t, c.r.tr.(*Uring).Inline([]*transport.Slice{c.slice(transport.Read, m, 0, 0, 64<<10)}))
	require.Zero(t, pages())
	for range 2 { // one of them looks
		c.r.must(c.slice(transport.Read, m, 0, 0, size))
	}
	require.Zero(t, pages())
	require.NoError(t, m.check(1, 0, 0, size))
}

// TestALookAtAColdFileEntersTheKernelNoMore: a READ that finds nothing in the page cache costs two calls into the ring,
// as one that does not look. One has the operation, and in the other the owner sleeps until the next READ.
func TestALookAtAColdFileEntersTheKernelNoMore(t *testing.T) {
	const size, reads = 1 << 20, 200
	c := newCachedFile(t, 1, size)
	m := c.r.memory(size, true)
	c.evict(0, size)
	entered := &c.r.tr.(*Uring).mover.(*owner).entered
	before := entered.Load()
	for i := range uint64(reads) {
		at := i % 16 * 65536
		c.r.must(c.slice(transport.Read, m, at, at, 65536))
	}
	require.NoError(t, m.check(1, 0, 0, size))
	require.Less(t, entered.Load()-before, uint64(reads*5/2))
}

// TestACachedFileThatWasCutShortFails: the rest of a file that was cut is no hit, and no bytes of before come from it.
func TestACachedFileThatWasCutShortFails(t *testing.T) {
	const size, left = 1 << 20, 100_000
	c := newCachedFile(t, 1, size)
	m := c.r.memory(size, true)
	c.r.must(c.slice(transport.Read, m, 0, 0, size))
	require.NoError(t, c.plain.Truncate(left))
	for _, at := range []uint64{65536, left, 500_000} {
		s := c.slice(transport.Read, m, 0, at, 65536)
		require.False(t, c.r.tr.(*Uring).Inline([]*transport.Slice{s}))
		require.Equal(t, errs.AddressNotRegistered, c.r.fails(s).Code)
	}
	c.r.must(c.slice(transport.Read, m, 0, 0, left))
	require.NoError(t, m.check(1, 0, 0, left))
}

// TestHolesAreZeroes: a file without space behind its bytes is read like any other, before and after a WRITE into it.
func TestHolesAreZeroes(t *testing.T) {
	const size = 1 << 20
	both(t, Settings{}, func(t *testing.T, r *rig) {
		path := onDisk(t)
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Truncate(path, size))
		o, m := r.open(transport.FileSpec{Path: path}), r.memory(size, true)
		want := make([]byte, size)
		for _, written := range []bool{false, true} {
			if written {
				m.fill(5, 300_000, 5000)
				r.must(o.slice(transport.Write, m, 300_000, 300_000, 5000))
				transporttest.Pattern(want[300_000:305_000], 5, 300_000)
			}
			m.fill(6, 0, size)
			r.must(o.slice(transport.Read, m, 0, 0, size))
			got := make([]byte, size)
			m.around.Load(got, m.from)
			require.Equal(t, want, got)
		}
	})
}

// TestWaitersCopyCachedBytes: a waiter carries out READs that the owner has not begun.
func TestWaitersCopyCachedBytes(t *testing.T) {
	const count, size = 64, 1 << 20
	c := newCachedFile(t, 1, count*size)
	m := c.r.memory(count*size, true)
	tr := c.r.tr.(*Uring)
	helped := 0
	for range 20 { // the owner may be faster
		var list []*transport.Slice
		for i := range uint64(count) {
			list = append(list, c.slice(transport.Read, m, i*size, i*size, size))
		}
		c.r.send(list...)
		for n := 1; n > 0; helped += n {
			n = tr.Poll(1, transport.AllClasses)
		}
		for _, end := range c.r.wait(list...) {
			require.Nil(t, end.Err)
		}
		if helped > 0 {
			break
		}
	}
	require.NotZero(t, helped)
	require.NoError(t, m.check(1, 0, 0, count*size))
}

// TestBytesOfPageCacheAndDisk compares READs of random ranges with a shadow, while another descriptor writes through
// the page cache, WRITEs go past it, and parts are evicted.
func TestBytesOfPageCacheAndDisk(t *testing.T) {
	const size = 2 << 20
	rounds := uint64(100)
	if transporttest.Whole() {
		rounds = 300
	}
	c, random := newCachedFile(t, 1, size), seeded(t)
	shadow := make([]byte, size)
	transporttest.Pattern(shadow, 1, 0)
	for _, aligned := range []bool{true, false} {
		m := c.r.memory(size, aligned)
		for i := range rounds {
			c.r.tr.(*Uring).fileOf(c.key).blind.Store(random.IntN(2) == 0) // an older kernel reads parts
			length := 1 + random.Uint64N(256<<10)
			at := random.Uint64N(size - length)
			if random.IntN(2) == 0 {
				at, length = at&^4095, (length+4095)&^4095
			}
			switch random.IntN(4) {
			case 0:
				transporttest.Pattern(shadow[at:at+length], 1000+i, at)
				_, err := c.plain.WriteAt(shadow[at:at+length], int64(at))
				require.NoError(t, err)
			case 1:
				m.fill(2000+i, at, length)
				c.r.must(c.slice(transport.Write, m, at, at, length))
				transporttest.Pattern(shadow[at:at+length], 2000+i, at)
			case 2:
				c.evict(int64(at), int64(length))
			}
			begin := random.Uint64N(size / 2)
			m.fill(3000, begin, size/2)
			c.r.must(c.slice(transport.Read, m, begin, begin, size/2))
			got := make([]byte, size/2)
			m.around.Load(got, m.from+begin)
			require.Equal(t, shadow[begin:begin+size/2], got)
		}
	}
}

// TestMissesMakeLooksRare: the script of guess.
func TestMissesMakeLooksRare(t *testing.T) {
	var g guess
	unlooked := func() (n int) {
		for ; !g.worth(); n++ {
		}
		return n
	}
	for _, want := range []int{0, 1, 3, 7, 15, 31, 63, 63} {
		require.Equal(t, want, unlooked())
		g.learn(false)
	}
	unlooked()
	g.learn(true)
	require.True(t, g.worth())
	g.learn(false)
	require.Equal(t, 1, unlooked())
}
