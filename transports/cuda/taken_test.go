//go:build cgo

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/transporttest"
)

// The driver keeps memory of a device as long as some process maps it. A peer takes its mapping down when the owner has
// closed the region, or has given it other memory, without a word from the core.
func TestAMappingEndsBehindItsRegion(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, gpu *fake.Loaded) {
		w := transporttest.NewWorld(t, suite(onDevice(0), onDevice(1), true))
		near, far := w.Open("near"), w.Open("far")
		owner := far.Transport.(*nvlink)
		link := near.Connect(t, far)
		local := near.Register(t, 4096, mem.LocalReadWrite)
		closed, exchanged := far.Register(t, 4096, mem.GlobalReadWrite), far.Register(t, 4096, mem.GlobalReadWrite)
		fenced := far.Register(t, 4096, mem.GlobalReadWrite)
		for _, o := range []*transporttest.Operand{closed, exchanged, fenced} {
			link.Must(t, link.Slice(transport.Write, link.Rail(t), local, 0, link.Import(t, o), 0, 4096))
		}
		require.EqualValues(t, 3, gpu.Stats().Imports)
		fenced.Revoke(t, nil)
		closed.Revoke(t, nil)
		closed.Deregister(t)
		require.NoError(t, owner.Remap(t.Context(), exchanged.Key, transport.Remapped{Length: 4096}))
		near.Transport.(*nvlink).links.Lookup(link.Link).Kick() // as the time does
		await(t, "two mappings end", func() bool { return gpu.Stats().Imports == 1 })
	})
}

// A peer that imports thousands of regions would look at all of them for each. It looks again where a mapping could not
// be taken down yet.
func TestAnImportLooksAtTheOthersOnlyWhereTheirOwnerTookOneBack(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, gpu *fake.Loaded) {
		w := transporttest.NewWorld(t, suite(onDevice(0), onDevice(1), true))
		near, far := w.Open("near"), w.Open("far")
		link := near.Connect(t, far)
		link.Rail(t)
		imports := &near.Transport.(*nvlink).links.Lookup(link.Link).imports
		first, second := far.Register(t, 4096, mem.GlobalReadWrite), far.Register(t, 4096, mem.GlobalReadWrite)
		one := imports.table.Lookup(link.Import(t, first).Key)
		two := imports.table.Lookup(link.Import(t, second).Key)
		imports.mu.Lock()
		one.name.Generation++ // as if another region had its place by now
		imports.mu.Unlock()
		over := func(r *imported) bool {
			link.Import(t, far.Register(t, 4096, mem.GlobalReadWrite))
			imports.mu.Lock()
			defer imports.mu.Unlock()
			return r.over
		}
		require.False(t, over(one))
		far.Transport.(*nvlink).Manifest.Erase(two.name.Index)
		require.True(t, over(one))
		require.False(t, over(two), "it has its permit still")
		second.Revoke(t, nil)
		require.True(t, over(two))
	})
}

// A mapping stays as long as a copy is inside, also where its owner has taken the region back.
func TestAMappingStaysUnderACopy(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, gpu *fake.Loaded) {
		w := transporttest.NewWorld(t, suite(onDevice(0), onDevice(1), true))
		near, far := w.Open("near"), w.Open("far")
		link := near.Connect(t, far)
		link.Rail(t)
		l := near.Transport.(*nvlink).links.Lookup(link.Link)
		region := far.Register(t, 4096, mem.GlobalReadWrite)
		r := l.imports.table.Lookup(link.Import(t, region).Key)
		over := func() bool {
			l.imports.mu.Lock()
			defer l.imports.mu.Unlock()
			l.way.(*neighbour).closeTakenLocked()
			return r.over
		}
		slot := l.enter(r, transport.Epoch(l.view.Epoch()))
		require.NotEqual(t, hazard.Revoked, slot)
		far.Transport.(*nvlink).Manifest.Erase(r.name.Index)
		revoked := make(chan struct{})
		go func() {
			defer close(revoked)
			region.Revoke(t, nil)
		}()
		await(t, "the permit to end", func() bool { return l.view.Permit(r.name) == 0 })
		require.False(t, over())
		l.view.Leave(slot)
		<-revoked
		require.True(t, over())
	})
}

// The driver opens no memory where older memory of its owner is mapped still. An owner that frees its memory, and
// allocates and registers it again, is reached at once.
func TestMemoryIsReachedWhereItsOwnerHadOther(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, gpu *fake.Loaded) {
		const n = 4096
		w := transporttest.NewWorld(t, suite(onDevice(0), onDevice(1), true))
		near, far := w.Open("near"), w.Open("far")
		guest, owner := near.Transport.(*nvlink), far.Transport.(*nvlink)
		link := near.Connect(t, far)
		link.Rail(t)
		local := near.Register(t, n, mem.LocalReadWrite)
		var before uintptr
		for round := range 3 {
			at, err := driver.Platform{}.Allocate(1, n)
			require.NoError(t, err)
			require.True(t, round == 0 || at == before, "the driver gives the same address")
			before = at
			key, descriptor, err := owner.Register(t.Context(), mem.Region{Addr: at, Size: n, Kind: mem.Cuda,
				Location: "cuda:1", Permission: mem.GlobalReadWrite})
			require.NoError(t, err)
			remote, err := guest.Import(link.Link, descriptor)
			require.NoError(t, err)
			_, err = guest.Match(link.Link, local.Key, remote)
			require.NoError(t, err)
			require.NoError(t, owner.Revoke(t.Context(), key, nil, transport.ForGood))
			require.NoError(t, owner.Deregister(t.Context(), key))
			require.NoError(t, driver.Platform{}.Free(at, n))
			_, err = guest.Match(link.Link, local.Key, remote)
			require.NoError(t, err, "the next slice says that the region is closed")
		}
	})
}

// A descriptor that a peer has fetched is offered no more: it would stay open as long as the link.
func TestDescriptorsThatWereFetchedAreOfferedNoMore(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, _ *fake.Loaded) {
		chunks := onDevice(1)
		chunks.Allocate = func(t *testing.T, size int) uintptr {
			addr, err := driver.AllocateChunk(1, uint64(size), driver.Descriptors)
			require.NoError(t, err)
			return addr
		}
		w := transporttest.NewWorld(t, suite(onDevice(0), chunks, true))
		near, far := w.Open("near"), w.Open("far")
		link := near.Connect(t, far)
		link.Rail(t)
		link.Import(t, far.Register(t, 4096, mem.GlobalReadWrite))
		offers := &far.Transport.(*nvlink).offers
		offers.mu.Lock()
		defer offers.mu.Unlock()
		require.NotNil(t, offers.server, "there was an offer")
		require.Empty(t, offers.open)
	})
}
