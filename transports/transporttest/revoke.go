package transporttest

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func revokeRules() []rule {
	return []rule{
		{"AfterRevokeNothingTouchesTheRegion", needsEngine, testRevoke},
		{"ReadsCutOffByRevokeFail", needsEngine, testRevokeReads},
		{"RevokeLeavesOtherRegionsAlone", needsEngine, testRevokeOthers},
		{"RevokeKeepLetsNewOnesPass", needsEngine, testRevokeKeep},
		{"RevokeOfOnePeerLeavesOthersAlone", needsEngine, testRevokePeer},
		{"RevokeOfAnUnknownKeyIsAnError", nil, testRevokeUnknown},
	}
}

// requireCutOff checks the error of a slice that Revoke stopped. It is permanent, because a retry would carry out after
// the fence a transfer that began before it.
func requireCutOff(t *testing.T, err *errs.Error) {
	t.Helper()
	require.Contains(t, []errs.Code{errs.PermissionDenied, errs.AddressNotRegistered, errs.Stale}, err.Code, "%v", err)
	require.Equal(t, errs.ScopeSlice, err.Scope, "%v", err)
	require.False(t, err.Collateral, "%v", err)
}

// siege submits slices of one operation on a region from a thread until it is told to stop.
type siege struct {
	p    *pair
	stop chan struct{}
	wait sync.WaitGroup
	list []*transport.Slice // after end
}

func (p *pair) besiege(op transport.Op, rail transport.Rail, local *Operand, remote *Remote, size uint64) *siege {
	s := &siege{p: p, stop: make(chan struct{})}
	slots := remote.Size / size
	s.wait.Go(func() {
		for i := uint64(0); ; i++ {
			select {
			case <-s.stop:
				return
			default:
			}
			at := i % slots * size
			var volley []*transport.Slice
			for range 8 {
				volley = append(volley, p.c.Slice(op, rail, local, at, remote, at, size))
			}
			s.list = append(s.list, volley[:p.c.Send(volley...)]...)
			if i > 2 { // a bounded number of slices under way
				ended := s.list[:len(s.list)-24]
				if !p.w.wait(func() bool { return p.c.endedLocked(ended[max(0, len(ended)-8):]) }) {
					return
				}
			}
		}
	})
	return s
}

// await waits until n more slices have completed than now.
func (s *siege) await(t *testing.T, n int) {
	t.Helper()
	ends := func() (n int) {
		for _, e := range s.p.w.ledger {
			n += e.ends
		}
		return n
	}
	s.p.w.mu.Lock()
	before := ends()
	s.p.w.mu.Unlock()
	s.p.w.Await(t, "slices to complete under siege", func() bool { return ends() >= before+n })
}

func (s *siege) end(t *testing.T) []transport.Completion {
	t.Helper()
	close(s.stop)
	s.wait.Wait()
	return s.p.c.Wait(t, s.list...)
}

func testRevoke(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 64<<10)
	for range 5 {
		local, remote := p.operands(t, 8*size)
		local.Fill(tagMoved, 0, local.Size)
		s := p.besiege(transport.Write, p.c.Rail(t), local, remote, size)
		s.await(t, 20)
		remote.Revoke(t, nil, false)
		remote.Fill(tagAfter, 0, remote.Size)
		s.await(t, 20)
		for _, end := range s.end(t) {
			if end.Err != nil {
				requireCutOff(t, end.Err)
			}
		}
		p.c.Barrier(t)
		require.NoError(t, remote.Check(tagAfter, 0, 0, remote.Size), "written after Revoke had returned")
		requireCutOff(t, p.c.One(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, remote, 0, size)))
		remote.Deregister(t)
	}
}

// testRevokeReads reads one slot after the other into a place of its own. The owner fills the region anew as soon as
// Revoke has returned; a READ that succeeds may only show the old bytes.
func testRevokeReads(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 60
	size := fit(p.c, 64<<10)
	for round := range 5 {
		local, remote := p.operands(t, n*size)
		remote.Fill(tagMoved, 0, remote.Size)
		list := p.volley(transport.Read, p.c.Rail(t), local, remote, n, size)
		list = list[:p.c.Submit(list...)]
		if round > 0 {
			p.c.Wait(t, list[:min(round, len(list))]...)
		}
		remote.Revoke(t, nil, false)
		remote.Fill(tagAfter, 0, remote.Size)
		for i, end := range p.c.Wait(t, list...) {
			if at := uint64(i) * size; end.Err == nil {
				require.NoError(t, local.Check(tagMoved, at, at, size), "slice %d shows bytes of after the fence", i)
			} else {
				requireCutOff(t, end.Err)
			}
		}
		requireCutOff(t, p.c.One(t, p.c.Slice(transport.Read, p.c.Rail(t), local, 0, remote, 0, size)))
	}
}

func testRevokeOthers(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 32<<10)
	local, safe := p.operands(t, 8*size)
	local.Fill(tagMoved, 0, local.Size)
	rail := p.c.Rail(t)
	s := p.besiege(transport.Write, rail, local, safe, size)
	s.await(t, 10)
	for range 10 {
		victim := p.c.Import(t, p.b.Register(t, 4*size, mem.GlobalReadWrite))
		list := p.volley(transport.Write, rail, local, victim, 4, size)
		list = list[:p.c.Submit(list...)]
		victim.Revoke(t, nil, false)
		p.c.Wait(t, list...)
	}
	for _, end := range s.end(t) {
		if end.Err != nil {
			require.True(t, end.Err.Collateral, "slice %d to another region: %v", end.Slice.Id, end.Err)
		}
	}
	require.NoError(t, safe.Check(tagMoved, 0, 0, size))
}

func testRevokeKeep(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 30
	size := fit(p.c, 64<<10)
	local, remote := p.operands(t, n*size)
	local.Fill(tagMoved, 0, local.Size)
	for range 10 {
		list := p.volley(transport.Write, p.c.Rail(t), local, remote, n, size)
		list = list[:p.c.Submit(list...)]
		remote.Revoke(t, nil, true)
		remote.Fill(tagAfter, 0, remote.Size)
		for _, end := range p.c.Wait(t, list...) {
			if end.Err != nil {
				requireCutOff(t, end.Err)
			}
		}
		p.c.Barrier(t)
		require.NoError(t, remote.Check(tagAfter, 0, 0, remote.Size),
			"what began before the fence was written after it")
		p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, remote, 0, size))
		require.NoError(t, remote.Check(tagMoved, 0, 0, size))
	}
}

func testRevokePeer(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 4096)
	other := &pair{w: p.w, a: p.w.Open("c"), b: p.b}
	other.c = other.a.Connect(t, p.b)
	own := p.b.Register(t, size, mem.GlobalReadWrite)
	mine, theirs := p.c.Import(t, own), other.c.Import(t, own)
	local, far := p.a.Register(t, size, mem.LocalReadWrite), other.a.Register(t, size, mem.LocalReadWrite)
	far.Fill(tagMoved, 0, size)
	p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, mine, 0, size))
	alias := transport.Peer{Address: "another name of it", ID: p.a.Peer.ID}
	own.Revoke(t, &alias, false)
	requireCutOff(t, p.c.One(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, mine, 0, size)))
	other.c.Must(t, other.c.Slice(transport.Write, other.c.Rail(t), far, 0, theirs, 0, size))
	require.NoError(t, own.Check(tagMoved, 0, 0, size))
	own.Revoke(t, nil, false)
	requireCutOff(t, other.c.One(t, other.c.Slice(transport.Write, other.c.Rail(t), far, 0, theirs, 0, size)))
}

func testRevokeUnknown(t *testing.T, h Harness) {
	p := newPair(t, h)
	own := p.b.Register(t, 4096, mem.LocalReadWrite)
	require.Error(t, p.b.Transport.Revoke(t.Context(), own.Key+1000, nil, false))
	own.Revoke(t, nil, false)
	own.Revoke(t, nil, false) // twice is the same as once
	own.Deregister(t)
	require.Error(t, p.b.Transport.Revoke(t.Context(), own.Key, nil, false))
}
