package delegate

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// A slice that is withdrawn leaves the others of its link; so does a fence that comes behind another one.
func TestAWithdrawalLeavesOtherOrders(t *testing.T) {
	asker, owner, slice := pair(t)
	release := owner.holding()
	back, stays := slice(), slice()
	require.Equal(t, 2, asker.open.Submit([]*transport.Slice{back, stays}))
	owner.awaitOrders(2)
	goesOn := func() (yes bool) {
		l := asker.open.(*delegate).links.Lookup(stays.Rail.Link)
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.ContainsFunc(l.lanes, func(a *lane) bool { return a.slice == stays && !a.canceled })
	}
	asker.open.Withdraw([]*transport.Slice{back})
	require.True(t, goesOn())
	done := asker.end()
	require.Equal(t, back.Id, done.Id)
	require.Equal(t, errs.Withdrawn, done.Err.Code)
	old := stays.Rail
	old.Generation-- // of a fence that was late
	asker.open.Fence(old)
	require.True(t, goesOn())
	release()
	done = asker.end()
	require.Equal(t, stays.Id, done.Id)
	require.Nil(t, done.Err)
	require.Equal(t, 1, owner.canceled)
}

// A link takes slices of the generation that is up, and none behind its end.
func TestSlicesOfOtherGenerationsStayTheCores(t *testing.T) {
	asker, owner, slice := pair(t)
	s := slice()
	link := s.Rail.Link
	asker.open.Fence(s.Rail)
	require.Zero(t, asker.open.Submit([]*transport.Slice{s}))
	s.Rail.Generation++
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{s}))
	require.Nil(t, asker.end().Err)
	asker.open.Detach(link)
	require.Zero(t, asker.open.Submit([]*transport.Slice{s}))
	require.Equal(t, 1, owner.count())
}

// A descriptor names the peer that made it; that of another one is not for this link.
func TestADescriptorIsOfItsPeer(t *testing.T) {
	asker, owner, slice := pair(t)
	link := slice().Rail.Link
	described := func(id transport.ID, key uint64) transport.Descriptor {
		return binary.LittleEndian.AppendUint64(id[:], key)
	}
	_, err := asker.open.Import(link, described(owner.self.ID, 1))
	require.NoError(t, err)
	for name, d := range map[string]transport.Descriptor{
		"another peer": described(asker.self.ID, 1), "no key": described(owner.self.ID, 0), "nothing": nil,
		"short": described(owner.self.ID, 1)[:20], "long": append(described(owner.self.ID, 1), 0)} {
		_, err := asker.open.Import(link, d)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), name)
	}
	asker.open.Detach(link)
	_, err = asker.open.Import(link, described(owner.self.ID, 1))
	require.Error(t, err, "a link that has ended")
}

// Slices end by the answers that prove the end of their orders, and are asked for again after any other failure.
func TestAnAnswerThatEndsAllOrdersEndsTheSlice(t *testing.T) {
	for name, test := range map[string]struct {
		err  *errs.Error
		down bool
	}{
		"another incarnation": {errs.New(errs.PeerRestarted, "call", "another one answers"), true},
		"its host refuses": {errs.New(errs.PeerUnreachable, "call", "refused").WithScope(errs.ScopeLink,
			errs.SideRemote), true},
		"an older build": {err: errs.New(errs.NotImplemented, "call", "no such transport")},
		"it is closing":  {err: errs.New(errs.EngineClosed, "call", "closed")},
		"no admission":   {err: errs.New(errs.PeerNotAdmitted, "call", "not in the list")},
		"not understood": {err: errs.New(errs.Protocol, "call", "what?")},
	} {
		t.Run(name, func(t *testing.T) {
			asker, owner, slice := pair(t)
			asker.refusals(test.err)
			require.Equal(t, 1, asker.open.Submit([]*transport.Slice{slice()}))
			done := asker.end()
			require.Equal(t, test.err.Code, done.Err.Code)
			require.Zero(t, done.Bytes)
			require.Zero(t, owner.count())
			if test.down {
				require.Equal(t, slice().Rail.Link, <-asker.down)
			}
			require.Empty(t, asker.down, "a failure of the order alone")
		})
	}
}

func TestAClosedTransportTakesNothing(t *testing.T) {
	asker, owner, slice := pair(t)
	defer owner.holding()()
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{slice()}))
	owner.awaitOrders(1)
	require.NoError(t, owner.open.Close(t.Context()))
	require.Equal(t, 1, owner.canceled, "close returns behind the orders of peers")
	require.NotNil(t, asker.end().Err)
	_, _, err := owner.open.Register(t.Context(), mem.Region{Kind: mem.Cuda, Addr: 1 << 30, Size: 1 << 20})
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err))
	_, err = owner.open.Attach(asker.self)
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err))
	require.Equal(t, 1, asker.open.Submit([]*transport.Slice{slice()}))
	require.NotNil(t, asker.end().Err)
	require.Equal(t, 1, owner.count())
}
