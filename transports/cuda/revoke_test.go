//go:build cgo

package cuda

import (
	"bytes"
	"context"
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/fds"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/transporttest"
)

// TestRevokeWaitsForACopyOfADevice holds a copy up in the driver's stream: the region counts as touched, and is the
// owner's again only when the copy has ended. The suite's rules of Revoke meet such a copy by chance.
func TestRevokeWaitsForACopyOfADevice(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, gpu *fake.Loaded) {
		const page = 4096
		w := transporttest.NewWorld(t, suite(onDevice(0), onDevice(1), true))
		near, far := w.Open("near"), w.Open("far")
		owner := far.Transport.(*nvlink)
		link := near.Connect(t, far)
		local := near.Register(t, 2*page, mem.LocalReadWrite)
		remote := link.Import(t, far.Register(t, 2*page, mem.GlobalReadWrite))
		s := link.Slice(transport.Write, link.Rail(t), local, 0, remote, 0, 2*page)
		s.Pieces = &transport.Pieces{LocalAt: []uint64{0, page}, RemoteAt: []uint64{page, 0}, Bytes: page}

		gpu.Hold(true)
		before := gpu.Stats().Batches
		require.Equal(t, 1, link.Submit(s))
		await(t, "the driver has the copy", func() bool { return gpu.Stats().Batches > before })
		name := *owner.regions.Lookup(remote.Operand.Key).name.Load()
		_, held := owner.Table.Held(name)
		require.True(t, held, "a copy is under way, and the owner would not wait for it")
		revoked := make(chan error, 1)
		go func() {
			revoked <- owner.Revoke(t.Context(), remote.Operand.Key, nil, transport.ForGood)
		}()
		gpu.Hold(false)
		await(t, "the region is the owner's", func() bool { return len(revoked) == 1 })
		require.NoError(t, <-revoked)
		_, held = owner.Table.Held(name)
		require.False(t, held)
		require.Nil(t, link.Wait(t, s)[0].Err)
	})
}

// await looks again until a condition holds, for 10 s at most.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); runtime.Gosched() {
		require.Less(t, time.Now(), end, what)
	}
}

// Handles are rights to whole allocations. A peer gets those of regions that are offered to it, and no others.
func TestBlocksAreForPeersOfTheRegion(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, _ *fake.Loaded) {
		w := transporttest.NewWorld(t, suite(onDevice(0), onDevice(1), true))
		near, far := w.Open("near"), w.Open("far")
		owner := far.Transport.(*nvlink)
		link := near.Connect(t, far)
		link.Rail(t)
		asker := near.Transport.(*nvlink).links.Lookup(link.Link)
		ask := func(question []byte) errs.Code {
			ctx, cancel := context.WithTimeout(t.Context(), importLimit)
			defer cancel()
			_, err := asker.way.(*neighbour).access.Ask(ctx, asker.Peer, callBlocks, question)
			return errs.CodeOf(err)
		}
		of := func(key transport.LocalKey) []byte {
			name := owner.regions.Lookup(key).name.Load()
			return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, name.Index), name.Generation)
		}
		offered, kept := far.Register(t, 4096, mem.GlobalReadOnly), far.Register(t, 4096, mem.LocalReadWrite)
		require.Equal(t, errs.OK, ask(of(offered.Key)))
		require.Equal(t, errs.AddressNotRegistered, ask(of(kept.Key)), "offered to nobody")
		require.Equal(t, errs.Protocol, ask(of(offered.Key)[:7]))
		stale := of(offered.Key)
		stale[4]++
		require.Equal(t, errs.AddressNotRegistered, ask(stale), "another life of the name")
		offered.Revoke(t, &near.Peer)
		require.Equal(t, errs.AddressNotRegistered, ask(of(offered.Key)), "shut out")
		_, err := owner.Serve(t.Context(), transport.Peer{ID: transport.NumberedID(0x5742)},
			append([]byte{version, callBlocks}, make([]byte, 24)...))
		require.Equal(t, errs.Protocol, errs.CodeOf(err), "a stranger without a grant")
	})
}

// A peer may die while its question is answered: descriptors that are offered to it behind its end would stay open.
func TestAPeerThatHasEndedIsOfferedNothing(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, _ *fake.Loaded) {
		w := transporttest.NewWorld(t, suite(onDevice(0), onDevice(1), true))
		near, far := w.Open("near"), w.Open("far")
		owner := far.Transport.(*nvlink)
		var grant atomic.Pointer[access.Grant]
		serve := owner.Point.Serve
		owner.Point.Serve = func(ctx context.Context, g *access.Grant, kind byte, r *kit.Reader) ([]byte, error) {
			grant.Store(g)
			return serve(ctx, g, kind, r)
		}
		link := near.Connect(t, far)
		link.Import(t, far.Register(t, 4096, mem.GlobalReadOnly))
		g := grant.Load()
		_, err := owner.offers.add(g, fds.Self(), 0)
		require.NoError(t, err)
		near.Transport.Detach(link.Link)
		await(t, "the end of the link", g.Ended)
		_, err = owner.offers.add(g, fds.Self(), 0)
		require.Equal(t, errs.Stale, errs.CodeOf(err))
		await(t, "no offers", func() bool {
			owner.offers.mu.Lock()
			defer owner.offers.mu.Unlock()
			return len(owner.offers.open) == 0
		})
	})
}

// Chunks that were exchanged behind a region are reached after Remap, and those of before are not. A peer has mapped
// them, and asks for the new ones under another name.
func TestExchangedChunksAreReachedUnderAnotherName(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, gpu *fake.Loaded) {
		const chunks, size = 2, 2 * fake.ChunkBytes
		w := transporttest.NewWorld(t, suite(onDevice(0), onDevice(1), true))
		near, far := w.Open("near"), w.Open("far")
		link, owner := near.Connect(t, far), far.Transport.(*nvlink)
		local := near.Register(t, 4096, mem.LocalReadWrite)
		at := gpu.Chunks(1, chunks, fake.PosixFd)
		key, before, err := owner.Register(t.Context(), mem.Region{Addr: at, Size: size, Kind: mem.Cuda,
			Location: "cuda:1", Permission: mem.GlobalReadWrite})
		require.NoError(t, err)
		write := func(remote transport.RemoteKey, tag byte) *errs.Error {
			require.NoError(t, gpu.Poke(local.Addr, bytes.Repeat([]byte{tag}, 4096)))
			to := &transporttest.Remote{Key: remote}
			return link.One(t, link.Slice(transport.Write, link.Rail(t), local, 0, to, size-4096, 4096))
		}
		there := func() byte {
			b := make([]byte, 4096)
			require.NoError(t, gpu.Peek(b, at+size-4096))
			require.Equal(t, bytes.Repeat(b[:1], 4096), b)
			return b[0]
		}
		old, err := near.Transport.Import(link.Link, before)
		require.NoError(t, err)
		require.Nil(t, write(old, 1))
		require.EqualValues(t, 1, there())

		require.NoError(t, gpu.FreeChunks(at, chunks))
		require.Equal(t, at, gpu.Chunks(1, chunks, fake.PosixFd), "the same addresses")
		require.NoError(t, gpu.Poke(at, bytes.Repeat([]byte{7}, size)))
		require.NoError(t, owner.Remap(t.Context(), key, transport.Remapped{Length: size}))
		require.Equal(t, errs.Replaced, errs.CodeOf(write(old, 2)))
		require.EqualValues(t, 7, there())
		_, err = near.Transport.Import(link.Link, before)
		require.Equal(t, errs.Replaced, errs.CodeOf(err))
		fresh, err := near.Transport.Import(link.Link,
			descriptor(*owner.regions.Lookup(key).name.Load(), owner.self.ID, 1))
		require.NoError(t, err)
		require.Nil(t, write(fresh, 3))
		require.EqualValues(t, 3, there())
		require.NoError(t, owner.Deregister(t.Context(), key))
		require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(write(fresh, 4)))
		near.Transport.Detach(link.Link)
		require.NoError(t, gpu.FreeChunks(at, chunks))
	})
}

// A slice of before a fence is refused after Remap too: the new name takes over the fences of the old one.
func TestAFenceHoldsAfterARemap(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, _ *fake.Loaded) {
		w := transporttest.NewWorld(t, suite(onDevice(0), onDevice(1), true))
		near, far := w.Open("near"), w.Open("far")
		link, owner := near.Connect(t, far), far.Transport.(*nvlink)
		local := near.Register(t, 4096, mem.LocalReadWrite)
		target := far.Register(t, 4096, mem.GlobalReadWrite)
		before := link.Epoch()
		target.Fence(t, &near.Peer)
		require.NoError(t, owner.Remap(t.Context(), target.Key, transport.Remapped{Length: 4096}))
		fresh, err := near.Transport.Import(link.Link,
			descriptor(*owner.regions.Lookup(target.Key).name.Load(), owner.self.ID, 1))
		require.NoError(t, err)
		write := func(epoch transport.Epoch) *errs.Error {
			s := link.Slice(transport.Write, link.Rail(t), local, 0, &transporttest.Remote{Key: fresh}, 0, 4096)
			s.Epoch = epoch
			return link.One(t, s)
		}
		late := write(before)
		require.NotNil(t, late, "it began before the fence")
		require.Equal(t, transport.Fenced("").Code, late.Code)
		require.Nil(t, write(^transport.ForGood), "it began after the fence")
	})
}

// All slots of a page say that they are taken, as in one that its owner has spoiled. The slice ends in time, with the
// rail's generation, and holds up no transport.
func TestASliceThatFindsNoSlotEnds(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, _ *fake.Loaded) {
		w := transporttest.NewWorld(t, suite(onDevice(0), onDevice(1), true))
		near, far := w.Open("near"), w.Open("far")
		link := near.Connect(t, far)
		local, target := near.Register(t, 4096, mem.LocalReadWrite), far.Register(t, 4096, mem.GlobalReadWrite)
		remote := link.Import(t, target)
		write := func() *transport.Slice {
			return link.Slice(transport.Write, link.Rail(t), local, 0, remote, 0, 4096)
		}
		link.Must(t, write())
		l := near.Transport.(*nvlink).links.Lookup(link.Link)
		from := l.imports.table.Lookup(remote.Key)
		var slots []hazard.Slot
		for i := range uint32(hazard.Slots) {
			slots = append(slots, l.view.Enter(from.name, hazard.Epoch(link.Epoch()), i))
		}
		generation := l.Live.Load()
		err := link.One(t, write())
		require.NotNil(t, err)
		require.Equal(t, errs.Protocol, err.Code)
		require.Equal(t, errs.ScopeLink, err.Scope)
		await(t, "the next generation", func() bool { return l.Live.Load() > generation })
		for _, slot := range slots {
			l.view.Leave(slot)
		}
		link.Must(t, write())
	})
}
