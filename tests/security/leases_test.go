package security

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/security/securitytest"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// landlord is an engine of mode mtls with a private region, of which it leases parts.
type landlord struct {
	*testing.T
	member
	ca     *securitytest.Authority
	region mem.RegionID
	bytes  []byte
}

func newLandlord(t *testing.T, size int) *landlord {
	ca := securitytest.NewAuthority(t, nil)
	l := &landlord{T: t, ca: ca, member: newMember(t, ca.Issue(t, nil, "owner"), ca, nil, "*"), bytes: memory(t, size)}
	var err error
	l.region, err = l.Register(engine.Memory{Addr: mem.AddressOf(l.bytes), Size: uint64(size), Location: "cpu:0"})
	require.NoError(t, err)
	pattern(l.bytes, 1)
	return l
}

// lease shares a part of the region, and returns the lease as an engine that may use it sees it.
func (l *landlord) lease(tenant *engine.Engine, s engine.Share) (mem.RegionID, segment.Region) {
	l.Helper()
	id, err := l.Share(l.region, s)
	require.NoError(l, err)
	found, err := l.find(tenant, id)
	require.NoError(l, err)
	return id, found
}

// find looks a lease up by its token.
func (l *landlord) find(from *engine.Engine, id mem.RegionID) (segment.Region, error) {
	l.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	token, err := l.Token(id)
	require.NoError(l, err)
	at, err := from.OpenSegment(ctx, l.Address())
	require.NoError(l, err)
	defer func() { require.NoError(l, from.CloseSegment(at)) }()
	return from.FindLease(ctx, at, token)
}

// cheat is a member of the cluster that checks nothing itself, with a lane to the landlord.
type cheat struct {
	*rogue
	own  []byte
	link transport.Link
	rail transport.Rail
}

func (l *landlord) cheat(name string, size int, through func([]byte) []byte) *cheat {
	l.Helper()
	f := securitytest.NewFiles(l.T)
	f.Write(l.T, l.ca.Issue(l.T, nil, name), l.ca)
	c := &cheat{own: memory(l.T, size)}
	c.rogue = newRogueOf(l.T, transport.Peer{Address: "127.0.0.1:1", Network: l.Self().Network}, c.own,
		security.Settings{Allow: []string{"*"}, Files: security.Files{Certificate: f.Certificate, Key: f.Key,
			Authorities: f.Root}})
	c.through = through
	var refusal *errs.Error
	c.link, c.rail, refusal = c.attach(l.Engine)
	require.Nil(l, refusal)
	return c
}

// tries moves bytes by a key, at an offset that nothing has checked.
func (c *cheat) tries(op transport.Op, key transport.RemoteKey, offset uint64, n int) errs.Code {
	c.t.Helper()
	if end := c.moveAt(op, c.rail, key, offset, c.own[:n]); end != nil {
		return end.Code
	}
	return errs.OK
}

func (c *cheat) imports(lease segment.Region) transport.RemoteKey {
	c.t.Helper()
	key, err := c.transport.Import(c.link, lease.Descriptors["tcp"])
	require.NoError(c.t, err)
	return key
}

const leaseBytes = 64 << 10

// A tenant that checks nothing itself reaches the bytes of its lease in the way that it was given, and no others.
func TestATenantThatChecksNothingKeepsToItsLease(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	l := newLandlord(t, leaseBytes)
	tenant := newMember(t, l.ca.Issue(t, nil, "tenant"), l.ca, nil, "*")
	c := l.cheat("tenant", leaseBytes, nil)
	expected := bytes.Clone(l.bytes)
	for round := range 8 {
		n := 2 + random.IntN(leaseBytes/2)
		at := 1 + random.IntN(leaseBytes-n-1)
		s := engine.Share{Offset: uint64(at), Size: uint64(n), Peers: []string{"dns:tenant"}}
		_, writable := l.lease(tenant.Engine, s)
		s.Permission = mem.GlobalReadOnly
		_, readable := l.lease(tenant.Engine, s)
		lie := readable.Descriptors["tcp"] // of its words the key alone counts
		lie[1] = byte(mem.GlobalReadWrite)
		binary.LittleEndian.PutUint64(lie[16:], math.MaxUint64)

		look, change := c.imports(readable), c.imports(writable)
		pattern(c.own, uint64(2+round))
		require.Equal(t, errs.PermissionDenied, c.tries(transport.Write, look, 0, 1))
		for _, key := range []transport.RemoteKey{look, change} {
			for _, op := range []transport.Op{transport.Read, transport.Write} {
				if key == look && op == transport.Write {
					continue
				}
				for _, wrong := range []struct {
					offset uint64
					n      int
				}{
					{uint64(n), 1}, {1, n}, {0, n + 1}, {uint64(n) - 1, 2}, {math.MaxUint64, 1}, {math.MaxUint64, 2},
					{-uint64(at), 1}, {math.MaxUint64 - uint64(n) + 2, n}, {1 << 63, n}, {uint64(leaseBytes - at), 1},
				} {
					before := bytes.Clone(c.own)
					require.Equal(t, errs.InvalidArgument, c.tries(op, key, wrong.offset, wrong.n), "%v %v", op, wrong)
					require.Equal(t, before, c.own)
				}
			}
		}
		require.Equal(t, expected, l.bytes)
		require.Equal(t, errs.OK, c.tries(transport.Write, change, 0, n))
		copy(expected[at:], c.own[:n])
		require.Equal(t, expected, l.bytes)
		clear(c.own)
		require.Equal(t, errs.OK, c.tries(transport.Read, look, 1, n-1))
		require.Equal(t, expected[at+1:at+n], c.own[:n-1])
		require.Equal(t, make([]byte, leaseBytes-n+1), c.own[n-1:])
	}
}

// A token and a key that a tenant gives away are of no use to another peer.
func TestALeaseOfAnotherPeerOpensNothing(t *testing.T) {
	l := newLandlord(t, leaseBytes)
	tenant := newMember(t, l.ca.Issue(t, nil, "tenant"), l.ca, nil, "*")
	thief := newMember(t, l.ca.Issue(t, nil, "thief"), l.ca, nil, "*")
	id, lease := l.lease(tenant.Engine, engine.Share{Size: leaseBytes, Name: "kv", Permission: mem.GlobalReadWrite,
		Peers: []string{"dns:tenant"}})
	_, err := l.find(thief.Engine, id)
	require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = thief.OpenSegment(ctx, l.Address()+"/kv")
	require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err))

	expected := bytes.Clone(l.bytes)
	c := l.cheat("thief", leaseBytes, nil)
	key := c.imports(lease)
	for _, op := range []transport.Op{transport.Read, transport.Write} {
		require.Equal(t, errs.PermissionDenied, c.tries(op, key, 0, leaseBytes))
	}
	require.Equal(t, expected, l.bytes)
	require.Equal(t, make([]byte, leaseBytes), c.own)
	honest := l.cheat("tenant", leaseBytes, nil) // which shows that the thief was refused for its identity
	require.Equal(t, errs.OK, honest.tries(transport.Read, honest.imports(lease), 0, leaseBytes))
	require.Equal(t, expected, honest.own)
}

// A tenant that keeps the key of its lease reaches nothing by it behind the end, also where the same bytes are leased
// again.
func TestAKeyEndsWithItsLease(t *testing.T) {
	for name, end := range map[string]func(*landlord, mem.RegionID){
		"closed":        func(l *landlord, id mem.RegionID) { require.NoError(l, l.CloseRegion(l.Context(), id)) },
		"expired":       func(l *landlord, id mem.RegionID) { require.NoError(l, l.Renew(id, time.Nanosecond)) },
		"region closed": func(l *landlord, _ mem.RegionID) { require.NoError(l, l.CloseRegion(l.Context(), l.region)) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLandlord(t, leaseBytes)
			tenant := newMember(t, l.ca.Issue(t, nil, "tenant"), l.ca, nil, "*")
			s := engine.Share{Size: leaseBytes, Permission: mem.GlobalReadWrite, Peers: []string{"dns:tenant"},
				Expires: time.Hour}
			id, lease := l.lease(tenant.Engine, s)
			c := l.cheat("tenant", leaseBytes, nil)
			key := c.imports(lease)
			require.Equal(t, errs.OK, c.tries(transport.Read, key, 0, leaseBytes))
			require.Equal(t, l.bytes, c.own)

			end(l, id)
			require.Equal(t, name, happened(t, l.Engine, event.LeaseEnded).Note)
			pattern(l.bytes, 2) // it has another owner now
			theirs, before := bytes.Clone(l.bytes), bytes.Clone(c.own)
			if name != "region closed" {
				again, found := l.lease(tenant.Engine, s)
				require.NotEqual(t, id, again)
				require.NotEqual(t, lease.Descriptors["tcp"], found.Descriptors["tcp"])
			}
			for _, op := range []transport.Op{transport.Read, transport.Write} {
				require.Equal(t, errs.AddressNotRegistered, c.tries(op, key, 0, leaseBytes))
			}
			require.Equal(t, theirs, l.bytes)
			require.Equal(t, before, c.own)
		})
	}
}

// A tenant that stops to receive in the middle of a READ cannot delay the end of its lease. The rest of the READ has
// the bytes of before, or none: not one of the next owner's bytes leaves.
func TestATenantThatStopsReceivingHearsNothingOfTheNextOwner(t *testing.T) {
	const slice, slices = 1 << 20, 16 // more than the buffers of the sockets hold
	l := newLandlord(t, slice*slices)
	tenant := newMember(t, l.ca.Issue(t, nil, "tenant"), l.ca, nil, "*")
	m := newMeddler(t, nil)
	m.stopAfter(slice + slice/2)
	id, lease := l.lease(tenant.Engine, engine.Share{Size: slice * slices})
	c := l.cheat("tenant", slice*slices, m.Call)
	key := c.imports(lease)
	before := bytes.Clone(l.bytes)
	var list []*transport.Slice
	for i := range uint64(slices) {
		list = append(list, &transport.Slice{Op: transport.Read, Rail: c.rail, LocalKey: c.key, RemoteKey: key,
			Local: mem.AddressOf(c.own[i*slice:]), Remote: i * slice, Length: slice, Id: i + 1})
	}
	taken := c.transport.Submit(list)
	require.Greater(t, taken, slices/4, "the window of a lane has room for more")
	select {
	case <-m.stopped:
	case <-time.After(patience):
		require.FailNow(t, "nothing was read")
	}
	require.NoError(t, l.CloseRegion(t.Context(), id))
	next := bytes.Repeat([]byte("the next owner's "), slice*slices/17+1)
	copy(l.bytes, next)
	m.goOn()
	refused := 0
	for range taken {
		select {
		case end := <-c.ends:
			at := (end.Id - 1) * slice
			if end.Err == nil {
				require.True(t, bytes.Equal(before[at:at+slice], c.own[at:at+slice]), "slice %d", end.Id)
				continue
			}
			require.Equal(t, errs.AddressNotRegistered, end.Err.Code)
			refused++
		case <-time.After(patience):
			require.FailNow(t, "a slice did not end")
		}
	}
	require.Positive(t, refused, "the lease was closed in the middle")
	require.False(t, bytes.Contains(c.own, next[:17]))
	require.False(t, m.heardOf(next[:17]))
}
