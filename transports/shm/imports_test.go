package shm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
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
