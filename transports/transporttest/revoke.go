package transporttest

import (
	"cmp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

func revokeRules() []rule {
	stoppable := func(h Harness, tr transport.Transport) string {
		return cmp.Or(needsEngine(h, tr), unless(h.Hold != nil, "no way to stop a process"))
	}
	return []rule{
		{"AfterRevokeNothingTouchesTheRegion", needsEngine, testRevoke},
		{"ReadsCutOffByRevokeFail", needsEngine, testRevokeReads},
		{"RevokeLeavesOtherRegionsAlone", needsEngine, testRevokeOthers},
		{"AFenceLetsNewOnesPass", needsEngine, testFencedNew},
		{"ReadsCutOffByAFenceShowTheBytesOfBefore", needsEngine, testFencedReads},
		{"WhatBeganBeforeAFenceStaysOutside", needsEngine, testFencedOld},
		{"RemappedPagesAreReachedAndOldOnesAreNot", needsHostThere, testRemap},
		{"AFenceOfOnePeerLeavesOthersAlone", needsEngine, testFencedPeer},
		{"AFenceHoldsOnLaterLinks", needsEngine, testFencedLater},
		{"AFenceOutlastsAPeerThatIsStopped", stoppable, testFencedStopped},
		{"RevokeOfOnePeerLeavesOthersAlone", needsEngine, testRevokePeer},
		{"RevokeOfOnePeerHoldsOnLaterRailsAndLinks", needsEngine, testRevokePeerLater},
		{"RevokeOfAnUnknownKeyIsAnError", nil, testRevokeUnknown},
	}
}

// requireCutOff checks the error of a slice that Revoke stopped. It is permanent, because a retry would carry out after
// the fence a transfer that began before it.
func requireCutOff(t *testing.T, err *errs.Error) {
	t.Helper()
	require.NotNil(t, err, "it was carried out")
	require.Contains(t, []errs.Code{errs.PermissionDenied, errs.AddressNotRegistered, errs.Stale}, err.Code, "%v", err)
	require.Equal(t, errs.ScopeSlice, err.Scope, "%v", err)
	require.False(t, err.Collateral, "%v", err)
}

// siege submits slices of one operation on a region from a thread until it is told to stop, or the rail is gone.
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
			sent := p.c.Send(volley...)
			s.list = append(s.list, volley[:sent]...)
			if sent < len(volley) {
				return
			}
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
		remote.Revoke(t, nil)
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
		p.readsCutOff(t, local, remote, n, size, round, func() { remote.Revoke(t, nil) })
		requireCutOff(t, p.c.One(t, p.c.Slice(transport.Read, p.c.Rail(t), local, 0, remote, 0, size)))
	}
}

// readsCutOff begins READs of n slots, waits for the first of them and cuts them off, by Revoke or a fence.
func (p *pair) readsCutOff(t *testing.T, local *Operand, remote *Remote, n int, size uint64, first int, cut func()) {
	t.Helper()
	remote.Fill(tagMoved, 0, remote.Size)
	list := p.launch(transport.Read, p.c.Rail(t), local, remote, n, size)
	p.c.Wait(t, list[:min(first, len(list))]...)
	cut()
	remote.Fill(tagAfter, 0, remote.Size)
	for i, end := range p.c.Wait(t, list...) {
		if at := uint64(i) * size; end.Err == nil {
			require.NoError(t, local.Check(tagMoved, at, at, size), "slice %d shows bytes of after the fence", i)
		} else {
			requireCutOff(t, end.Err)
		}
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
		list := p.launch(transport.Write, rail, local, victim, 4, size)
		victim.Revoke(t, nil)
		p.c.Wait(t, list...)
	}
	for _, end := range s.end(t) {
		if end.Err != nil {
			require.True(t, end.Err.Collateral, "slice %d to another region: %v", end.Slice.Id, end.Err)
		}
	}
	require.NoError(t, safe.Check(tagMoved, 0, 0, size))
	p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, safe, 0, size)) // the besieger may have been slow
}

func testFencedNew(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 30
	size := fit(p.c, 64<<10)
	local, remote := p.operands(t, n*size)
	local.Fill(tagMoved, 0, local.Size)
	for range 10 {
		list := p.launch(transport.Write, p.c.Rail(t), local, remote, n, size)
		p.c.Fence(t, remote, nil)
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

// testFencedReads is testRevokeReads for a region that is kept. A READ that succeeds shows old bytes alone, and
// one that begins afterwards the new ones.
func testFencedReads(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 60
	size := fit(p.c, 64<<10)
	local, remote := p.operands(t, n*size)
	for round := range 5 {
		local.Fill(tagBefore, 0, local.Size)
		p.readsCutOff(t, local, remote, n, size, round, func() { p.c.Fence(t, remote, nil) })
		p.c.Must(t, p.c.Slice(transport.Read, p.c.Rail(t), local, 0, remote, 0, size))
		require.NoError(t, local.Check(tagAfter, 0, 0, size))
	}
}

// fencedOld are slices of tasks that have begun and are not submitted: one a rail and operation, with places of their
// own in both operands.
func (p *pair) fencedOld(c *Conn, local *Operand, remote *Remote, size uint64) (list []*transport.Slice) {
	for _, rail := range c.Rails() {
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			at := uint64(len(list)) * size
			list = append(list, c.Slice(op, rail, local, at, remote, at, size))
		}
	}
	return list
}

// testFencedOld submits slices after a fence that their tasks were begun before. Nothing of them is in the transport
// when Revoke is called, and nothing of them may land or be read.
func testFencedOld(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 32<<10)
	local, remote := p.operands(t, 16*size)
	for range 3 {
		local.Fill(tagMoved, 0, local.Size)
		old := p.fencedOld(p.c, local, remote, size)
		p.c.Fence(t, remote, nil)
		remote.Fill(tagAfter, 0, remote.Size)
		for _, s := range old {
			requireFenced(t, p.c.One(t, s))
		}
		if inliner, is := transport.Find[transport.Inliner](p.a.Transport); is {
			for _, s := range old {
				again := p.c.Slice(s.Op, s.Rail, local, 0, remote, s.Remote, size)
				again.Epoch = s.Epoch
				require.False(t, inliner.Inline([]*transport.Slice{again}), "inline, of before the fence")
			}
		}
		p.c.Barrier(t)
		require.NoError(t, remote.Check(tagAfter, 0, 0, remote.Size), "written after the fence by a task of before")
		require.NoError(t, local.Check(tagMoved, 0, 0, local.Size), "read after the fence by a task of before")
		for _, s := range p.fencedOld(p.c, local, remote, size) {
			p.c.Must(t, s)
		}
	}
}

func requireFenced(t *testing.T, err *errs.Error) {
	t.Helper()
	require.NotNil(t, err, "a slice of a task that began before the fence has succeeded")
	require.Equal(t, errs.AddressNotRegistered, err.Code, "%v", err)
	require.Equal(t, errs.SideRemote, err.Side, "%v", err)
	require.ErrorContains(t, err, "fenced")
	requireCutOff(t, err)
}

// testFencedPeer fences one of two peers, by another address than its own: tasks of the other go on.
func testFencedPeer(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 4096)
	other := pairOf(p.w.Open("c").Connect(t, p.b))
	own := p.b.Register(t, 16*size, mem.GlobalReadWrite)
	mine, theirs := p.c.Import(t, own), other.c.Import(t, own)
	local, far := p.a.Register(t, 16*size, mem.LocalReadWrite), other.a.Register(t, 16*size, mem.LocalReadWrite)
	old, fine := p.fencedOld(p.c, local, mine, size), other.fencedOld(other.c, far, theirs, size)
	alias := transport.Peer{Address: "another name of it", ID: p.a.Peer.ID}
	p.c.Fence(t, mine, &alias)
	for _, s := range old {
		requireFenced(t, p.c.One(t, s))
	}
	for _, s := range fine {
		other.c.Carry(t, far, theirs, s)
	}
	for _, s := range p.fencedOld(p.c, local, mine, size) {
		p.c.Must(t, s)
	}
}

// testFencedLater sends a task of before a fence over a link that is attached after it: the epoch is the region's, not
// a connection's.
func testFencedLater(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 4096)
	local, remote := p.operands(t, 16*size)
	whom := transport.Peer{Address: p.a.Peer.Address, ID: p.a.Peer.ID}
	for _, peer := range []*transport.Peer{nil, &whom} {
		old := p.fencedOld(p.c, local, remote, size)
		epoch := remote.Fence(t, peer)
		remote.Fill(tagAfter, 0, remote.Size)
		later := p.a.Connect(t, p.b)
		again := later.Import(t, remote.Operand)
		for _, s := range old {
			late := later.Slice(s.Op, later.Rail(t), local, 0, again, s.Remote, size)
			late.Epoch = s.Epoch
			requireFenced(t, later.One(t, late))
			late = later.Slice(transport.Read, later.Rail(t), local, 0, again, s.Remote, size)
			late.Epoch = epoch // as the description of the owner's regions says it
			later.Must(t, late)
		}
		later.Barrier(t)
		require.NoError(t, remote.Check(tagAfter, 0, 0, remote.Size), "written after the fence by a task of before")
		p.a.Transport.Detach(later.Link)
	}
}

// testFencedStopped fences while the peer stands still. The fence returns, and slices that the peer has under way, or
// submits before it has heard, do nothing.
func testFencedStopped(t *testing.T, h Harness) {
	p := newPair(t, h)
	const n = 30
	size := fit(p.c, 64<<10)
	local, remote := p.operands(t, n*size)
	local.Fill(tagMoved, 0, local.Size)
	for range 3 {
		list := p.volley(transport.Write, p.c.Rail(t), local, remote, n, size)
		under := p.c.Submit(list...)
		_, release := p.hold(t, p.a)
		epoch := remote.Fence(t, nil)
		remote.Fill(tagAfter, 0, remote.Size)
		release()
		if under < n { // Ready comes when some of the first have ended
			under += p.c.Send(list[under:]...)
		}
		for _, end := range p.c.Wait(t, list[:under]...) {
			if end.Err != nil {
				require.Contains(t, []errs.Code{errs.AddressNotRegistered, errs.Lost}, end.Err.Code, "%v", end.Err)
			}
		}
		p.c.Barrier(t)
		require.NoError(t, remote.Check(tagAfter, 0, 0, remote.Size), "written after the fence by a task of before")
		p.w.Await(t, "the news of a fence", func() bool { return p.a.epochs[p.c.Link] >= epoch })
		p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, remote, 0, size))
	}
}

func testRevokePeer(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 4096)
	other := pairOf(p.w.Open("c").Connect(t, p.b))
	own := p.b.Register(t, size, mem.GlobalReadWrite)
	mine, theirs := p.c.Import(t, own), other.c.Import(t, own)
	local, far := p.a.Register(t, size, mem.LocalReadWrite), other.a.Register(t, size, mem.LocalReadWrite)
	far.Fill(tagMoved, 0, size)
	p.c.Must(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, mine, 0, size))
	alias := transport.Peer{Address: "another name of it", ID: p.a.Peer.ID}
	own.Revoke(t, &alias)
	requireCutOff(t, p.c.One(t, p.c.Slice(transport.Write, p.c.Rail(t), local, 0, mine, 0, size)))
	other.c.Carry(t, far, theirs, other.c.Slice(transport.Write, other.c.Rail(t), far, 0, theirs, 0, size))
	require.NoError(t, own.Check(tagMoved, 0, 0, size))
	own.Revoke(t, nil)
	requireCutOff(t, other.c.One(t, other.c.Slice(transport.Write, other.c.Rail(t), far, 0, theirs, 0, size)))
}

// testRevokePeerLater lets the peer that was shut out come back. It comes on the next generation of its rail, over a
// link that it attaches anew, and in any epoch that it cares to name.
func testRevokePeerLater(t *testing.T, h Harness) {
	p := newPair(t, h)
	size := fit(p.c, 4096)
	own := p.b.Register(t, size, mem.GlobalReadWrite)
	mine, local := p.c.Import(t, own), p.a.Register(t, size, mem.LocalReadWrite)
	own.Fill(tagBefore, 0, size)
	local.Fill(tagMoved, 0, size)
	whom := transport.Peer{Address: p.a.Peer.Address, ID: p.a.Peer.ID}
	own.Revoke(t, &whom)
	refused := func(c *Conn, remote *Remote) {
		t.Helper()
		for _, epoch := range []transport.Epoch{c.Epoch(), ^transport.ForGood} {
			for _, op := range []transport.Op{transport.Write, transport.Read} {
				s := c.Slice(op, c.Rail(t), local, 0, remote, 0, size)
				s.Epoch = epoch
				requireCutOff(t, c.One(t, s))
			}
		}
	}
	refused(p.c, mine)
	for _, rail := range p.c.Rails() {
		p.fence(rail)
		p.comesBack(t, rail)
	}
	refused(p.c, mine)
	later := p.a.Connect(t, p.b)
	if key, err := later.Node.Transport.Import(later.Link, own.Descriptor); err == nil {
		refused(later, &Remote{Operand: own, Key: key})
	} else { // refusing the import is as good
		require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(err))
	}
	require.NoError(t, own.Check(tagBefore, 0, 0, size))
	require.NoError(t, local.Check(tagMoved, 0, 0, size))
}

func testRevokeUnknown(t *testing.T, h Harness) {
	p := newPair(t, h)
	own := p.b.Register(t, 4096, mem.LocalReadWrite)
	require.Error(t, p.b.Transport.Revoke(t.Context(), own.Key+1000, nil, transport.ForGood))
	own.Revoke(t, nil)
	own.Revoke(t, nil) // twice is the same as once
	own.Deregister(t)
	require.Error(t, p.b.Transport.Revoke(t.Context(), own.Key, nil, transport.ForGood))
}
