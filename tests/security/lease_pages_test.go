package security

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// These tests attack leases of several ranges over tcp. Each range is a registration, and transporttest shows on every
// transport that a key opens its registration and no byte beyond.

const leasedPage = 4 << 10

func pagesOf(pages ...int) (list []engine.Range) {
	for _, page := range pages {
		list = append(list, engine.Range{Offset: uint64(page) * leasedPage, Size: leasedPage})
	}
	return list
}

// ranges asks the landlord for the ranges of a lease, as the cheat is told them.
func (c *cheat) ranges(l *landlord, lease mem.RegionID) []segment.Region {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d, err := c.client.Describe(ctx, l.Self(), nil)
	require.NoError(c.t, err)
	return d.Ranges(lease)
}

// A page between two pages of a lease has no number, and no key of the lease reaches it. Offsets behind a range are
// refused, and so are those before it and around the address space.
func TestAPageBetweenTwoPagesOfALeaseIsOutOfReach(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	const pages = 16
	l := newLandlord(t, pages*leasedPage)
	c := l.cheat("tenant", pages*leasedPage, nil)
	expected := bytes.Clone(l.bytes)
	leased := []int{9, 3, 5, 6, 12}
	for _, permission := range []mem.Permission{mem.GlobalReadOnly, mem.GlobalReadWrite} {
		id, err := l.Share(l.region, engine.Share{Ranges: pagesOf(leased...), Permission: permission,
			Peers: []string{"dns:tenant"}})
		require.NoError(t, err)
		ranges := c.ranges(l, id)
		require.Len(t, ranges, 4, "pages 5 and 6 are one range")
		for i, r := range ranges {
			require.Zero(t, r.Addr)
			key, at := c.imports(r), uint64([]int{9, 3, 5, 12}[i]*leasedPage)
			pattern(c.own, random.Uint64())
			for _, op := range []transport.Op{transport.Read, transport.Write} {
				want := errs.InvalidArgument
				if op == transport.Write && permission == mem.GlobalReadOnly {
					want = errs.PermissionDenied
				}
				for _, offset := range []uint64{r.Size, r.Size - 1, leasedPage * 2, math.MaxUint64, -at,
					math.MaxUint64 - leasedPage + 1, uint64(random.IntN(pages*leasedPage)) + r.Size - 1} {
					before := bytes.Clone(c.own)
					require.Equal(t, want, c.tries(op, key, offset, 2), "%v range %d offset %d", op, i, int64(offset))
					require.Equal(t, before, c.own)
				}
			}
			require.Equal(t, expected, l.bytes)
			require.Equal(t, errs.OK, c.tries(transport.Read, key, 0, int(r.Size)))
			require.Equal(t, expected[at:at+r.Size], c.own[:r.Size])
			if permission == mem.GlobalReadWrite {
				pattern(c.own, random.Uint64())
				require.Equal(t, errs.OK, c.tries(transport.Write, key, 0, int(r.Size)))
				copy(expected[at:at+r.Size], c.own)
				require.Equal(t, expected, l.bytes)
			}
		}
	}
}

// The ranges of a lease are for its peers, each of them, and a key of one range ends with the lease.
func TestThePagesOfALeaseEndForATenantThatChecksNothing(t *testing.T) {
	l := newLandlord(t, leaseBytes)
	c, thief := l.cheat("tenant", leaseBytes, nil), l.cheat("thief", leaseBytes, nil)
	id, err := l.Share(l.region, engine.Share{Ranges: pagesOf(7, 2, 11), Permission: mem.GlobalReadWrite,
		Peers: []string{"dns:tenant"}})
	require.NoError(t, err)
	require.Nil(t, thief.ranges(l, id), "not described to others")
	var keys []transport.RemoteKey
	for _, r := range c.ranges(l, id) {
		key := c.imports(r)
		require.Equal(t, errs.OK, c.tries(transport.Read, key, 0, leasedPage))
		for _, op := range []transport.Op{transport.Read, transport.Write} {
			require.Equal(t, errs.PermissionDenied, thief.tries(op, thief.imports(r), 0, leasedPage))
		}
		keys = append(keys, key)
	}
	require.Len(t, keys, 3)
	require.NoError(t, l.CloseRegion(t.Context(), id))
	pattern(l.bytes, 2) // it has another owner now
	next, before := bytes.Clone(l.bytes), bytes.Clone(c.own)
	for _, key := range keys {
		for _, op := range []transport.Op{transport.Read, transport.Write} {
			require.Equal(t, errs.AddressNotRegistered, c.tries(op, key, 0, leasedPage))
		}
	}
	require.Equal(t, next, l.bytes)
	require.Equal(t, before, c.own)
}
