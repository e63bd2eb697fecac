package shm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/manifest"
)

// newAlone is a transport with a link to itself that is up.
func newAlone(t testing.TB, s Settings) (*alone, transport.Link, transport.Rail) {
	a := &alone{up: make(chan transport.RailInfo, 8)}
	tr, err := Factory{}.Open(context.Background(), s, a, a)
	require.NoError(t, err)
	a.tr = tr.(*Transport)
	t.Cleanup(func() { require.NoError(t, tr.Close(context.Background())) })
	link, err := tr.Attach(a.Self())
	require.NoError(t, err)
	return a, link, (<-a.up).Rail
}

// mapped is allocated memory that is registered, and imported on a link.
func (a *alone) mapped(t *testing.T, on transport.Link) (r mem.Region, key transport.LocalKey,
	remote transport.RemoteKey) {
	t.Helper()
	r, err := a.tr.Allocate(transport.Allocation{Size: 4096, Location: "cpu:0"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.tr.Free(r)) })
	r.Permission = mem.GlobalReadWrite
	key, d, err := a.tr.Register(context.Background(), r)
	require.NoError(t, err)
	remote, err = a.tr.Import(on, d)
	require.NoError(t, err)
	return r, key, remote
}

func TestAllocatedMemoryCannotBecomeShorter(t *testing.T) {
	a, _, _ := newAlone(t, Settings{})
	r, err := a.tr.Allocate(transport.Allocation{Size: 10_000, Location: "cpu:0"})
	require.NoError(t, err)
	require.Error(t, unix.Ftruncate(r.Fd, 0))
	require.Error(t, unix.Ftruncate(r.Fd, 1<<20))
	require.Equal(t, uint64(10_000), r.Size)
	require.NoError(t, a.tr.Free(r))
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(a.tr.Free(r)), "twice")
	for _, location := range []mem.Location{"cuda:0", "cpu:x"} {
		_, err = a.tr.Allocate(transport.Allocation{Size: 1, Location: location})
		require.Error(t, err, location)
	}
	for _, size := range []uint64{0, 1<<46 + 1} {
		_, err = a.tr.Allocate(transport.Allocation{Size: size, Location: "cpu:0"})
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	}
	r, err = a.tr.Allocate(transport.Allocation{Size: 1, Location: "cpu:63"}) // a wish
	require.NoError(t, err)
	require.NoError(t, a.tr.Free(r))
}

// A region is in the file of an allocation only with all of its bytes.
func TestARegionMayBeAPartOfAnAllocation(t *testing.T) {
	a, _, _ := newAlone(t, Settings{})
	const size = 3 * 4096
	r, err := a.tr.Allocate(transport.Allocation{Size: size, Location: "cpu:0"})
	require.NoError(t, err)
	defer func() { require.NoError(t, a.tr.Free(r)) }()
	m := &a.tr.memory
	for _, c := range []struct {
		from int
		size uint64
		in   bool
	}{
		{0, size, true}, {0, 4096, true}, {4096, size - 4096, true}, {size - 1, 1, true},
		{0, size + 1, false}, {4096, size - 4095, false}, {-1, 1, false}, {-1, size, false}, {size, 1, false},
	} {
		m.mu.Lock()
		found := m.holdingLocked(r.Addr+uintptr(c.from), c.size)
		m.mu.Unlock()
		require.Equal(t, c.in, found != nil, "%d bytes from %d", c.size, c.from)
	}
}

// Peers that may only read a region get its file for reading. They map no file of the program that may become shorter.
func TestPeersMapFilesThatAreSafeAlone(t *testing.T) {
	a, _, _ := newAlone(t, Settings{})
	r, err := a.tr.Allocate(transport.Allocation{Size: 3 * 4096, Location: "cpu:0"})
	require.NoError(t, err)
	defer func() { require.NoError(t, a.tr.Free(r)) }()
	for permission, access := range map[mem.Permission]int{
		mem.GlobalReadOnly: unix.O_RDONLY, mem.GlobalReadWrite: unix.O_RDWR} {
		var d manifest.Region
		a.tr.share(&d, &mem.Region{Addr: r.Addr + 4096, Size: 4096, Permission: permission, Fd: -1}, &region{})
		require.True(t, d.Shared)
		require.EqualValues(t, 4096, d.At)
		flags, err := unix.FcntlInt(uintptr(d.File.Fd), unix.F_GETFL, 0)
		require.NoError(t, err)
		require.Equal(t, access, flags&unix.O_ACCMODE)
	}
	a.tr.memory.byAddr[r.Addr].names = nil

	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(fd)) }()
	require.NoError(t, unix.Ftruncate(fd, 2*4096))
	shared := func(size uint64) (d manifest.Region) {
		a.tr.share(&d, &mem.Region{Addr: 1 << 30, Size: size, Fd: fd, FdOffset: 4096}, &region{})
		return d
	}
	require.False(t, shared(4096).Shared, "it may become shorter")
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	require.NoError(t, err)
	require.True(t, shared(4096).Shared)
	require.EqualValues(t, 4096, shared(4096).At)
	require.False(t, shared(4097).Shared, "it is too short")
}

// Memory that is freed is back at once, although peers may have its file for longer: the mapping, the pages, the
// descriptors.
func TestFreedMemoryIsBackAtOnce(t *testing.T) {
	a, _, _ := newAlone(t, Settings{})
	r, err := a.tr.Allocate(transport.Allocation{Size: 4096, Location: "cpu:0"})
	require.NoError(t, err)
	mem.Bytes(r.Addr, 4096)[0] = 7
	held := a.tr.memory.byAddr[r.Addr]
	readable := held.forReaders()
	require.NotEqual(t, held.fd, readable)
	peers, err := unix.Dup(r.Fd)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(peers)) }()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(peers, &st))
	require.NotZero(t, st.Blocks)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	require.Contains(t, string(maps), fmt.Sprintf(" %d ", st.Ino))
	require.NoError(t, a.tr.Free(r))
	require.NoError(t, unix.Fstat(peers, &st))
	require.Zero(t, st.Blocks, "its pages")
	require.Equal(t, -1, held.fd)
	require.Equal(t, -1, held.readable)
	maps, err = os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	require.NotContains(t, string(maps), fmt.Sprintf(" %d ", st.Ino), "its mapping")
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(a.tr.Free(r)), "it is freed once")
}

func TestMemoryOutlivesItsTransportUntilItIsFreed(t *testing.T) {
	a, _, _ := newAlone(t, Settings{})
	r, err := a.tr.Allocate(transport.Allocation{Size: 4096, Location: "cpu:0"})
	require.NoError(t, err)
	require.NoError(t, a.tr.Close(context.Background()))
	mem.Bytes(r.Addr, 4096)[4095] = 7
	_, err = a.tr.Allocate(transport.Allocation{Size: 4096, Location: "cpu:0"})
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err))
	require.NoError(t, a.tr.Free(r))
}

// A file without a name goes with its process, also where that is killed.
func TestCXLFilesAreNewAndKeepNoName(t *testing.T) {
	folder := filepath.Join(shmFolder(t), "cxl")
	require.NoError(t, os.Mkdir(folder, 0o700))
	theirs := filepath.Join(folder, filepath.Base(cxlPath(folder, 1)))
	require.NoError(t, os.WriteFile(theirs, []byte("somebody's data"), 0o600))
	a, _, _ := newAlone(t, Settings{CXLMountPath: folder})
	r, err := a.tr.Allocate(transport.Allocation{Size: 10_000, Location: "cpu:0"})
	require.NoError(t, err)
	data, err := os.ReadFile(theirs)
	require.NoError(t, err)
	require.Equal(t, "somebody's data", string(data), "a file that was there is not ours")
	found, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, found, 1)
	mem.Bytes(r.Addr, 10_000)[9_999] = 7
	require.NoError(t, a.tr.Free(r))

	_, err = a.tr.Allocate(transport.Allocation{Size: 1 << 46, Location: "cpu:0"})
	require.Equal(t, errs.NoSpace, errs.CodeOf(err), "%v", err)
}

// A folder that takes no files is an error of the setting, and not memory of another kind later on.
func TestAFolderThatTakesNoFilesIsFoundWhenTheTransportOpens(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, bad := range []string{filepath.Join(folder, "missing"), file, "/proc/self"} {
		a := &alone{}
		_, err := Factory{}.Open(context.Background(), Settings{CXLMountPath: bad}, a, a)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), bad)
		require.ErrorContains(t, err, "transports/shm/cxl_mount_path")
		require.ErrorContains(t, err, bad)
	}
	found, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, found, 1)
}

// shmFolder is a folder on a tmpfs where there is one, as CXL's is.
func shmFolder(t *testing.T) string {
	if path, err := os.MkdirTemp("/dev/shm", "tent-test"); err == nil {
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(path)) })
		return path
	}
	return t.TempDir()
}

// A peer maps the file of a region only if all of the region is in it; else the kernel moves the bytes.
func TestAFileThatIsShorterThanItsRegionIsNotMapped(t *testing.T) {
	a, number, rail := newAlone(t, Settings{CXLMountPath: shmFolder(t), reach: reachMapped})
	l := a.tr.links.Lookup(number)
	r, err := a.tr.Allocate(transport.Allocation{Size: 3 * 4096, Location: "cpu:0"})
	require.NoError(t, err)
	defer func() { require.NoError(t, a.tr.Free(r)) }()
	r.Permission = mem.GlobalReadWrite
	_, good, err := a.tr.Register(context.Background(), r)
	require.NoError(t, err)
	_, bad, err := a.tr.Register(context.Background(), r)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(r.Fd, 4096)) // as a program that cleans up that file system may
	remote, err := a.tr.Import(number, good)
	require.NoError(t, err)
	require.Zero(t, l.find(remote).base)
	require.NoError(t, unix.Ftruncate(r.Fd, 3*4096))
	remote, err = a.tr.Import(number, bad)
	require.NoError(t, err)
	require.NotZero(t, l.find(remote).base)

	// One that becomes shorter later is a fault of the request, and of nobody else.
	require.NoError(t, unix.Ftruncate(r.Fd, 4096))
	b := area(t, 3*4096)
	key, _, err := a.tr.Register(context.Background(), mem.Region{Addr: mem.AddressOf(b), Size: 3 * 4096, Fd: -1})
	require.NoError(t, err)
	s := &transport.Slice{Op: transport.Write, Rail: rail, LocalKey: key, RemoteKey: remote, Local: mem.AddressOf(b),
		Length: 3 * 4096}
	require.False(t, a.tr.Inline([]*transport.Slice{s}))
	s.Length = 4096
	require.True(t, a.tr.Inline([]*transport.Slice{s}))
	require.NoError(t, unix.Ftruncate(r.Fd, 3*4096))
}

// Memory that a stopped peer is copying is not given back: neither by Revoke's word nor by Free.
func TestHeldMemoryStays(t *testing.T) {
	a, number, _ := newAlone(t, Settings{})
	l := a.tr.links.Lookup(number)
	r, err := a.tr.Allocate(transport.Allocation{Size: 4096, Location: "cpu:0"})
	require.NoError(t, err)
	r.Permission = mem.GlobalReadWrite
	key, d, err := a.tr.Register(context.Background(), r)
	require.NoError(t, err)
	remote, err := a.tr.Import(number, d)
	require.NoError(t, err)
	name := l.find(remote).name
	slot := l.view.Enter(name, l.view.Epoch(), 0) // a copier that does not get on
	require.GreaterOrEqual(t, slot, int32(0), "a slot")
	short, cancel := context.WithTimeout(context.Background(), 1)
	defer cancel()
	require.ErrorContains(t, a.tr.Revoke(short, key, nil, transport.ForGood), "inside a copy")
	again := a.tr.Revoke(short, key, nil, transport.ForGood)
	require.ErrorContains(t, again, "inside a copy", "also when it is asked again")
	require.NoError(t, a.tr.Deregister(context.Background(), key))
	require.ErrorContains(t, a.tr.Free(r), "inside a copy")
	mem.Bytes(r.Addr, 1)[0] = 7 // it is there
	l.view.Leave(slot)
	require.NoError(t, a.tr.Free(r))
}

// Memory with a copier inside when its transport closes is never given back. No table is left that could say when
// the copier is done.
func TestMemoryOfACopierThatOutlivesCloseStays(t *testing.T) {
	a := &alone{up: make(chan transport.RailInfo, 8)}
	tr, err := Factory{}.Open(context.Background(), Settings{}, a, a)
	require.NoError(t, err)
	a.tr = tr.(*Transport)
	number, err := tr.Attach(a.Self())
	require.NoError(t, err)
	<-a.up
	l := a.tr.links.Lookup(number)
	seen, err := a.tr.Allocate(transport.Allocation{Size: 4096, Location: "cpu:0"})
	require.NoError(t, err)
	unseen, err := a.tr.Allocate(transport.Allocation{Size: 4096, Location: "cpu:0"})
	require.NoError(t, err)
	seen.Permission = mem.GlobalReadWrite
	_, d, err := a.tr.Register(context.Background(), seen)
	require.NoError(t, err)
	remote, err := a.tr.Import(number, d)
	require.NoError(t, err)
	slot := l.view.Enter(l.find(remote).name, l.view.Epoch(), 0)
	require.GreaterOrEqual(t, slot, int32(0), "a slot")
	short, cancel := context.WithTimeout(context.Background(), 1)
	defer cancel()
	require.Error(t, a.tr.Close(short))
	require.ErrorContains(t, a.tr.Free(seen), "a peer was inside a copy")
	mem.Bytes(seen.Addr, 1)[0] = 7 // it is there
	require.NoError(t, a.tr.Free(unseen))
}

// A page of a file system or of a driver may never come. The copier that waits for it keeps nobody from the rest of the
// end: peers are refused, and Close names the copy.
func TestCloseDoesNotWaitForACopierThatIsStuck(t *testing.T) {
	a := &alone{up: make(chan transport.RailInfo, 8)}
	tr, err := Factory{}.Open(context.Background(), Settings{}, a, a)
	require.NoError(t, err)
	a.tr = tr.(*Transport)
	release := make(chan struct{})
	a.tr.crew.running.Go(func() { <-release })
	defer close(release)
	q, copied := &a.tr.queue, &bite{}
	q.mu.Lock()
	require.True(t, q.enterLocked(&transport.Slice{Op: transport.Write, Local: 0x7000, Length: 4096}, &link{}, nil))
	require.True(t, q.takeLocked(copied))
	q.mu.Unlock()
	require.ErrorContains(t, tr.Close(t.Context()), "copies have not ended: WRITE of 4096 bytes at 0x7000")
	_, err = tr.Serve(t.Context(), a.Self(), nil)
	require.Error(t, err, "no peer gets in")
	require.True(t, a.tr.memory.closed, "the rest has ended")
}

// Mappings of memory that its owner took back go, although nobody detaches.
func TestMappingsOfClosedRegionsGo(t *testing.T) {
	a, number, _ := newAlone(t, Settings{reach: reachMapped})
	l := a.tr.links.Lookup(number)
	var keys []transport.LocalKey
	for range 3 {
		r, err := a.tr.Allocate(transport.Allocation{Size: 4096, Location: "cpu:0"})
		require.NoError(t, err)
		defer func() { require.NoError(t, a.tr.Free(r)) }()
		r.Permission = mem.GlobalReadWrite
		key, d, err := a.tr.Register(context.Background(), r)
		require.NoError(t, err)
		_, err = a.tr.Import(number, d)
		require.NoError(t, err)
		keys = append(keys, key)
	}
	drop := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.dropLocked()
		return len(l.mappings)
	}
	require.Equal(t, 3, drop())
	require.NoError(t, a.tr.Revoke(context.Background(), keys[0], nil, 1))
	require.NoError(t, a.tr.Revoke(context.Background(), keys[1], nil, transport.ForGood))
	require.NoError(t, a.tr.Deregister(context.Background(), keys[1]))
	require.Equal(t, 2, drop(), "one was closed, one only fenced")
}

// A mapping that goes under a copy is a fault of the copier, or its bytes land in the next mapping at that place.
func TestAMappingStaysWhileACopierIsInside(t *testing.T) {
	for name, end := range map[string]func(*alone, *link, transport.LocalKey, transport.RemoteKey) (drop func()){
		"forgotten": func(a *alone, l *link, _ transport.LocalKey, remote transport.RemoteKey) func() {
			return func() { a.tr.Forget(l.Number, remote) }
		},
		"closed by its owner": func(a *alone, l *link, key transport.LocalKey, _ transport.RemoteKey) func() {
			l.mu.Lock() // no other sweep is first
			require.NoError(t, a.tr.Deregister(context.Background(), key))
			return func() {
				l.dropLocked()
				l.mu.Unlock()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, number, _ := newAlone(t, Settings{reach: reachMapped})
			l := a.tr.links.Lookup(number)
			_, key, remote := a.mapped(t, number)
			copied := l.find(remote)
			slot := l.view.Enter(copied.name, l.view.Epoch(), 0)
			require.GreaterOrEqual(t, slot, int32(0), "a slot")
			drop := end(a, l, key, remote)
			synctest.Test(t, func(t *testing.T) { // in which a wait for the copier is seen
				dropped := make(chan struct{})
				go func() {
					defer close(dropped)
					drop()
				}()
				synctest.Wait()
				select {
				case <-dropped:
					require.Fail(t, "the mapping is gone")
				default:
				}
				_ = mem.Bytes(copied.base, 1)[0]
				l.view.Leave(slot)
				<-dropped
			})
			require.Empty(t, l.mappings)
		})
	}
}

// A fence may take long, and sweeps look meanwhile. Memory that can only be mapped is reached again when it ends.
func TestAFenceTakesNoMappingDown(t *testing.T) {
	a, number, rail := newAlone(t, Settings{reach: reachMapped})
	l := a.tr.links.Lookup(number)
	r, key, remote := a.mapped(t, number)
	name := l.find(remote).name
	slot := l.view.Enter(name, l.view.Epoch(), 0) // a copy that takes a while
	require.GreaterOrEqual(t, slot, int32(0), "a slot")
	fenced := make(chan error, 1)
	go func() { fenced <- a.tr.Revoke(context.Background(), key, nil, 1) }()
	for l.view.Permit(name) != 0 {
		runtime.Gosched()
	}
	swept := make(chan struct{})
	go func() { // one that takes a mapping down waits for the copy
		defer close(swept)
		for range 3 {
			l.mu.Lock()
			l.dropLocked()
			l.mu.Unlock()
		}
	}()
	require.Eventually(t, func() bool {
		select {
		case <-swept:
			return true
		default:
			return l.find(remote).base == 0
		}
	}, 10*time.Second, time.Millisecond)
	l.view.Leave(slot)
	<-swept
	require.NoError(t, <-fenced)
	s := &transport.Slice{Op: transport.Write, Rail: rail, LocalKey: key, RemoteKey: remote, Local: r.Addr,
		Length: 4096, Epoch: 1}
	require.True(t, a.tr.Inline([]*transport.Slice{s}))
	require.NotZero(t, l.find(remote).base)
}
