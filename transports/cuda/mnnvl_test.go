//go:build cgo

package cuda

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	fakenvml "github.com/tent-engine/tent/tests/fakes/nvml"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/transporttest"
)

// TestConformanceBetweenHosts runs the suite with engines that meet as those of two hosts in one NVLink domain do.
// Package tests/go/twohosts has two processes.
func TestConformanceBetweenHosts(t *testing.T) {
	for name, c := range map[string]struct {
		local *transporttest.Device
		run   func(*testing.T, func(*testing.T) transporttest.Harness)
	}{
		"CudaFabric": {onDevice(0), transporttest.Beside},
		"HostFabric": {nil, transporttest.Again},
	} {
		t.Run(name, func(t *testing.T) {
			inDomain(t, fake.Settings{"DELAY_US": "5", "SEED": fmt.Sprint(rand.Int31())},
				func(t *testing.T, _ *fake.Loaded) {
					c.run(t, func(*testing.T) transporttest.Harness { return betweenHosts(c.local, inFabric(1)) })
				})
		})
	}
}

// TestConformanceBetweenHostsOnDevices is the suite over the GPUs of this machine, for `make check-gpu`.
func TestConformanceBetweenHostsOnDevices(t *testing.T) {
	list, err := domains()
	if err != nil {
		t.Skip(err)
	}
	for i := range list {
		if list[i].Why == nil {
			transporttest.Run(t, func(*testing.T) transporttest.Harness {
				return betweenHosts(onDevice(i), inFabric(i))
			})
			return
		}
	}
}

// inDomain carries a test out where devices are in an NVLink domain and give fabric handles.
func inDomain(t *testing.T, s fake.Settings, test func(*testing.T, *fake.Loaded)) {
	if s == nil {
		s = fake.Settings{}
	}
	s["IMEX"] = "1"
	t.Logf("settings %v", s)
	fake.RunWith(t, fake.Driver{}, s, []string{fakenvml.Env + "=" + fakenvml.Library(t)}, test)
}

func betweenHosts(local, remote *transporttest.Device) transporttest.Harness {
	return transporttest.Harness{Check: FabricFactory{}.Check, Local: local, Remote: remote, Warm: warm,
		Patience: 10 * time.Second,
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			tr, err := FabricFactory{}.Open(t.Context(), FabricSettings{HandleType: handlesFabric}, c.Host,
				c.Sink)
			require.NoError(t, err)
			return tr
		}}
}

// inFabric is memory that the transport allocates.
func inFabric(ordinal int) *transporttest.Device {
	d := onDevice(ordinal)
	d.Allocate = func(t *testing.T, size int) uintptr {
		addr, err := driver.AllocateChunk(ordinal, uint64(size), driver.Descriptors|driver.FabricToo)
		require.NoError(t, err)
		return addr
	}
	return d
}

// A mapping that the driver does not take down keeps the owner's memory held. The owner's fence tries again.
func TestAMappingThatStaysKeepsItsHold(t *testing.T) {
	inDomain(t, nil, func(t *testing.T, gpu *fake.Loaded) {
		w := transporttest.NewWorld(t, betweenHosts(onDevice(0), inFabric(1)))
		near, far := w.Open("near"), w.Open("far")
		link := near.Connect(t, far)
		local, region := near.Register(t, 4096, mem.LocalReadWrite), far.Register(t, 4096, mem.GlobalReadWrite)
		remote := link.Import(t, region)
		link.Must(t, link.Slice(transport.Write, link.Rail(t), local, 0, remote, 0, 4096))
		d := near.Transport.(*mnnvl).links.Lookup(link.Link).way.(*distant)
		gpu.Inject("cuMemUnmap", 1, 2, false)
		mapped := gpu.Stats().Mappings
		near.Transport.Forget(link.Link, remote.Key)
		require.Equal(t, mapped, gpu.Stats().Mappings)
		require.Len(t, d.names(), 1, "the owner must not believe otherwise")
		region.Revoke(t, nil)
		require.Less(t, gpu.Stats().Mappings, mapped)
	})
}

// A late message about a region ends no hold that came after it. A question that is refused leaves an older hold of the
// guest as it is.
func TestHoldsOutliveLateMessages(t *testing.T) {
	var gs guests
	name := hazard.Region{Index: 3, Generation: 1}
	g, err := gs.greet(transport.Peer{ID: transport.NumberedID(7)}, access.NewToken())
	require.Nil(t, err)
	again, err := gs.greet(g.peer, g.secret)
	require.Nil(t, err)
	require.Same(t, g, again, "one link is one guest")
	_, is := gs.hold(g, name, 1)
	require.True(t, is)
	_, is = gs.hold(g, name, 2)
	require.True(t, is)
	gs.release(g, name, 1)
	require.Len(t, gs.holding(name, nil), 1, "it has asked again since")
	undo, _ := gs.hold(g, name, 3)
	undo()
	require.Len(t, gs.holding(name, &g.peer), 1, "it has mapped the region before")
	require.Empty(t, gs.holding(name, &transport.Peer{}))
	gs.release(g, name, 3)
	require.Empty(t, gs.holding(name, nil))
	undo, _ = gs.hold(g, name, 4)
	undo()
	require.Empty(t, gs.holding(name, nil), "it got no handle")
	gs.end(g)
	_, is = gs.hold(g, name, 5)
	require.False(t, is, "a guest that has left")
	require.Nil(t, gs.named(g.peer, g.token))
}

// A peer's guests are bounded, and a table that is closed takes none.
func TestGuestsAreBounded(t *testing.T) {
	var gs guests
	peer := transport.Peer{ID: transport.NumberedID(7)}
	for range guestsPerPeer {
		_, err := gs.greet(peer, access.NewToken())
		require.Nil(t, err)
	}
	_, err := gs.greet(peer, access.NewToken())
	require.Equal(t, errs.TooManyRequests, err.Code)
	_, err = gs.greet(transport.Peer{ID: transport.NumberedID(8)}, access.NewToken())
	require.Nil(t, err)
	require.Len(t, gs.all(true), guestsPerPeer+1)
	_, err = gs.greet(transport.Peer{ID: transport.NumberedID(9)}, access.NewToken())
	require.NotNil(t, err)
}

// Chunks that were exchanged behind a region are reached after Remap by another name, and those of before are unmapped:
// the driver could give them to nobody else as long as a peer maps them.
func TestExchangedChunksAreUnmappedOnOtherHosts(t *testing.T) {
	inDomain(t, nil, func(t *testing.T, gpu *fake.Loaded) {
		const chunks, size = 2, 2 * fake.ChunkBytes
		w := transporttest.NewWorld(t, betweenHosts(onDevice(0), inFabric(1)))
		near, far := w.Open("near"), w.Open("far")
		link, owner := near.Connect(t, far), far.Transport.(*mnnvl)
		local := near.Register(t, 4096, mem.LocalReadWrite)
		at := gpu.Chunks(1, chunks, fake.Fabric)
		key, before, err := owner.Register(t.Context(), mem.Region{Addr: at, Size: size, Kind: mem.Cuda,
			Location: "cuda:1", Permission: mem.GlobalReadWrite})
		require.NoError(t, err)
		write := func(remote transport.RemoteKey, tag byte) errs.Code {
			require.NoError(t, gpu.Poke(local.Addr, bytes.Repeat([]byte{tag}, 4096)))
			to := &transporttest.Remote{Key: remote}
			s := link.Slice(transport.Write, link.Rail(t), local, 0, to, size-4096, 4096)
			if err := link.One(t, s); err != nil {
				return err.Code
			}
			return errs.OK
		}
		there := func() byte {
			b := make([]byte, 4096)
			require.NoError(t, gpu.Peek(b, at+size-4096))
			require.Equal(t, bytes.Repeat(b[:1], 4096), b)
			return b[0]
		}
		old, err := near.Transport.Import(link.Link, before)
		require.NoError(t, err)
		require.Equal(t, errs.OK, write(old, 1))
		require.EqualValues(t, 1, there())

		require.NoError(t, gpu.FreeChunks(at, chunks))
		require.Equal(t, at, gpu.Chunks(1, chunks, fake.Fabric), "the same addresses")
		require.NoError(t, gpu.Poke(at, bytes.Repeat([]byte{7}, size)))
		require.EqualValues(t, 2*chunks, gpu.Stats().Files, "the old ones are mapped, too")
		require.NoError(t, owner.Remap(t.Context(), key, transport.Remapped{Length: size}))
		require.EqualValues(t, chunks, gpu.Stats().Files, "the old ones are still mapped")
		require.Equal(t, errs.Replaced, write(old, 2))
		require.EqualValues(t, 7, there())
		_, err = near.Transport.Import(link.Link, before)
		require.Equal(t, errs.Replaced, errs.CodeOf(err))
		fresh, err := near.Transport.Import(link.Link, owner.describe(owner.regions.Lookup(key)))
		require.NoError(t, err)
		require.Equal(t, errs.OK, write(fresh, 3))
		require.EqualValues(t, 3, there())
		require.NoError(t, owner.Deregister(t.Context(), key))
		require.Equal(t, errs.AddressNotRegistered, write(fresh, 4))
		near.Transport.Detach(link.Link)
		require.NoError(t, gpu.FreeChunks(at, chunks))
	})
}

// Handles are rights: they go to guests of the region alone, and a stranger's message gets nothing.
func TestChunksAreForGuestsOfTheRegion(t *testing.T) {
	inDomain(t, nil, func(t *testing.T, _ *fake.Loaded) {
		w := transporttest.NewWorld(t, betweenHosts(onDevice(0), inFabric(1)))
		near, far := w.Open("near"), w.Open("far")
		owner := far.Transport.(*mnnvl)
		link := near.Connect(t, far)
		link.Rail(t)
		token := near.Transport.(*mnnvl).links.Lookup(link.Link).way.(*distant).ticket()
		learn := func(from transport.Peer, name hazard.Region) errs.Code {
			message := binary.LittleEndian.AppendUint64(access.Call(version, callLearn, token), 1)
			_, err := owner.Serve(t.Context(), from, appendName(message, name))
			return errs.CodeOf(err)
		}
		of := func(o *transporttest.Operand) hazard.Region { return *owner.regions.Lookup(o.Key).name.Load() }
		offered, kept := far.Register(t, 4096, mem.GlobalReadOnly), far.Register(t, 4096, mem.LocalReadWrite)
		require.Equal(t, errs.OK, learn(near.Peer, of(offered)))
		require.Equal(t, errs.PermissionDenied, learn(near.Peer, of(kept)), "offered to nobody")
		require.Equal(t, errs.Stale, learn(transport.Peer{ID: transport.NumberedID(0x5742)}, of(offered)), "a stranger")
		rule := &mem.Peers{Admit: func(string) bool { return false }}
		owner.regions.Lookup(offered.Key).Peers = rule
		require.Equal(t, errs.PermissionDenied, learn(near.Peer, of(offered)), "for other identities")
		owner.regions.Lookup(offered.Key).Peers = nil
		offered.Revoke(t, &near.Peer)
		require.Equal(t, errs.AddressNotRegistered, learn(near.Peer, of(offered)), "shut out")
		for _, message := range [][]byte{nil, {version}, {version + 1, callGreet}, access.Call(version, 99, token),
			append(access.Call(version, callRelease, token), 9, 0, 0, 0)} {
			_, err := owner.Serve(t.Context(), near.Peer, message)
			require.Equal(t, errs.Protocol, errs.CodeOf(err), "%x", message)
		}
	})
}

// FuzzFabricMessages offers any bytes to the readers of descriptors and offers.
func FuzzFabricMessages(f *testing.F) {
	d := fabricDescriptor{name: hazard.Region{Index: 1, Generation: 2}, owner: transport.NumberedID(3), why: "none"}
	o := offer{addr: 1 << 21, size: 4096, blocks: []driver.Block{{Addr: 1 << 21, Size: 1 << 21, Fabric: true, Fd: -1}}}
	f.Add([]byte(d.encode()))
	f.Add(o.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, err := readFabricDescriptor(b, transport.NumberedID(3)); err == nil {
			require.Equal(t, b, []byte(d.encode()))
		}
		if o, err := readOffer(kit.NewReader(b)); err == nil {
			last := o.blocks[len(o.blocks)-1]
			require.LessOrEqual(t, o.addr+o.size, uint64(last.Addr)+last.Size)
		}
	})
}
