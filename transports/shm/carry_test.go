package shm

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/shm/copying"
)

// A bite with memory that is not there is tried slice by slice, and its peer may end meanwhile. The slice that the
// kernel refuses then fails, with the kernel's reason: nothing of it was moved.
func TestASliceThatIsTriedAloneFailsByAnyReason(t *testing.T) {
	p := startOwner(t, Settings{}, Opening{})
	rail, down := p.attach()
	require.Nil(t, down)
	remote, err := p.tr.Import(p.link, p.offer(false, mem.GlobalReadWrite))
	require.NoError(t, err)
	b := area(t, testBytes)
	key, _, err := p.tr.Register(context.Background(), mem.Region{Addr: mem.AddressOf(b), Size: testBytes, Fd: -1})
	require.NoError(t, err)
	l := p.tr.links.Lookup(p.link)
	from := l.find(remote)
	p.Kill() // and waits for its end

	for _, op := range []transport.Op{transport.Read, transport.Write} {
		c := newCopier(0)
		for k := range 3 {
			c.bite.entries[k] = &entry{link: l, from: from, slice: &transport.Slice{Op: op, Rail: rail, LocalKey: key,
				RemoteKey: remote, Local: mem.AddressOf(b) + uintptr(k*4096), Remote: uint64(k * 8192), Length: 512}}
		}
		c.bite.n, c.bite.bytes = 3, 3*512
		p.tr.farSlices(c, l, from, 1, 2)
		require.NotNil(t, c.failed[1], op)
		require.Equal(t, errs.PeerUnreachable, c.failed[1].Code, op)
		require.Nil(t, c.failed[0], op)
		require.Nil(t, c.failed[2], op)
	}
}

// A fault is blamed on the end that has the memory, and on nobody where that cannot be said.
func TestAFaultIsOnTheSideOfItsMemory(t *testing.T) {
	a, _, _ := newAlone(t, Settings{})
	b := area(t, testBytes)
	begin := mem.AddressOf(b)
	key, _, err := a.tr.Register(t.Context(), mem.Region{Addr: begin, Size: testBytes, Fd: -1})
	require.NoError(t, err)
	s := &transport.Slice{LocalKey: key}
	for addr, side := range map[uintptr]errs.Side{
		0:                     errs.SideUnknown,
		begin - 1:             errs.SideRemote,
		begin:                 errs.SideLocal,
		begin + testBytes - 1: errs.SideLocal,
		begin + testBytes:     errs.SideRemote,
	} {
		require.Equal(t, side, a.tr.sideOf(&copying.Fault{Addr: addr}, s), "%#x of %#x", addr, begin)
	}
	require.NoError(t, a.tr.Deregister(t.Context(), key))
	require.Equal(t, errs.SideUnknown, a.tr.sideOf(&copying.Fault{Addr: begin}, s), "the region has ended meanwhile")
}

// A fence may come between the look at the rail and the slot. The owner of the fence waits for slots alone.
func TestNothingIsCopiedInlineOfAGenerationThatHasEnded(t *testing.T) {
	a, number, rail := newAlone(t, Settings{reach: reachMapped})
	far, key, remote := a.mapped(t, number)
	own := a.tr.regions.Lookup(key)
	l := a.tr.links.Lookup(number)
	for _, generation := range []uint32{rail.Generation, rail.Generation + 1, 0} {
		s := &transport.Slice{Op: transport.Write, Rail: rail, LocalKey: key, RemoteKey: remote, Local: own.addr,
			Remote: 2048, Length: 1024}
		s.Rail.Generation = generation
		mem.Bytes(far.Addr, 4096)[0]++
		copied := a.tr.inlineRegion(l, []*transport.Slice{s}, 0)
		up := generation == rail.Generation
		require.Equal(t, up, copied == 1)
		require.Equal(t, up, mem.Bytes(far.Addr, 4096)[0] == mem.Bytes(far.Addr, 4096)[2048])
		require.Equal(t, up, a.tr.Inline([]*transport.Slice{s}))
		s.Rail = rail
		s.Rail.Index++
		require.False(t, a.tr.Inline([]*transport.Slice{s}), "there is one rail")
	}
}

func TestInlineLetsMoreUrgentSlicesGoFirst(t *testing.T) {
	a, number, rail := newAlone(t, Settings{})
	a.tr.settings.InlineBytes = 512
	_, key, remote := a.mapped(t, number)
	own := a.tr.regions.Lookup(key)
	slice := func(class uint8, bytes uint64) *transport.Slice {
		return &transport.Slice{Op: transport.Write, Class: class, Rail: rail, LocalKey: key, RemoteKey: remote,
			Local: own.addr, Remote: 2048, Length: bytes}
	}
	inline := func(class uint8) bool { return a.tr.Inline([]*transport.Slice{slice(class, 64)}) }
	l := a.tr.links.Lookup(number)
	a.tr.Poll(0, transport.AllClasses) // nobody copies before Arm
	require.Equal(t, 1, a.tr.Submit([]*transport.Slice{slice(1, 1024)}))
	require.True(t, inline(0), "it is more urgent itself")
	require.True(t, inline(1), "it has the right of the one that waits")
	require.False(t, inline(2))
	a.tr.Arm()
	require.Eventually(t, func() bool { return l.owing.Load() == 0 }, within, time.Millisecond)
	require.True(t, inline(2))
}

// Slices of several tasks share a hazard slot only where they are of one epoch.
func TestInlineLooksAtTheEpochOfEachSlice(t *testing.T) {
	a, number, rail := newAlone(t, Settings{reach: reachMapped})
	far, key, remote := a.mapped(t, number)
	own := a.tr.regions.Lookup(key)
	require.NoError(t, a.tr.Revoke(t.Context(), key, nil, 5))
	b := mem.Bytes(far.Addr, 4096)
	b[0] = 7
	slice := func(epoch transport.Epoch, at uint64) *transport.Slice {
		return &transport.Slice{Op: transport.Write, Epoch: epoch, Rail: rail, LocalKey: key, RemoteKey: remote,
			Local: own.addr, Remote: at, Length: 64}
	}
	require.False(t, a.tr.Inline([]*transport.Slice{slice(5, 1024), slice(4, 2048)}))
	require.EqualValues(t, 7, b[1024], "its task has begun behind the fence")
	require.Zero(t, b[2048], "its task has begun before")
}

// mute is a host of which no peer answers.
type mute struct{ *alone }

func (mute) Call(context.Context, transport.Peer, []byte) ([]byte, error) {
	return nil, errs.New(errs.Timeout, "test", "no answer")
}

func TestALinkWithoutAnAnswerHasNoEpoch(t *testing.T) {
	m := mute{&alone{up: make(chan transport.RailInfo, 8)}}
	tr, err := Factory{}.Open(t.Context(), Settings{}, m, m)
	require.NoError(t, err)
	defer func() { require.NoError(t, tr.Close(context.Background())) }()
	number, err := tr.Attach(m.Self())
	require.NoError(t, err)
	require.Zero(t, tr.(*Transport).Epoch(number))
}

// One call has slices of both directions and of several regions. Each goes its own way.
func TestInlineKeepsDirectionsAndRegionsApart(t *testing.T) {
	for name, reach := range map[string]reach{"mapped": reachMapped, "by the kernel": reachForeign} {
		t.Run(name, func(t *testing.T) {
			a, number, rail := newAlone(t, Settings{reach: reach})
			one, _, first := a.mapped(t, number)
			two, _, second := a.mapped(t, number)
			b := area(t, 4096)
			key, _, err := a.tr.Register(t.Context(), mem.Region{Addr: mem.AddressOf(b), Size: 4096, Fd: -1})
			require.NoError(t, err)
			const part = 1024
			for i := range part {
				b[3*part+i] = 4
				b[i], b[part+i], b[2*part+i], mem.Bytes(one.Addr, 4096)[part+i] = 1, 9, 3, 2
			}
			slice := func(op transport.Op, remote transport.RemoteKey, at uint64) *transport.Slice {
				return &transport.Slice{Op: op, Rail: rail, LocalKey: key, RemoteKey: remote,
					Local: mem.AddressOf(b) + uintptr(at), Remote: at, Length: part}
			}
			require.True(t, a.tr.Inline([]*transport.Slice{slice(transport.Write, first, 0),
				slice(transport.Write, second, 2*part), slice(transport.Read, first, part),
				slice(transport.Write, first, 3*part)}))
			full := func(n byte) []byte { return bytes.Repeat([]byte{n}, part) }
			require.Equal(t, full(1), mem.Bytes(one.Addr, 4096)[:part])
			require.Equal(t, full(2), mem.Bytes(one.Addr, 4096)[part:2*part])
			require.Equal(t, full(0), mem.Bytes(one.Addr, 4096)[2*part:3*part])
			require.Equal(t, full(4), mem.Bytes(one.Addr, 4096)[3*part:])
			require.Equal(t, full(2), b[part:2*part])
			require.Equal(t, full(0), mem.Bytes(two.Addr, 4096)[:part])
			require.Equal(t, full(3), mem.Bytes(two.Addr, 4096)[2*part:3*part])
		})
	}
}
