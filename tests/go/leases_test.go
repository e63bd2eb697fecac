package tests

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	described "github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// leaseWorlds are those of worlds, shared memory, a transport that holds the pages of a registration, and RDMA over the
// fake library.
func leaseWorlds() []world {
	more := remapWorlds()
	rdma := func(t testing.TB, settings map[string]any) *engine.Engine { return openRDMA(t, settings) }
	return append(worlds(), more[1], more[2], world{"rdma", rdma})
}

// leasing is an owner with a region that peers may not touch, and a peer that is given parts of it.
type leasing struct {
	*testing.T
	owner, peer *engine.Engine
	region      mem.RegionID
	theirs, own []byte
	at          engine.SegmentID
}

const leasingBytes = 64 << 10

func newLeasing(t *testing.T, w world, size int) *leasing {
	l := &leasing{T: t, owner: w.open(t, nil), peer: w.open(t, nil)}
	l.theirs, l.own = memory(t, size), memory(t, size)
	l.region = offer(t, l.owner, l.theirs, "")
	offer(t, l.peer, l.own, "")
	l.at = segment(t, l.peer, l.owner, "")
	fill(l.theirs, 1)
	return l
}

func (l *leasing) share(s engine.Share) (mem.RegionID, string) {
	l.Helper()
	id, err := l.owner.Share(l.region, s)
	require.NoError(l, err)
	token, err := l.owner.Token(id)
	require.NoError(l, err)
	require.LessOrEqual(l, len(token), 64)
	return id, token
}

// move carries out one transfer between the begin of the peer's memory and a lease.
func (l *leasing) move(op transport.Op, token string, offset, n uint64) error {
	found, err := l.peer.FindLease(l.Context(), l.at, token)
	if err != nil {
		return err
	}
	return l.reach(op, found.ID, offset, n)
}

// moveAgain is move behind a fence. The news of it may come a moment after the owner's call has returned: a transfer
// that began before the news is to be submitted again.
func (l *leasing) moveAgain(op transport.Op, token string, offset, n uint64) error {
	l.Helper()
	for end := time.Now().Add(patience); ; {
		err := l.move(op, token, offset, n)
		if err == nil || !strings.Contains(err.Error(), "submit the transfer again") || time.Now().After(end) {
			return err
		}
	}
}

func (l *leasing) reach(op transport.Op, lease mem.RegionID, offset, n uint64) error {
	l.Helper()
	batch, err := l.peer.Move(&engine.Request{Terms: request.Terms{Op: op}, Source: address(l.own), Length: n,
		Remote: engine.Remote{Segment: l.at, Region: lease, Offset: offset}})
	if err != nil {
		return err
	}
	if sum := ended(l.T, l.peer, batch); sum.State != dispatch.Completed {
		return sum.Err
	}
	return nil
}

// tokenOf shares the begin of the region under a name.
func (l *leasing) tokenOf(name string) string {
	l.Helper()
	_, token := l.share(engine.Share{Size: 64, Name: name})
	return token
}

// awaitEnd waits for the event of a lease's end.
func (l *leasing) awaitEnd(from engine.FollowerID, name string) event.Event {
	l.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		list, _, err := l.owner.Events(from, 100)
		require.NoError(l, err)
		for _, each := range list {
			if each.Kind == event.LeaseEnded && each.Rail == name {
				return each
			}
		}
		_, err = l.owner.EventsWait(from, 100*time.Millisecond)
		require.NoError(l, err)
	}
	require.FailNow(l, "the lease did not end", name)
	return event.Event{}
}

// A lease gives its range with its permission, and nothing beside it.
func TestALeaseGivesItsRangeAlone(t *testing.T) {
	for _, w := range leaseWorlds() {
		t.Run(w.name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 1))
			l := newLeasing(t, w, leasingBytes)
			expected := bytes.Clone(l.theirs)
			for round := range 10 {
				at := random.IntN(leasingBytes - 1)
				n := 1 + random.IntN(leasingBytes-at)
				id, token := l.share(engine.Share{Offset: uint64(at), Size: uint64(n)})
				fill(l.own, 2+round)
				require.NoError(t, l.move(transport.Write, token, 0, uint64(n)))
				copy(expected[at:at+n], l.own)
				require.Equal(t, expected, l.theirs)

				require.Equal(t, errs.InvalidArgument, errs.CodeOf(l.move(transport.Write, token, 1, uint64(n))))
				from := random.IntN(n)
				clear(l.own)
				require.NoError(t, l.move(transport.Read, token, uint64(from), uint64(n-from)))
				require.Equal(t, expected[at+from:at+n], l.own[:n-from])
				require.NoError(t, l.owner.CloseRegion(t.Context(), id))
				require.Error(t, l.reach(transport.Write, id, 0, uint64(n)))
				require.Equal(t, expected, l.theirs)
			}
			_, token := l.share(engine.Share{Offset: 8, Size: 8, Permission: mem.GlobalReadOnly})
			require.NoError(t, l.move(transport.Read, token, 0, 8))
			require.Equal(t, errs.PermissionDenied, errs.CodeOf(l.move(transport.Write, token, 0, 8)))
			require.Equal(t, expected, l.theirs)
		})
	}
}

// A READ that overlaps the end of a lease completes with the bytes of its time, or fails. Its owner may use them for
// something else as soon as CloseRegion has returned.
func TestReadsThatComeTooLateFail(t *testing.T) {
	const size = 4 << 20
	for _, w := range leaseWorlds() {
		t.Run(w.name, func(t *testing.T) {
			l := newLeasing(t, w, size)
			for round := range 6 {
				fill(l.theirs, 1)
				id, token := l.share(engine.Share{Size: size})
				require.NoError(t, l.move(transport.Read, token, 0, 4096), "both ends know each other")
				var begun []dispatch.BatchID
				for i := range uint64(8) {
					batch, err := l.peer.Move(&engine.Request{Terms: request.Terms{Op: transport.Read},
						Source: address(l.own[i*size/8:]), Length: size / 8,
						Remote: engine.Remote{Segment: l.at, Region: id, Offset: i * size / 8}})
					require.NoError(t, err)
					begun = append(begun, batch)
				}
				if round%2 == 1 {
					l.peer.Wait(begun[round], patience)
				}
				require.NoError(t, l.owner.CloseRegion(t.Context(), id))
				fill(l.theirs, 2)
				for i, batch := range begun {
					switch sum := ended(t, l.peer, batch); sum.State {
					case dispatch.Completed:
						same(t, l.own[i*size/8:(i+1)*size/8], 1, i*size/8)
					default:
						require.Equal(t, errs.AddressNotRegistered, sum.Err.Code, "%v", sum.Err)
					}
				}
				require.Error(t, l.reach(transport.Read, id, 0, 8))
			}
		})
	}
}

// The time of a lease ends it, whether or not anybody calls, and its renewal counts from then on.
func TestALeaseEndsWithItsTime(t *testing.T) {
	for _, w := range leaseWorlds() {
		t.Run(w.name, func(t *testing.T) {
			l := newLeasing(t, w, leasingBytes)
			follower, err := l.owner.Follow()
			require.NoError(t, err)
			defer l.owner.Unfollow(follower)
			short, _ := l.share(engine.Share{Size: 64, Name: "short", Expires: time.Millisecond})
			ended := l.awaitEnd(follower, "short")
			require.Equal(t, "expired", ended.Note)
			require.Equal(t, errs.InvalidEntry, errs.CodeOf(l.owner.Renew(short, time.Hour)))
			require.Error(t, l.reach(transport.Write, short, 0, 64))
			require.NoError(t, l.owner.CloseRegion(t.Context(), short), "again is no mistake")

			long, token := l.share(engine.Share{Size: 64, Name: "long", Expires: time.Hour})
			never, second := l.share(engine.Share{Size: 64, Name: "never", Expires: time.Hour})
			require.NoError(t, l.move(transport.Write, token, 0, 64))
			require.NoError(t, l.owner.Renew(never, 0))
			require.NoError(t, l.owner.Renew(long, time.Millisecond))
			require.Equal(t, "expired", l.awaitEnd(follower, "long").Note)
			require.Error(t, l.reach(transport.Write, long, 0, 64))
			require.NoError(t, l.move(transport.Write, second, 0, 64))
			require.NoError(t, l.owner.CloseRegion(t.Context(), never))
			require.Equal(t, "closed", l.awaitEnd(follower, "never").Note)
			require.Equal(t, errs.InvalidEntry, errs.CodeOf(l.owner.Renew(never, time.Hour)))
			require.Equal(t, errs.InvalidArgument, errs.CodeOf(l.owner.Renew(l.region, time.Hour)))
		})
	}
}

// A region takes its leases with it, and keeps its memory until they have gone. A lease leaves its region and other
// leases alone.
func TestLeasesEndWithTheirRegion(t *testing.T) {
	for _, w := range leaseWorlds() {
		t.Run(w.name, func(t *testing.T) {
			l := newLeasing(t, w, leasingBytes)
			id, m, err := l.owner.Allocate(engine.Memory{Size: leasingBytes, Name: "whole", Location: "cpu:0",
				Permission: mem.GlobalReadOnly})
			require.NoError(t, err)
			l.region = id
			var tokens []string
			for i := range uint64(20) {
				lease, token := l.share(engine.Share{Offset: i * 64, Size: 128, Permission: mem.GlobalReadWrite})
				require.NoError(t, l.move(transport.Write, token, 0, 128))
				if i%2 == 0 {
					require.NoError(t, l.owner.CloseRegion(t.Context(), lease))
					require.Error(t, l.move(transport.Write, token, 0, 128))
				} else {
					tokens = append(tokens, token)
				}
			}
			for _, token := range tokens {
				require.NoError(t, l.move(transport.Write, token, 0, 128))
			}
			held := mem.Bytes(m.Addr, leasingBytes)
			require.NoError(t, l.owner.CloseRegion(t.Context(), id))
			fill(held, 3)
			for _, token := range tokens {
				require.Error(t, l.move(transport.Write, token, 0, 128))
			}
			same(t, held, 3, 0)
			_, err = l.owner.Share(id, engine.Share{Size: 64})
			require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err))
			require.NoError(t, l.owner.FreeMemory(id))
		})
	}
}

// A fence of a region holds for its leases: nothing that began before lands, and later transfers pass.
func TestAFenceCoversLeases(t *testing.T) {
	const size = 16 << 20
	for _, w := range leaseWorlds() {
		t.Run(w.name, func(t *testing.T) {
			l := newLeasing(t, w, size)
			fill(l.own, 2)
			id, token := l.share(engine.Share{Size: size})
			require.NoError(t, l.move(transport.Write, token, 0, 4096), "both ends know each other")
			var begun []dispatch.BatchID
			for range 2 {
				batch, err := l.peer.Move(&engine.Request{Terms: request.Terms{Op: transport.Write}, Length: size,
					Source: address(l.own), Remote: engine.Remote{Segment: l.at, Region: id}})
				require.NoError(t, err)
				begun = append(begun, batch)
			}
			require.NoError(t, l.owner.FenceRegion(t.Context(), l.region, ""))
			before := bytes.Clone(l.theirs)
			for _, batch := range begun {
				ended(t, l.peer, batch)
			}
			require.True(t, bytes.Equal(before, l.theirs), "written after the fence")
			fill(l.own, 4)
			require.NoError(t, l.moveAgain(transport.Write, token, 0, size))
			same(t, l.theirs, 4, 0)
		})
	}
}

// A lease has the pages of its region, also those that come later.
func TestRemappedPagesAreReachedByLeases(t *testing.T) {
	for _, w := range remapWorlds() {
		t.Run(w.name, func(t *testing.T) {
			const pages = 6
			kv := newGrowable(t, pages)
			kv.back(t, 0, pages)
			l := &leasing{T: t, owner: w.open(t, nil), peer: w.open(t, nil)}
			l.own = offeredShared(t, l.peer, len(kv.bytes))
			l.region = offer(t, l.owner, kv.bytes, "")
			l.at = segment(t, l.peer, l.owner, "")
			page := uint64(kv.page)
			id, token := l.share(engine.Share{Offset: page, Size: 3 * page})
			require.NoError(t, l.move(transport.Write, token, 0, 3*page))
			for _, part := range [][2]int{{0, 1}, {0, 3}, {2, 3}, {3, pages}, {0, pages}} {
				kv.back(t, part[0], part[1])
				require.NoError(t, l.owner.RemapRegion(t.Context(), l.region, uint64(part[0])*page,
					uint64(part[1]-part[0])*page))
				fill(l.own, part[1])
				require.NoError(t, l.moveAgain(transport.Write, token, 0, 3*page))
				same(t, kv.bytes[kv.page:4*kv.page], part[1], 0)
			}
			require.Equal(t, errs.InvalidArgument, errs.CodeOf(l.owner.RemapRegion(t.Context(), id, 0, page)))
		})
	}
}

// Addresses never mean a lease: moves by address do not end with it, nor get its permission.
func TestAddressesDoNotMeanLeases(t *testing.T) {
	for _, w := range leaseWorlds() {
		t.Run(w.name, func(t *testing.T) {
			l := newLeasing(t, w, leasingBytes)
			kv := memory(t, leasingBytes)
			l.region = offer(t, l.owner, kv, "kv")
			id, token := l.share(engine.Share{Offset: 64, Size: 64, Name: "part", Permission: mem.GlobalReadOnly})
			fill(l.own, 5)
			require.NoError(t, l.reach(transport.Write, 0, uint64(address(kv))+64, 64), "by the region")
			same(t, kv[64:128], 5, 0)
			require.Equal(t, errs.PermissionDenied, errs.CodeOf(l.move(transport.Write, token, 0, 64)))
			local, err := l.owner.Move(&engine.Request{Terms: request.Terms{Op: transport.Write}, Length: 64,
				Source: address(kv[64:]), Remote: engine.Remote{Offset: uint64(address(kv))}})
			require.NoError(t, err)
			require.NoError(t, l.owner.CloseRegion(t.Context(), id))
			require.Equal(t, dispatch.Completed, ended(t, l.owner, local).State)
			require.NoError(t, l.reach(transport.Write, 0, uint64(address(kv))+64, 64))

			l.share(engine.Share{Offset: 64, Size: 64, Name: "other"})
			for _, op := range []transport.Op{transport.Read, transport.Write} {
				code := errs.CodeOf(l.reach(op, 0, 1<<63, 64))
				require.Equal(t, errs.AddressNotRegistered, code, "the address that all leases once had")
			}
			call, err := l.peer.Begin(request.Terms{Op: transport.Read})
			require.NoError(t, err)
			lease, err := l.peer.FindLease(t.Context(), l.at, l.tokenOf("third"))
			require.NoError(t, err)
			require.Zero(t, lease.Addr)
			require.NoError(t, call.AddRange(address(l.own), engine.Remote{Segment: l.at, Region: lease.ID}, 8))
			err = call.AddRange(address(l.own), engine.Remote{Segment: l.at, Offset: 8}, 8)
			require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err), "an address behind a neighbour on a lease")
			call.Discard()
			blob, err := l.owner.Export(nil)
			require.NoError(t, err)
			d, err := described.Decode(blob)
			require.NoError(t, err)
			require.Len(t, d.Regions, 1, "an exported description has no leases")
		})
	}
}

// A token names one lease of one engine. Any other text is refused with its reason.
func TestTokensNameALeaseOrNothing(t *testing.T) {
	w := worlds()[0]
	l := newLeasing(t, w, leasingBytes)
	id, token := l.share(engine.Share{Size: 64, Name: "named"})
	found, err := l.peer.FindLease(t.Context(), l.at, token)
	require.NoError(t, err)
	require.Equal(t, id, found.ID)
	require.Equal(t, "named", found.Name)
	code := func(at engine.SegmentID, token string) errs.Code {
		_, err := l.peer.FindLease(t.Context(), at, token)
		return errs.CodeOf(err)
	}
	for i := range token {
		for _, other := range []string{"A", "_", "!", "é"} {
			if spoiled := token[:i] + other + token[i+1:]; spoiled != token {
				require.Equal(t, errs.InvalidArgument, code(l.at, spoiled), spoiled)
			}
		}
		require.Equal(t, errs.InvalidArgument, code(l.at, token[:i]))
	}
	require.Equal(t, errs.InvalidArgument, code(l.at, token+"A"))
	require.Equal(t, errs.InvalidArgument, code(l.at, strings.Repeat("A", 1<<16)))
	require.Equal(t, errs.InvalidEntry, code(engine.Local, token), "another engine")
	require.Equal(t, errs.InvalidArgument, code(segment(t, l.peer, l.owner, "named"), token), "a single region")
	require.NoError(t, l.owner.CloseRegion(t.Context(), id))
	require.Error(t, l.move(transport.Read, token, 0, 64))
	_, err = l.owner.Token(id)
	require.Equal(t, errs.InvalidEntry, errs.CodeOf(err))
}

// A lease that is opened is a segment of its own: offsets count from its begin, and it stays when the peer's segment is
// closed.
func TestALeaseIsOpenedAsASegment(t *testing.T) {
	for _, w := range leaseWorlds() {
		t.Run(w.name, func(t *testing.T) {
			l := newLeasing(t, w, leasingBytes)
			id, token := l.share(engine.Share{Offset: 4096, Size: 512})
			part, lease, err := l.peer.OpenLease(t.Context(), l.at, token)
			require.NoError(t, err)
			require.EqualValues(t, 512, lease.Size)
			require.NoError(t, l.peer.CloseSegment(l.at))
			_, _, err = l.peer.OpenLease(t.Context(), l.at, token)
			require.Equal(t, errs.InvalidEntry, errs.CodeOf(err))
			l.at = part
			clear(l.own)
			require.NoError(t, l.reach(transport.Read, 0, 100, 412))
			require.Equal(t, l.theirs[4196:4608], l.own[:412])
			require.Error(t, l.reach(transport.Read, 0, 100, 413))
			_, _, err = l.peer.OpenLease(t.Context(), part, token)
			require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "a lease of a lease")
			require.NoError(t, l.owner.CloseRegion(t.Context(), id))
			require.Error(t, l.reach(transport.Read, 0, 0, 1))
			require.NoError(t, l.peer.CloseSegment(part))
		})
	}
}

// Leases that make no sense are refused with the reason.
func TestLeasesOfNothingAreRefused(t *testing.T) {
	l := newLeasing(t, worlds()[0], leasingBytes)
	lease, _ := l.share(engine.Share{Size: 64, Name: "taken"})
	for name, s := range map[string]engine.Share{
		"empty":     {},
		"too long":  {Offset: 1, Size: leasingBytes},
		"overflow":  {Offset: 1 << 63, Size: 1 << 63},
		"name":      {Size: 1, Name: "taken"},
		"past":      {Size: 1, Expires: -1},
		"rights":    {Size: 1, Permission: 3},
		"long name": {Size: 1, Name: strings.Repeat("x", 256)},
		"peers":     {Size: 1, Peers: []string{"prefill"}},
	} {
		_, err := l.owner.Share(l.region, s)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%s: %v", name, err)
	}
	_, err := l.owner.Share(lease, engine.Share{Size: 1})
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	id, err := l.owner.Register(engine.Memory{Addr: address(l.theirs), Size: 64, ReadOnly: true, Location: "cpu:0"})
	require.NoError(t, err)
	_, err = l.owner.Share(id, engine.Share{Size: 1, Permission: mem.GlobalReadWrite})
	require.Equal(t, errs.PermissionDenied, errs.CodeOf(err))
	l.region = id
	_, token := l.share(engine.Share{Size: 1})
	require.NoError(t, l.move(transport.Read, token, 0, 1))
	require.Equal(t, errs.PermissionDenied, errs.CodeOf(l.move(transport.Write, token, 0, 1)))
}
