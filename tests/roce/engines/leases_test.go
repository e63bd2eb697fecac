package engines

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/roce"
	"github.com/tent-engine/tent/transports/all"
)

const leasePage = 4 << 10

// tenancy is two engines of this process with one rail between them, and a region that is leased over it.
type tenancy struct {
	*testing.T
	owner, peer *engine.Engine
	theirs, own []byte
	region      mem.RegionID
	at          engine.SegmentID
}

func newTenancy(t *testing.T) *tenancy {
	if os.Getenv(roce.GuestEnv) == "" {
		t.Skip("only in the guest: make test-rdma")
	}
	w := &world{rails: roce.Rails()[:1]}
	l := &tenancy{T: t, owner: w.inside(t, roce.B), peer: w.inside(t, roce.A)}
	var ids [2]mem.RegionID
	for i, e := range []*engine.Engine{l.owner, l.peer} {
		b, err := unix.Mmap(-1, 0, regionBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		require.NoError(t, err)
		ids[i], err = e.Register(engine.Memory{Addr: mem.AddressOf(b), Size: regionBytes, Location: "cpu:0"})
		require.NoError(t, err)
		l.theirs, l.own = l.own, b
	}
	l.region = ids[0]
	var err error
	l.at, err = l.peer.OpenSegment(t.Context(), l.owner.Address())
	require.NoError(t, err)
	return l
}

// inside opens an engine in this process, with the devices of an end.
func (w *world) inside(t *testing.T, end roce.End) *engine.Engine {
	t.Helper()
	settings := map[string]any{}
	for key, value := range w.settings(end, maps.Clone(onlyRDMA)) {
		var v any
		require.NoError(t, json.Unmarshal([]byte(value), &v))
		settings[key] = v
	}
	c, err := config.Load(config.Options{Transports: all.Transports()}, settings)
	require.NoError(t, err)
	e, err := engine.Open(context.Background(), engine.Options{Config: c,
		Transports: engine.Plugs(all.Factories()...)})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(10*time.Second, true))
		require.NoError(t, e.Forget())
	})
	return e
}

func paint(b []byte, k int) {
	for i := range b {
		b[i] = byte(k + i*7 + i>>12)
	}
}

func (l *tenancy) begin(op transport.Op, lease mem.RegionID, offset, n uint64) (dispatch.BatchID, error) {
	return l.peer.Move(&engine.Request{Terms: engine.Terms{Op: op}, Source: mem.AddressOf(l.own), Length: n,
		Remote: engine.Remote{Segment: l.at, Region: lease, Offset: offset}})
}

// end returns how a batch ended.
func (l *tenancy) end(batch dispatch.BatchID) dispatch.State {
	l.Helper()
	require.True(l, l.peer.Wait(batch, 30*time.Second).Terminal(), "the batch did not end")
	sum, err := l.peer.Summary(batch)
	require.NoError(l, err)
	require.NoError(l, l.peer.FreeBatch(batch))
	return sum.State
}

func (l *tenancy) moves(op transport.Op, lease mem.RegionID, offset, n uint64) bool {
	l.Helper()
	batch, err := l.begin(op, lease, offset, n)
	return err == nil && l.end(batch) == dispatch.Completed
}

// A lease over real queue pairs gives its pages with its permission, and nothing between them, nor behind its end.
func TestLeasesHoldOnQueuePairs(t *testing.T) {
	l := newTenancy(t)
	paint(l.theirs, 1)
	expected := append([]byte(nil), l.theirs[:16*leasePage]...)
	pages := []engine.Range{{Offset: 9 * leasePage, Size: leasePage}, {Offset: 3 * leasePage, Size: leasePage}}
	id, err := l.owner.Share(l.region, engine.Share{Ranges: pages})
	require.NoError(t, err)
	readable, err := l.owner.Share(l.region, engine.Share{Ranges: pages, Permission: mem.GlobalReadOnly})
	require.NoError(t, err)
	paint(l.own, 2)
	require.True(t, l.moves(transport.Write, id, leasePage, leasePage))
	copy(expected[3*leasePage:4*leasePage], l.own)
	require.False(t, l.moves(transport.Write, id, leasePage-1, 2), "across two pages")
	require.False(t, l.moves(transport.Write, id, 2*leasePage-1, 2), "behind the last page")
	require.False(t, l.moves(transport.Write, readable, 0, 1), "a lease for reading")
	require.Equal(t, expected, l.theirs[:16*leasePage])
	clear(l.own)
	require.True(t, l.moves(transport.Read, readable, 0, leasePage))
	require.Equal(t, expected[9*leasePage:10*leasePage], l.own[:leasePage])
	require.NoError(t, l.owner.Renew(readable, time.Nanosecond))
	require.Eventually(t, func() bool { return !l.moves(transport.Read, readable, 0, 1) }, 30*time.Second,
		time.Millisecond, "its time is up")
	require.True(t, l.moves(transport.Read, id, leasePage, leasePage), "the other lease stays")
}

// A lease that is closed in the middle of READs and WRITEs is over when CloseRegion returns. The next owner's bytes are
// neither read nor written.
func TestALeaseIsClosedInTheMiddleOnQueuePairs(t *testing.T) {
	l := newTenancy(t)
	for _, op := range []transport.Op{transport.Read, transport.Write} {
		paint(l.theirs, 1)
		id, err := l.owner.Share(l.region, engine.Share{Size: regionBytes})
		require.NoError(t, err)
		require.True(t, l.moves(transport.Read, id, 0, leasePage), "both ends know each other")
		batch, err := l.begin(op, id, 0, regionBytes)
		require.NoError(t, err)
		require.NoError(t, l.owner.CloseRegion(t.Context(), id))
		clear(l.theirs) // the next owner's
		state := l.end(batch)
		for _, b := range l.theirs {
			if b != 0 {
				require.FailNow(t, "written behind the end", op)
			}
		}
		if op == transport.Read && state == dispatch.Completed {
			for i, b := range l.own {
				if b != byte(1+i*7+i>>12) {
					require.FailNow(t, "a READ has bytes of the next owner", i)
				}
			}
		}
		require.False(t, l.moves(transport.Read, id, 0, 1))
	}
}

// A fence in the middle of a WRITE is over when FenceRegion returns, and the keys that it replaces fail nothing that
// begins afterwards.
func TestAFenceReplacesKeysOnQueuePairs(t *testing.T) {
	l := newTenancy(t)
	id, err := l.owner.Share(l.region, engine.Share{Size: regionBytes})
	require.NoError(t, err)
	require.True(t, l.moves(transport.Read, id, 0, leasePage), "both ends know each other")
	var longest time.Duration
	for round := range 6 {
		paint(l.own, round+1)
		batch, err := l.begin(transport.Write, id, 0, regionBytes)
		require.NoError(t, err)
		peer := ""
		if round%2 == 0 {
			peer = l.peer.Address()
		}
		begun := time.Now()
		require.NoError(t, l.owner.FenceRegion(t.Context(), id, peer))
		longest = max(longest, time.Since(begun))
		clear(l.theirs) // the next owner's
		l.end(batch)
		for at, b := range l.theirs {
			if b != 0 {
				require.FailNow(t, "written behind the fence", "round %d, byte %d", round, at)
			}
		}
		require.True(t, l.moves(transport.Write, id, 0, leasePage), "round %d: a transfer of after the fence", round)
		require.Equal(t, l.own[:leasePage], l.theirs[:leasePage])
	}
	t.Logf("the longest of 6 fences of %d bytes took %v", regionBytes, longest)
}
