package transporttest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func refusalRules() []rule {
	return []rule{
		{"AccessOutsideARegionIsRefusedAndTheRailLivesOn", nil, testOutOfRange},
		{"PermissionsOfRegionsAreKept", nil, testPermission},
		{"UnknownKeysAreRefusedAndTheRailLivesOn", nil, testUnknownKey},
		{"DeregisteredRegionsAreRefused", needsEngine, testDeregistered},
		{"NeighboursOfARefusedSliceArrive", nil, testRefusedAmongGood},
		{"MemoryThatIsNotHereLeavesTheRestUsable", nil, testNotHere},
	}
}

// notThere are the codes for memory that is not, or no longer, there.
var notThere = []errs.Code{errs.AddressNotRegistered, errs.InvalidArgument, errs.Stale}

// refused sends one slice that must fail for the user's fault, and one that must pass on the same rail.
func (p *pair) refused(t *testing.T, s *transport.Slice, codes ...errs.Code) {
	t.Helper()
	err := p.c.One(t, s)
	require.NotNil(t, err, "it was carried out")
	require.Contains(t, codes, err.Code, "%v", err)
	require.Equal(t, errs.ScopeSlice, err.Scope, "the rail is not to blame: %v", err)
	require.True(t, err.Permanent(), "no retry can help: %v", err)
	require.False(t, err.Collateral)
	local, remote := p.operands(t, 64)
	p.c.Must(t, p.c.Slice(transport.Write, s.Rail, local, 0, remote, 0, fit(p.c, 64)))
}

func testOutOfRange(t *testing.T, h Harness) {
	p := newPair(t, h)
	unit := p.a.Info.Alignment
	size := max(4096, 4*unit)
	local, remote := p.operands(t, size)
	remote.Fill(tagBefore, 0, size)
	rail := p.c.Rail(t)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		for _, at := range []uint64{size - unit, size, size + unit, 1 << 40, math.MaxInt64 - 2*unit + 1,
			math.MaxUint64 - 2*unit + 1, math.MaxUint64 - unit + 1} {
			s := p.c.Slice(op, rail, local, 0, remote, at, 2*unit)
			p.refused(t, s, errs.InvalidArgument, errs.AddressNotRegistered)
		}
	}
	require.NoError(t, remote.Check(tagBefore, 0, 0, size))
}

func testPermission(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 4096)
	local := p.a.Register(t, size, mem.LocalReadWrite)
	rail := p.c.Rail(t)
	for _, permission := range []mem.Permission{mem.LocalReadWrite, mem.GlobalReadOnly, mem.GlobalReadWrite} {
		if p.a.Info.Files && permission == mem.LocalReadWrite {
			continue // there is no file that its owner keeps to itself
		}
		own := p.b.Register(t, size, permission)
		key, err := p.a.Transport.Import(p.c.Link, own.Descriptor)
		if err != nil { // refusing the import is as good, for a region that nobody may touch
			require.Equal(t, mem.LocalReadWrite, permission)
			require.Equal(t, errs.PermissionDenied, errs.CodeOf(err))
			continue
		}
		remote := &Remote{Operand: own, Key: key}
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			local.Fill(tagMoved, 0, size)
			remote.Fill(tagBefore, 0, size)
			s := p.c.Slice(op, rail, local, 0, remote, 0, size)
			if permission.Allows(op == transport.Write) {
				p.c.Must(t, s)
				continue
			}
			p.refused(t, s, errs.PermissionDenied)
			require.NoError(t, remote.Check(tagBefore, 0, 0, size), "%s of %s", op, permission)
			require.NoError(t, local.Check(tagMoved, 0, 0, size), "%s of %s", op, permission)
		}
	}
}

func testUnknownKey(t *testing.T, h Harness) {
	p := newPair(t, h)
	local, remote := p.operands(t, 4096)
	rail := p.c.Rail(t)
	for _, key := range []transport.RemoteKey{0, remote.Key + 1000, 1 << 40, math.MaxUint64} {
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			p.refused(t, p.c.Slice(op, rail, local, 0, remote.by(key), 0, fit(p.c, 64)), notThere...)
		}
	}
}

func testDeregistered(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 4096)
	local, remote := p.operands(t, size)
	rail := p.c.Rail(t)
	p.c.Must(t, p.c.Slice(transport.Write, rail, local, 0, remote, 0, size))
	remote.Deregister(t)
	remote.Fill(tagAfter, 0, size)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		p.refused(t, p.c.Slice(op, rail, local, 0, remote, 0, size), notThere...)
	}
	require.Error(t, p.b.Transport.Deregister(t.Context(), remote.Operand.Key+1000), "a key that never was")
	// the slot may be the same, the key is not
	again := p.c.Import(t, p.b.RegisterMemory(t, remote.Memory, mem.GlobalReadWrite))
	p.refused(t, p.c.Slice(transport.Write, rail, local, 0, remote, 0, size), notThere...)
	require.NoError(t, remote.Check(tagAfter, 0, 0, size))
	p.c.Must(t, p.c.Slice(transport.Write, rail, local, 0, again, 0, size))
}

// testRefusedAmongGood puts refused slices of every kind between good ones of one Submit.
func testRefusedAmongGood(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 20_000)
	const n = 30
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		local, remote, _, to := p.aimed(t, op, n*size)
		list := p.volley(op, p.c.Rail(t), local, remote, n, size)
		for i, s := range list {
			switch i % 6 {
			case 1:
				s.Remote = remote.Size
			case 4:
				s.RemoteKey += 1000
			}
		}
		require.Equal(t, n, p.c.Send(list...))
		for i, end := range p.c.Wait(t, list...) {
			at := uint64(i) * size
			if i%3 == 1 {
				require.NotNil(t, end.Err)
				require.Contains(t, notThere, end.Err.Code)
				require.NoError(t, to.Check(tagBefore, at, at, size))
			} else {
				require.Nil(t, end.Err)
				require.NoError(t, to.Check(tagMoved, at, at, size))
			}
		}
	}
}

// testNotHere offers memory of kinds that no pair of the transport has. The answer is a reason and no key, and it is
// nobody's mistake: the region lives on other transports. Memory that can be used works as before.
func testNotHere(t *testing.T, h Harness) {
	p := newPair(t, h)
	local, remote := p.operands(t, 64)
	foreign := 0
	for kind := mem.Host; kind < mem.File; kind++ {
		if p.a.Info.Uses(kind) {
			continue
		}
		foreign++
		region := local.region(1<<30, mem.GlobalReadWrite)
		region.Kind, region.Location = kind, mem.Location(kind.String()+":0")
		key, descriptor, err := p.a.Transport.Register(t.Context(), region)
		require.Error(t, err, "%v", kind)
		cause := errs.From("register", err)
		require.Equal(t, errs.NotHere, cause.Code, "%v: %v", kind, err)
		require.NotEmpty(t, cause.Cause)
		require.Zero(t, key)
		require.Empty(t, descriptor)
	}
	require.NotZero(t, foreign, "no transport moves every kind of memory")
	p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, remote, 0, fit(p.c, 64)))
	local, remote = p.operands(t, 64)
	p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, remote, 0, fit(p.c, 64)))
}
