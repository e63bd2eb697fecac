//go:build cgo

package cuda

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/transporttest"
)

// breaking is a host with connections that break in the next calls: that looks like the end of the peer's process.
type breaking struct {
	transport.Host
	calls *atomic.Int32
}

func (b breaking) Call(ctx context.Context, peer transport.Peer, m []byte) ([]byte, error) {
	if b.calls.Add(-1) >= 0 {
		return nil, errs.New(errs.PeerUnreachable, "call", "the connection broke").
			WithScope(errs.ScopeLink, errs.SideRemote)
	}
	return b.Host.Call(ctx, peer, m)
}

// visited is an owner and a guest of it, on two hosts, with a region that the guest writes.
type visited struct {
	t             *testing.T
	breaks        atomic.Int32 // calls of the owner that break
	near, far     *transporttest.Node
	owner         *mnnvl
	link          *transporttest.Conn
	local, target *transporttest.Operand
	remote        *transporttest.Remote
}

func visiting(t *testing.T, test func(v *visited)) {
	visitingOn(t, 1, func(v *visited, _ *fake.Loaded) { test(v) })
}

func visitingOn(t *testing.T, ordinal int, test func(v *visited, gpu *fake.Loaded)) {
	inDomain(t, nil, func(t *testing.T, gpu *fake.Loaded) {
		v := &visited{t: t}
		h := betweenHosts(onDevice(0), inFabric(ordinal))
		open := h.Open
		h.Open = func(t *testing.T, c transporttest.Config) transport.Transport {
			if c.Name == "far" {
				c.Host = breaking{c.Host, &v.breaks}
			}
			return open(t, c)
		}
		w := transporttest.NewWorld(t, h)
		v.near, v.far = w.Open("near"), w.Open("far")
		v.owner = v.far.Transport.(*mnnvl)
		v.link = v.near.Connect(t, v.far)
		v.local, v.target = v.near.Register(t, 4096, mem.LocalReadWrite), v.far.Register(t, 4096, mem.GlobalReadWrite)
		v.remote = v.link.Import(t, v.target)
		v.local.Fill(1, 0, 4096)
		require.Nil(t, v.write())
		test(v, gpu)
	})
}

func (v *visited) write() *errs.Error {
	return v.link.One(v.t, v.link.Slice(transport.Write, v.link.Rail(v.t), v.local, 0, v.remote, 0, 4096))
}

// closes takes the region back, and checks that nothing of the guest reaches it afterwards.
func (v *visited) closes() {
	v.t.Helper()
	v.target.Revoke(v.t, nil)
	v.target.Fill(7, 0, 4096)
	end := v.write()
	require.NotNil(v.t, end)
	require.Equal(v.t, errs.AddressNotRegistered, end.Code)
	require.NoError(v.t, v.target.Check(7, 0, 0, 4096), "written behind the fence")
}

// A connection that breaks is no end of a guest: the owner asks again, and the guest hears the fence.
func TestAGuestIsEndedByTwoProofs(t *testing.T) {
	visiting(t, func(v *visited) {
		guests := v.owner.guests.all(false)
		v.breaks.Store(1)
		v.closes()
		require.Equal(t, guests, v.owner.guests.all(false))
		v.breaks.Store(2)
		require.NoError(t, v.owner.tell(t.Context(), guests[0], nil))
		require.Empty(t, v.owner.guests.all(false))
	})
}

// A guest that was taken for ended lives on: the owner knows again of each region that it has mapped, before its rail
// comes up. It has unmapped those that were closed meanwhile.
func TestAGuestThatWasTakenForEndedIsFencedAgain(t *testing.T) {
	visiting(t, func(v *visited) {
		other := v.far.Register(t, 4096, mem.GlobalReadWrite)
		closed := v.near.Transport.(*mnnvl).links.Lookup(v.link.Link).imports.table.Lookup(
			v.link.Import(t, other).Key)
		up := v.link.Rail(t)
		v.breaks.Store(2)
		other.Revoke(t, nil)
		v.breaks.Store(0)
		require.Empty(t, v.owner.guests.all(false))
		require.Eventually(t, func() bool { return len(v.link.Rails()) > 0 && v.link.Rail(t) != up }, 10*time.Second,
			time.Millisecond, "the rail comes again")
		require.Nil(t, v.write(), "by the key of before")
		closed.held.mu.Lock()
		require.True(t, closed.held.closed)
		closed.held.mu.Unlock()
		v.closes()
	})
}

// Of two devices of the owner one is lost. A guest that was taken for ended has its rail again, for the memory of the
// other one.
func TestAGuestComesBackThoughADeviceOfTheOwnerIsLost(t *testing.T) {
	visitingOn(t, 0, func(v *visited, gpu *fake.Loaded) {
		addr, err := driver.AllocateChunk(1, 2<<20, driver.Descriptors|driver.FabricToo)
		require.NoError(v.t, err)
		key, d, err := v.owner.Register(v.t.Context(), mem.Region{Addr: addr, Size: 4096, Kind: mem.Cuda,
			Location: "cuda:1", Permission: mem.GlobalReadWrite, Fd: -1})
		require.NoError(v.t, err)
		_, err = v.near.Transport.Import(v.link.Link, d)
		require.NoError(v.t, err)
		const illegalAddress = 700
		gpu.Inject("cuMemExportToShareableHandle", 1, illegalAddress, true)
		defer func() {
			gpu.Forgive()
			v.near.Transport.Detach(v.link.Link)
			require.NoError(v.t, v.owner.Deregister(context.Background(), key))
			onDevice(1).Free(addr, 2<<20)
		}()
		_, err = driver.ShareByFabric(addr, 4096, 1)
		require.Error(v.t, err)
		up := v.link.Rail(v.t)
		require.Nil(v.t, v.write(), "the other device works")

		other := v.far.Register(v.t, 4096, mem.GlobalReadWrite)
		v.link.Import(v.t, other)
		v.breaks.Store(2)
		other.Revoke(v.t, nil)
		v.breaks.Store(0)
		require.Empty(v.t, v.owner.guests.all(false))
		again := func() bool { return len(v.link.Rails()) > 0 && v.link.Rail(v.t) != up }
		require.Eventually(v.t, again, 10*time.Second, time.Millisecond, "the rail comes again")
		require.Nil(v.t, v.write())
	})
}
