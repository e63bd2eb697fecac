package rdma

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/transporttest"
)

// The region of the tests about the cost of fences: its parts are more than a device pins at once.
const (
	fencedParts = 3 * partsAtOnce
	fencedBytes = fencedParts * fencedCut
	fencedCut   = 64 << 10 // the least that the settings take
	nics        = 2
)

// fencing is a region that a guest knows, with the figures of its owner's devices.
type fencing struct {
	*rig
	owner  *Transport
	theirs *transporttest.Operand
	region *region
}

func newFencing(t *testing.T) *fencing {
	r := newRigOver(t, nics, func(s *Settings) { s.Cut = fencedCut })
	f := &fencing{rig: r, owner: r.b.Transport.(*Transport)}
	f.theirs = r.b.Register(t, fencedBytes, mem.GlobalReadWrite)
	r.c.Import(t, f.theirs)
	f.region = f.owner.regions.Lookup(f.theirs.Key)
	return f
}

// cost returns the registrations that something takes, and their bytes.
func (f *fencing) cost(t *testing.T, what func()) (registrations, bytes int) {
	t.Helper()
	registrations, bytes = f.f.Control(t, "registrations"), f.f.Control(t, "registered")
	what()
	return f.f.Control(t, "registrations") - registrations, f.f.Control(t, "registered") - bytes
}

// begin starts a fence, and returns when it waits for a device or for the fence before it. It ends with the knob.
func (f *fencing) begin(t *testing.T, ctx context.Context, peer *transport.Peer, epoch transport.Epoch) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- f.owner.Revoke(ctx, f.theirs.Key, peer, epoch) }()
	await(t, "the fence to begin", func() bool {
		if f.region.pinning.TryLock() {
			f.region.pinning.Unlock()
			return false
		}
		floor, _ := f.region.door.Last(transport.ID{})
		if peer != nil {
			floor, _ = f.region.door.Alone(peer.ID)
		}
		return floor >= epoch
	})
	return ended
}

// A fence registers each byte of its region once with each device, and Register does so twice. A lease of a part costs
// as much as the part.
func TestAFenceRegistersTheBytesOfItsRegionOnce(t *testing.T) {
	f := newFencing(t)
	n, bytes := f.cost(t, func() { f.b.Register(t, fencedBytes, mem.GlobalReadWrite) })
	require.Equal(t, []int{2 * nics * fencedParts, 2 * nics * fencedBytes}, []int{n, bytes}, "Register")
	for epoch := transport.Epoch(1); epoch <= 3; epoch++ {
		n, bytes = f.cost(t, func() { require.NoError(t, f.owner.Revoke(t.Context(), f.theirs.Key, nil, epoch)) })
		require.Equal(t, []int{nics * fencedParts, nics * fencedBytes}, []int{n, bytes}, "fence %d", epoch)
	}
	n, bytes = f.cost(t, func() { require.NoError(t, f.owner.Deregister(t.Context(), f.theirs.Key)) })
	require.Equal(t, []int{0, 0}, []int{n, bytes}, "the end of the region")
}

// However many fences of a region come while one is under way, they cost little more than one: they share the next
// registration. Keys that somebody could have when one of them began are closed when it returns.
func TestFencesThatWaitShareARegistration(t *testing.T) {
	f := newFencing(t)
	const fences = 16
	var all []<-chan error
	n, bytes := f.cost(t, func() {
		f.f.Control(t, "hold 1")
		for epoch := range transport.Epoch(fences) {
			all = append(all, f.begin(t, t.Context(), nil, epoch+1))
		}
		f.f.Control(t, "hold 0")
		for _, ended := range all {
			require.NoError(t, <-ended)
		}
	})
	require.LessOrEqual(t, n, 2*nics*fencedParts, "a fence that was slow to begin may have been the second")
	require.LessOrEqual(t, bytes, 2*nics*fencedBytes)
	require.GreaterOrEqual(t, bytes, nics*fencedBytes)
}

// A peer that loses its right may have learned of keys that were made while it still had it.
func TestTheEndOfARightSharesNoRegistration(t *testing.T) {
	f := newFencing(t)
	n, _ := f.cost(t, func() {
		f.f.Control(t, "hold 1")
		one := f.begin(t, t.Context(), nil, 1)
		two := f.begin(t, t.Context(), &f.a.Peer, transport.ForGood)
		f.f.Control(t, "hold 0")
		require.NoError(t, <-one)
		require.NoError(t, <-two)
	})
	require.Equal(t, 2*nics*fencedParts, n)
}

// A fence with too little time says so, and leaves the region with the keys of before. It closes its new
// registrations, and the next fence passes.
func TestAFenceWithoutTimeToRegisterFails(t *testing.T) {
	f := newFencing(t)
	objects, key := f.f.Control(t, "objects"), rkey(f.b, f.theirs.Key)
	n, _ := f.cost(t, func() {
		limited, cancel := context.WithCancel(t.Context())
		f.f.Control(t, "hold 1")
		ended := f.begin(t, limited, nil, 1)
		cancel()
		f.f.Control(t, "hold 0")
		err := <-ended
		require.Equal(t, errs.Timeout, errs.CodeOf(err))
		require.ErrorContains(t, err, "context canceled")
	})
	require.LessOrEqual(t, n, nics*partsAtOnce, "no part is begun once the time is over")
	require.Equal(t, objects, f.f.Control(t, "objects"))
	require.Equal(t, key, rkey(f.b, f.theirs.Key))
	require.NoError(t, f.owner.Revoke(t.Context(), f.theirs.Key, nil, 2))
	require.NotEqual(t, key, rkey(f.b, f.theirs.Key))
	require.Equal(t, objects, f.f.Control(t, "objects"))
}
