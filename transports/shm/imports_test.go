package shm

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/transporttest"
)

// A slice that was accepted just before the mapping of its region was taken down must not touch the place where that
// was.
func TestMappingTakenDownIsNotTouched(t *testing.T) {
	h := harness(t, reachMapped, true)
	h.Patience = 20 * time.Second
	w := transporttest.NewWorld(t, h)
	near, far := w.Open("near"), w.Open("far")
	link := near.Connect(t, far)
	const bytes = 1 << 20
	local, remote := near.Register(t, bytes, mem.LocalReadWrite), link.Import(t,
		far.Register(t, bytes, mem.GlobalReadWrite))
	local.Fill(1, 0, bytes)
	remote.Fill(2, 0, bytes)

	tr := near.Transport.(*Transport)
	tr.Poll(0, transport.AllClasses) // nobody copies before Arm
	s := link.Slice(transport.Write, link.Rail(t), local, 0, remote, 0, bytes)
	require.Equal(t, 1, link.Submit(s))
	l := tr.links.Lookup(link.Link)
	mapped := l.find(s.RemoteKey)
	require.NotZero(t, mapped.base)
	l.mu.Lock()
	other := *mapped // as meetLocked may find it
	other.on, other.base, other.remote = nil, 0, uintptr(mapped.told.Addr)
	table := append([]*imported(nil), *l.imports.Load()...)
	table[uint32(s.RemoteKey)-1] = &other
	l.imports.Store(&table)
	l.mu.Unlock()
	tr.Arm()
	err := link.Wait(t, s)[0].Err
	require.NotNil(t, err)
	require.Equal(t, errs.Lost, err.Code)
	require.True(t, err.Collateral, "nobody's fault: it is sent again")
	require.NoError(t, remote.Check(2, 0, 0, bytes), "touched")

	again := link.Slice(transport.Write, link.Rail(t), local, 0, remote, 0, bytes)
	require.Equal(t, 1, link.Submit(again))
	require.Nil(t, link.Wait(t, again)[0].Err, "by the kernel now")
	require.NoError(t, remote.Check(1, 0, 0, bytes))
}

// The owner's engine refuses to offer a buffer for writing that must not be written. A transport that is given one all
// the same keeps it from its peers.
func TestAFixedRegionIsNotWrittenByPeers(t *testing.T) {
	h := harness(t, reachMapped, true)
	h.Patience = 20 * time.Second
	w := transporttest.NewWorld(t, h)
	near, far := w.Open("near"), w.Open("far")
	link := near.Connect(t, far)
	const bytes = 4096
	local, own := near.Register(t, bytes, mem.LocalReadWrite), far.Register(t, bytes, mem.GlobalReadWrite)
	own.Fill(2, 0, bytes)
	fixed := *own
	key, descriptor, err := far.Transport.Register(t.Context(), mem.Region{Addr: own.Addr, Size: bytes, Kind: mem.Host,
		Location: "cpu:0", Permission: mem.GlobalReadWrite, ReadOnly: true, Fd: -1})
	require.NoError(t, err)
	fixed.Key, fixed.Descriptor = key, descriptor
	remote := link.Import(t, &fixed)
	end := link.One(t, link.Slice(transport.Write, link.Rail(t), local, 0, remote, 0, bytes))
	require.NotNil(t, end)
	require.Equal(t, errs.PermissionDenied, end.Code)
	require.NoError(t, own.Check(2, 0, 0, bytes))
	link.Must(t, link.Slice(transport.Read, link.Rail(t), local, 0, remote, 0, bytes))
	require.NoError(t, local.Check(2, 0, 0, bytes))
	require.NoError(t, far.Transport.Deregister(t.Context(), key))
}

// The descriptor of a region that no manifest has room for is refused: its index would be the place of something else.
func TestADescriptorNamesAPlaceOfAManifest(t *testing.T) {
	peer := transport.NumberedID(7)
	for name, c := range map[hazard.Region]errs.Code{
		{Index: 0, Generation: 1}:                     errs.OK,
		{Index: hazard.RegionsMax - 1, Generation: 1}: errs.OK,
		{Index: hazard.RegionsMax, Generation: 1}:     errs.InvalidArgument,
		{Index: 0, Generation: 0}:                     errs.InvalidArgument,
	} {
		read, err := readDescriptor(descriptor(name, peer), peer)
		if c != errs.OK {
			require.NotNil(t, err, "%+v", name)
			require.Equal(t, c, err.Code)
			continue
		}
		require.Nil(t, err)
		require.Equal(t, name, read)
		_, err = readDescriptor(descriptor(name, peer), transport.NumberedID(8))
		require.NotNil(t, err)
		require.Equal(t, errs.PeerRestarted, err.Code)
		whole := descriptor(name, peer)
		for _, wrong := range []transport.Descriptor{nil, whole[1:], append(whole, 0)} {
			_, err = readDescriptor(wrong, peer)
			require.NotNil(t, err)
			require.Equal(t, errs.InvalidArgument, err.Code)
		}
	}
}

// offered is the descriptor of a region that peers may write.
func offered(t *testing.T, a *alone) transport.Descriptor {
	t.Helper()
	_, d, err := a.tr.Register(t.Context(), mem.Region{Addr: 1 << 30, Size: 4096, Permission: mem.GlobalReadWrite,
		Fd: -1})
	require.NoError(t, err)
	return d
}

// lie makes a manifest list a file for a region that was registered before.
func lie(t *testing.T, a *alone, d transport.Descriptor, fd int, named bool, at, size uint64) {
	t.Helper()
	name, e := readDescriptor(d, a.Self().ID)
	require.Nil(t, e)
	f, err := vm.FileOf(fd)
	require.NoError(t, err)
	a.tr.Manifest.Write(name.Index, name.Generation, &manifest.Region{Addr: 1 << 30, Size: size,
		Allows: mem.GlobalReadWrite, Shared: true, File: f, Named: named, At: at})
}

// An owner that holds a file by O_PATH need not be allowed to read or write it. Its peers may be, and do neither in its
// place.
func TestNoFileThatHasANameIsMapped(t *testing.T) {
	a, number, _ := newAlone(t, Settings{reach: reachMapped})
	path := t.TempDir() + "/secret"
	require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	d := offered(t, a)
	lie(t, a, d, fd, true, 0, 4096)
	remote, err := a.tr.Import(number, d)
	require.NoError(t, err)
	require.Zero(t, a.tr.links.Lookup(number).find(remote).base)
}

// A file may be as long as the address space and have no bytes. Peers that show such files leave us addresses: without
// any, the next allocation of the program would be its end.
func TestFilesOfPeersLeaveUsAddresses(t *testing.T) {
	a, number, _ := newAlone(t, Settings{reach: reachMapped})
	l := a.tr.links.Lookup(number)
	mapped := 0
	for bytes := int64(1 << 46); bytes >= 1<<30; bytes /= 2 {
		for range 2 {
			fd, err := unix.MemfdCreate("long", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			require.NoError(t, err)
			defer unix.Close(fd)
			require.NoError(t, unix.Ftruncate(fd, bytes))
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
			require.NoError(t, err)
			d := offered(t, a)
			lie(t, a, d, fd, false, uint64(bytes)-4096, 4096)
			remote, err := a.tr.Import(number, d)
			require.NoError(t, err)
			if l.find(remote).base != 0 {
				mapped++
			}
		}
	}
	require.Positive(t, mapped, "those for which there is room")
	room, err := unix.MmapPtr(-1, 0, nil, 1<<45, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	require.NoError(t, err)
	require.NoError(t, unix.MunmapPtr(room, 1<<45))
	require.LessOrEqual(t, a.tr.mapped.Load(), int64(mappedMost))
	a.tr.Detach(number)
	<-l.Done()
	require.Zero(t, a.tr.mapped.Load())
}

// An owner may list anything: places behind the end of a file, sizes that wrap around, files that it does not have.
// Imports of that say why they are none, and READs of those that are some fail without a fault of ours.
func TestNoManifestHarmsItsReaders(t *testing.T) {
	a, number, rail := newAlone(t, Settings{reach: reachMapped})
	l := a.tr.links.Lookup(number)
	seed := rand.Uint64()
	t.Log("seed", seed)
	dice := rand.New(rand.NewPCG(seed, 1))
	sealed, err := unix.MemfdCreate("sealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(sealed)
	require.NoError(t, unix.Ftruncate(sealed, 3*4096+17))
	_, err = unix.FcntlInt(uintptr(sealed), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	require.NoError(t, err)
	var files []vm.File
	for _, fd := range []int{0, sealed, int(a.tr.Manifest.File().Fd)} {
		f, err := vm.FileOf(fd)
		require.NoError(t, err)
		files = append(files, f, vm.File{Fd: f.Fd, Dev: f.Dev, Ino: f.Ino + 1})
	}
	word := func() uint64 {
		return []uint64{0, 1, 17, 4096, 3 * 4096, 3*4096 + 17, 1 << 46, 1 << 63, ^uint64(0) - 4095, ^uint64(0),
			dice.Uint64()}[dice.IntN(11)]
	}
	b := area(t, 4096)
	key, _, err := a.tr.Register(t.Context(), mem.Region{Addr: mem.AddressOf(b), Size: 4096, Fd: -1})
	require.NoError(t, err)
	mapped := 0
	for range 500 {
		d := offered(t, a)
		name, e := readDescriptor(d, a.Self().ID)
		require.Nil(t, e)
		a.tr.Manifest.Write(name.Index, name.Generation, &manifest.Region{Addr: word(), Size: word(), At: word(),
			Allows: mem.Permission(dice.IntN(4)), Fixed: dice.IntN(4) == 0, Shared: dice.IntN(4) > 0,
			Named: dice.IntN(4) == 0, File: files[dice.IntN(len(files))]})
		remote, err := a.tr.Import(number, d)
		if err != nil {
			continue
		}
		r := l.find(remote)
		if r.base != 0 {
			mapped++
			require.LessOrEqual(t, r.told.At+r.size, uint64(r.on.size))
		}
		n := min(r.size, 4096)
		a.tr.Inline([]*transport.Slice{{Op: transport.Read, Rail: rail, LocalKey: key, RemoteKey: remote,
			Local: mem.AddressOf(b), Remote: r.size - n, Length: n}})
		a.tr.Forget(number, remote)
	}
	require.Positive(t, mapped)
	require.Zero(t, a.tr.mapped.Load())
}
