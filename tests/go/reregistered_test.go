package tests

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// registeredWorlds are the worlds, and shared memory: its owner may take a mapping away.
func registeredWorlds() []world { return append(worlds(), world{"shm", openAll}) }

const tenantParts = 16

// tenant is memory of a peer that is registered again and again, at the same addresses.
type tenant struct {
	here, there  *engine.Engine
	at           engine.SegmentID
	own, theirs  guarded
	near         mem.RegionID // of own
	begin, bytes int          // of the range that requests name, which has lists of parts
	ways         []way
}

// way begins a request for the whole range.
type way func(t *testing.T, op transport.Op) dispatch.BatchID

func newTenant(t *testing.T, w world) *tenant {
	const size = 256 << 10
	n := &tenant{here: w.open(t, nil), there: w.open(t, nil), own: newGuarded(t, size), theirs: newGuarded(t, size),
		begin: size / 4, bytes: size / 2}
	n.near = offer(t, n.here, n.own.bytes, "")
	n.at = segment(t, n.here, n.there, "")
	return n
}

// meetByBlob opens the peer again, by a blob that lists its regions.
func (n *tenant) meetByBlob(t *testing.T) {
	t.Helper()
	require.NoError(t, n.here.CloseSegment(n.at))
	blob, err := n.there.Export(nil)
	require.NoError(t, err)
	n.at, err = n.here.OpenBlob(blob)
	require.NoError(t, err)
}

// register offers bytes [from, to) of the peer's memory.
func (n *tenant) register(t *testing.T, from, to int, name string) mem.RegionID {
	t.Helper()
	return offer(t, n.there, n.theirs.bytes[from:to], name)
}

func (n *tenant) close(t *testing.T, id mem.RegionID) {
	t.Helper()
	require.NoError(t, n.there.CloseRegion(t.Context(), id))
}

// prepare makes the ways in which requests name addresses: one range, many of an operand, many anywhere, prepared ones.
func (n *tenant) prepare(t *testing.T) {
	near, far := int64(address(n.own.bytes))+int64(n.begin), int64(address(n.theirs.bytes))+int64(n.begin)
	const parts = tenantParts
	each := int64(n.bytes / parts)
	list := func(first int64) (places []int64) {
		for i := range int64(parts) {
			places = append(places, first+i*each)
		}
		return places
	}
	lengths := engine.IndexesOf([]int64{each})
	lengths.Stride = 0
	own, err := n.here.NewAddresses(engine.OwnMemory, parts, engine.IndexesOf(list(near)), lengths)
	require.NoError(t, err)
	theirs, err := n.here.NewAddresses(n.at, parts, engine.IndexesOf(list(far)), lengths)
	require.NoError(t, err)
	all := make([]int64, parts)
	for i := range all {
		all[i] = int64(i)
	}
	indexes := engine.IndexesOf(all)
	ranges := func(t *testing.T, r engine.Ranges, op transport.Op) dispatch.BatchID {
		r.N, r.Bytes = parts, lengths
		id, err := n.here.Ranges(engine.Terms{Op: op}, &r, nil)
		require.NoError(t, err)
		return id
	}
	operand := engine.Ranges{Local: uintptr(near), LocalSize: uint64(n.bytes), RemoteSize: uint64(n.bytes),
		Remote:       engine.Remote{Segment: n.at, Offset: uint64(far)},
		LocalOffsets: engine.IndexesOf(list(0)), RemoteOffsets: engine.IndexesOf(list(0))}
	anywhere := engine.Ranges{Remote: engine.Remote{Segment: n.at}, LocalOffsets: engine.IndexesOf(list(near)),
		RemoteOffsets: engine.IndexesOf(list(far))}
	n.ways = []way{
		func(t *testing.T, op transport.Op) dispatch.BatchID { return n.move(t, op, operand.Remote) },
		func(t *testing.T, op transport.Op) dispatch.BatchID { return ranges(t, operand, op) },
		func(t *testing.T, op transport.Op) dispatch.BatchID { return ranges(t, anywhere, op) },
		func(t *testing.T, op transport.Op) dispatch.BatchID {
			id, err := n.here.Pages(engine.Terms{Op: op}, &engine.Pages{Local: own, Remote: theirs, N: parts,
				Src: indexes, Dst: indexes}, nil)
			require.NoError(t, err)
			return id
		},
	}
}

// move moves the whole range.
func (n *tenant) move(t *testing.T, op transport.Op, to engine.Remote) dispatch.BatchID {
	t.Helper()
	id, err := n.here.Move(&engine.Request{Terms: engine.Terms{Op: op}, Source: address(n.own.bytes) + uintptr(n.begin),
		Remote: to, Length: uint64(n.bytes)})
	require.NoError(t, err)
	return id
}

// moveAndCheck moves the whole range, and checks that it has arrived, and nothing beside it. Patterns are of a round.
func (n *tenant) moveAndCheck(t *testing.T, by way, op transport.Op, round int) {
	t.Helper()
	from, to := n.own, n.theirs
	if op == transport.Read {
		from, to = to, from
	}
	fill(from.bytes, round)
	fill(to.bytes, 100+round)
	sum := ended(t, n.here, by(t, op))
	require.Equal(t, dispatch.Completed, sum.State, "round %d: %v", round, sum.Err)
	require.EqualValues(t, n.bytes, sum.Bytes)
	end := n.begin + n.bytes
	same(t, to.bytes[:n.begin], 100+round, 0)
	same(t, to.bytes[n.begin:end], round, n.begin)
	same(t, to.bytes[end:], 100+round, end)
	to.check(t)
}

// A peer that does not know of it yet reaches the memory that is registered there now, and nothing beside it. The owner
// may have closed and registered it however often.
func TestAnAddressMeansTheMemoryThatIsRegisteredThereNow(t *testing.T) {
	for _, w := range registeredWorlds() {
		t.Run(w.name, func(t *testing.T) {
			n := newTenant(t, w)
			size, end := len(n.theirs.bytes), n.begin+n.bytes
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			edge := n.begin / 2
			whole := n.register(t, edge, size-edge, "kv")
			n.prepare(t)
			for round := range 24 {
				n.moveAndCheck(t, n.ways[round/2%len(n.ways)], transport.Op(round%2), round)
				n.close(t, whole)
				whole = n.register(t, random.IntN(n.begin+1), end+random.IntN(size-end+1), "kv")
			}
		})
	}
}

// Memory comes back in two pieces, here and there. A request that has parts in both meets them as one task of the old
// region, and goes on.
func TestRangesGoOnInMemoryThatIsRegisteredInOtherPieces(t *testing.T) {
	for _, w := range registeredWorlds() {
		t.Run(w.name, func(t *testing.T) {
			n := newTenant(t, w)
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			cut := func() int { return n.begin + (1+random.IntN(tenantParts-1))*n.bytes/tenantParts }
			size := len(n.theirs.bytes)
			far, near := []mem.RegionID{n.register(t, 0, size, "whole")}, []mem.RegionID{n.near}
			n.prepare(t)
			for round := range 8 {
				op, way := transport.Op(round%2), n.ways[2+round/2%2]
				require.Equal(t, dispatch.Completed, ended(t, n.here, way(t, op)).State)
				for _, id := range far {
					n.close(t, id)
				}
				for _, id := range near {
					require.NoError(t, n.here.CloseRegion(t.Context(), id))
				}
				at := cut()
				far = []mem.RegionID{n.register(t, 0, at, "head"), n.register(t, at, size, "rest")}
				at = cut()
				near = []mem.RegionID{offer(t, n.here, n.own.bytes[:at], ""), offer(t, n.here, n.own.bytes[at:], "")}
				for again := range 2 {
					n.moveAndCheck(t, way, op, 2*round+again)
				}
			}
		})
	}
}

// Of two regions at one address, the peer knows the one that is closed. It may have met both in a blob.
func TestARegionThatIsClosedHidesNoneThatHoldsItsMemoryToo(t *testing.T) {
	for _, w := range registeredWorlds() {
		for _, met := range []string{"by name", "by blob"} {
			t.Run(w.name+" "+met, func(t *testing.T) {
				n := newTenant(t, w)
				n.register(t, 0, len(n.theirs.bytes), "whole")
				small := n.register(t, n.begin, n.begin+n.bytes, "small")
				if met == "by blob" {
					n.meetByBlob(t)
				}
				n.prepare(t)
				for i, way := range n.ways {
					require.Equal(t, dispatch.Completed, ended(t, n.here, way(t, transport.Write)).State)
					n.close(t, small)
					n.moveAndCheck(t, way, transport.Write, i)
					small = n.register(t, n.begin, n.begin+n.bytes, "small")
					_, err := n.here.Segment(t.Context(), n.at, true)
					require.NoError(t, err)
				}
			})
		}
	}
}

// A request that names a region means that one, and memory of another one at its address is not its target.
func TestARegionThatIsNamedIsNoOtherOneAtItsAddress(t *testing.T) {
	for _, w := range registeredWorlds() {
		t.Run(w.name, func(t *testing.T) {
			n := newTenant(t, w)
			size := len(n.theirs.bytes)
			old := n.register(t, 0, size, "kv")
			named := segment(t, n.here, n.there, "kv")
			to := []engine.Remote{{Segment: n.at, Region: old, Offset: uint64(n.begin)},
				{Segment: named, Offset: uint64(n.begin)}}
			for _, at := range to {
				require.Equal(t, dispatch.Completed, ended(t, n.here, n.move(t, transport.Write, at)).State)
			}
			n.close(t, old)
			n.register(t, 0, size, "kv")
			fill(n.theirs.bytes, 5)
			fill(n.own.bytes, 6)
			for _, at := range to {
				sum := ended(t, n.here, n.move(t, transport.Write, at))
				require.Equal(t, dispatch.Failed, sum.State)
				require.Equal(t, errs.AddressNotRegistered, sum.Err.Code, "%v", sum.Err)
			}
			same(t, n.theirs.bytes, 5, 0)
		})
	}
}

// Where nothing is registered any more, a request ends with the refusal, and the next one is not taken at all.
func TestAnAddressWithoutMemoryIsRefused(t *testing.T) {
	for _, w := range registeredWorlds() {
		t.Run(w.name, func(t *testing.T) {
			n := newTenant(t, w)
			whole := n.register(t, 0, len(n.theirs.bytes), "kv")
			n.prepare(t)
			n.close(t, whole)
			fill(n.theirs.bytes, 5)
			sum := ended(t, n.here, n.ways[0](t, transport.Write))
			require.Equal(t, dispatch.Failed, sum.State)
			require.Equal(t, errs.AddressNotRegistered, sum.Err.Code, "%v", sum.Err)
			same(t, n.theirs.bytes, 5, 0)
			_, err := n.here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write},
				Source: address(n.own.bytes), Length: 1,
				Remote: engine.Remote{Segment: n.at, Offset: uint64(address(n.theirs.bytes))}})
			require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err), "%v", err)
		})
	}
}

// The peer has the old description of a region that it has never used, over a transport that asks the owner for it.
func TestAnAddressIsReachedForTheFirstTimeBehindAnotherRegistration(t *testing.T) {
	sharedAlone := world{"shm alone", func(t testing.TB, settings map[string]any) *engine.Engine {
		return openAll(t, map[string]any{"transports/tcp/enable": false})
	}}
	for _, w := range append(registeredWorlds(), sharedAlone) {
		t.Run(w.name, func(t *testing.T) {
			n := newTenant(t, w)
			for i := range 4 {
				old := n.register(t, 0, len(n.theirs.bytes), "kv")
				n.prepare(t)
				_, err := n.here.Segment(t.Context(), n.at, true)
				require.NoError(t, err)
				n.close(t, old)
				now := n.register(t, 0, len(n.theirs.bytes), "kv")
				n.moveAndCheck(t, n.ways[i], transport.Write, i)
				n.close(t, now)
			}
		})
	}
}

// A handle that was opened before knows the region of before, and keeps to it.
func TestOpeningAPeerAgainFindsTheRegionThatHasTheNameNow(t *testing.T) {
	for _, w := range registeredWorlds() {
		t.Run(w.name, func(t *testing.T) {
			n := newTenant(t, w)
			size := len(n.theirs.bytes)
			old := n.register(t, 0, size, "kv")
			before := segment(t, n.here, n.there, "kv")
			n.close(t, old)
			n.register(t, 0, size, "kv")
			at := engine.Remote{Segment: segment(t, n.here, n.there, "kv"), Offset: uint64(n.begin)}
			now := func(t *testing.T, op transport.Op) dispatch.BatchID { return n.move(t, op, at) }
			n.moveAndCheck(t, now, transport.Write, 3)
			at.Segment = before
			_, err := n.here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write},
				Source: address(n.own.bytes), Remote: at, Length: 1})
			require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err), "%v", err)
		})
	}
}
