package manifest

import (
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/transports/host/vm"
)

var (
	ours   = ID{1, 2, 3}
	theirs = ID{4, 5, 6}
)

func self(t *testing.T) vm.Identity {
	t.Helper()
	me, err := vm.Self()
	require.NoError(t, err)
	return me
}

func newManifest(t *testing.T, id ID) *Manifest {
	t.Helper()
	m, err := New(id, 100)
	require.NoError(t, err)
	t.Cleanup(m.Close)
	return m
}

// met returns the view that another process would get.
func met(t *testing.T, m *Manifest) *View {
	t.Helper()
	me := self(t)
	p, v, err := Meet(me, m.Claims(me), ours)
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), p.PID())
	p.Close()
	t.Cleanup(v.Unmap)
	return v
}

// New regions change nothing about the others, so nobody has to look at those again.
func TestTheTurnGrowsWithEachRegionThatEndsOrChanges(t *testing.T) {
	m := newManifest(t, ours)
	v := met(t, m)
	begin := v.Turn()
	require.NotZero(t, begin)
	r := Region{Addr: 1 << 40, Size: 4096}
	m.Write(7, 3, &r)
	m.Write(8, 4, &r)
	require.Equal(t, begin, v.Turn())
	r.Named = true
	m.Write(7, 3, &r)
	require.Equal(t, begin+1, v.Turn())
	m.Erase(8)
	require.Equal(t, begin+2, v.Turn())
	m.Write(8, 5, &r)
	require.Equal(t, begin+2, v.Turn())
}

func TestRegionsAreFoundAsTheyAreListed(t *testing.T) {
	m := newManifest(t, ours)
	v := met(t, m)
	_, listed := v.Find(7, 1)
	require.False(t, listed)
	for _, r := range []Region{
		{Addr: 1 << 40, Size: 4096},
		{Addr: 1 << 40, Size: 4096, Allows: mem.GlobalReadWrite, Fixed: true},
		{Addr: 1, Size: 1 << 40, Allows: mem.GlobalReadOnly, Shared: true, At: 4096,
			File: vm.File{Fd: 1<<31 - 1, Dev: 1<<64 - 1, Ino: 1 << 63}},
		{Addr: 1, Size: 1, Shared: true, Named: true},
	} {
		m.Write(7, 3, &r)
		found, listed := v.Find(7, 3)
		require.True(t, listed)
		require.Equal(t, r, found)
	}
	for _, name := range [][2]uint32{{7, 2}, {7, 0}, {8, 3}, {100, 3}, {1<<32 - 1, 3}} {
		_, listed = v.Find(name[0], name[1])
		require.False(t, listed, "%v", name)
	}
	m.Erase(7)
	_, listed = v.Find(7, 3)
	require.False(t, listed)
	for _, r := range []Region{{Size: 1}, {Addr: 1}, {Addr: 1<<64 - 1, Size: 2}, {Addr: 1, Size: 1, Allows: 200},
		{Addr: 1, Size: 2, At: 1<<64 - 1}} {
		m.Write(7, 4, &r)
		_, listed = v.Find(7, 4)
		require.False(t, listed, "an impossible region: %+v", r)
	}
	m.Close()
	m.Write(7, 5, &Region{Addr: 1, Size: 1})
	m.Erase(7)
}

// A reader never sees half of one region and half of another under one name.
func TestReadersSeeOneRegion(t *testing.T) {
	m := newManifest(t, ours)
	v := met(t, m)
	done := make(chan struct{})
	var newest atomic.Uint32 // a place never sees a generation twice
	go func() {
		defer close(done)
		for i := uint32(1); i < 200_000; i++ {
			m.Write(3, i, &Region{Addr: uint64(i), Size: uint64(i), At: uint64(i)})
			newest.Store(i)
		}
	}()
	seen := 0
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		for _, generation := range []uint32{newest.Load(), newest.Load() + 1} {
			if r, listed := v.Find(3, generation); listed {
				seen++
				require.Equal(t, [3]uint64{uint64(generation), r.Addr, r.Addr}, [3]uint64{r.Addr, r.Size, r.At})
			}
		}
	}
	require.NotZero(t, seen)
}

// Nobody but the process that made it writes a manifest, not even one of the same user that opens it for writing.
func TestOnlyItsMakerWritesAManifest(t *testing.T) {
	m := newManifest(t, ours)
	me := self(t)
	p, err := vm.Open(me.PID, me.Started)
	require.NoError(t, err)
	defer p.Close()
	fd, err := p.Reopen(m.File(), unix.O_RDWR)
	require.NoError(t, err)
	defer unix.Close(fd)
	_, err = unix.Pwrite(fd, []byte{1}, headBytes)
	require.ErrorIs(t, err, unix.EPERM)
	_, err = unix.Mmap(fd, 0, headBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(fd, 0), unix.EPERM)
}

// forged makes a file that looks like a manifest but for one thing.
func forged(t *testing.T, title string, id ID, seal int) int {
	t.Helper()
	fd, err := unix.MemfdCreate(title, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	good := newManifest(t, id)
	require.NoError(t, unix.Ftruncate(fd, int64(good.size)))
	_, err = unix.Pwrite(fd, mem.Bytes(good.addr, int(good.size)), 0)
	require.NoError(t, err)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal)
	require.NoError(t, err)
	return fd
}

func TestOnlyAManifestOfThePeerCounts(t *testing.T) {
	me := self(t)
	claim := func(fd int) Claim {
		f, err := vm.FileOf(fd)
		require.NoError(t, err)
		return Claim{me.PID, me.Started, f}
	}
	for says, fd := range map[string]int{
		"":                      forged(t, name, ours, seals),
		"it is of engine 04050": forged(t, name, theirs, seals),
		"not a manifest":        forged(t, "tent-hazard", ours, seals),
		"it is not sealed":      forged(t, name, ours, seals&^unix.F_SEAL_FUTURE_WRITE),
	} {
		p, v, err := Meet(me, claim(fd), ours)
		if says == "" {
			require.NoError(t, err)
			p.Close()
			v.Unmap()
			continue
		}
		require.ErrorContains(t, err, says)
	}
	_, _, err := Meet(me, claim(forged(t, name, ID{}, seals)), ID{})
	require.ErrorContains(t, err, "no id")

	other := claim(forged(t, name, ours, seals))
	other.File.Ino++
	_, _, err = Meet(me, other, ours)
	require.ErrorContains(t, err, "has closed the file")
	other.File.Fd = 1 << 20
	_, _, err = Meet(me, other, ours)
	require.ErrorContains(t, err, "shows no manifest")
	other.Started--
	_, _, err = Meet(me, other, ours)
	require.ErrorIs(t, err, unix.ESRCH)

	apart := me
	apart.GID++
	_, _, err = Meet(apart, claim(forged(t, name, ours, seals)), ours)
	require.ErrorContains(t, err, "runs as group")
}

// A file of another user does not count, not even in our own hands: a program may be made to hold it.
func TestManifestOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file to another user")
	}
	fd := forged(t, name, ours, seals)
	require.NoError(t, unix.Fchown(fd, 65534, 65534))
	f, err := vm.FileOf(fd)
	require.NoError(t, err)
	me := self(t)
	_, _, err = Meet(me, Claim{me.PID, me.Started, f}, ours)
	require.ErrorContains(t, err, "user 65534 has made it")
}

func TestMalformedManifestIsRefused(t *testing.T) {
	me := self(t)
	for _, change := range []func(*head){
		func(h *head) { h.magic++ },
		func(h *head) { h.version++ },
		func(h *head) { h.count += 4096 },
		func(h *head) { h.count = 1<<32 - 1 },
	} {
		m := newManifest(t, ours)
		change((*head)(mem.Pointer(m.addr)))
		_, _, err := Meet(me, m.Claims(me), ours)
		require.ErrorContains(t, err, "it begins with")
	}
	huge, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
	if err == nil { // there need not be a page
		defer unix.Close(huge)
		require.NoError(t, unix.Ftruncate(huge, 2<<20))
		_, err = unix.FcntlInt(uintptr(huge), unix.F_ADD_SEALS, seals)
		require.NoError(t, err)
		f, err := vm.FileOf(huge)
		require.NoError(t, err)
		_, _, err = Meet(me, Claim{me.PID, me.Started, f}, ours)
		require.ErrorContains(t, err, "huge pages")
	}
	short := newManifest(t, ours)
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(fd)
	_, err = unix.Pwrite(fd, mem.Bytes(short.addr, 64), 0)
	require.NoError(t, err)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	require.NoError(t, err)
	f, err := vm.FileOf(fd)
	require.NoError(t, err)
	_, _, err = Meet(me, Claim{me.PID, me.Started, f}, ours)
	require.ErrorContains(t, err, "it has 64 bytes")
}
