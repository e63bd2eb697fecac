//go:build cgo

package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security/securitytest"
)

// Disconnect returns the error of the list of barred engines, which is full, and has ended the access of the peer.
func TestAPeerThatCannotBeBarredLosesItsAccess(t *testing.T) {
	owner, other := without(t, "shm"), without(t, "shm")
	theirs := pageOf(t, owner, "kv")
	page, write := pageWriter(t, other, owner, "kv")
	require.Equal(t, dispatch.Completed, write())
	for n, full := 0, false; !full; n++ {
		full = owner.credentials.Bar(caller(n, "").ID) != nil
	}
	n, err := owner.Disconnect(context.Background(), "id:"+other.credentials.ID().String())
	require.Equal(t, 1, n)
	require.Equal(t, errs.TooManyRequests, errs.CodeOf(err), "%v", err)
	page[0] = theirs[0] + 1
	require.Equal(t, dispatch.Failed, write())
	require.NotEqual(t, page[0], theirs[0])
	require.Empty(t, owner.Peers())
}

// Connect and open look at the links of a peer that Disconnect ends meanwhile. The error is that of Disconnect.
func TestAPeerThatIsDismissedMeanwhileIsNotOneWithoutARoute(t *testing.T) {
	owner, other := without(t, "shm"), without(t, "shm")
	id, err := other.OpenSegment(t.Context(), owner.Address())
	require.NoError(t, err)
	open, failure := other.segments.get(id)
	require.Nil(t, failure)
	require.NoError(t, open.peer.join(t.Context()))
	require.NoError(t, open.peer.unreachable("connect"))
	cause := errs.New(errs.PeerNotAdmitted, "peer", "it was disconnected")
	open.peer.dismiss(cause)
	require.Equal(t, cause, open.peer.unreachable("connect"))
	require.Equal(t, cause, other.Connect(t.Context(), id))
}

// A call comes beside the first one of its connection, which finds that a newer handshake counts. The answer has the
// rights of that one.
func TestACallBesideTheFirstOneRevivesNoIdentity(t *testing.T) {
	ca, files := securitytest.NewAuthority(t, nil), securitytest.NewFiles(t)
	owner, other := certified(t, ca, "owner"), certifiedBy(t, ca, "old", files)
	page := mapped(t, pageBytes)
	_, err := owner.Register(Memory{Addr: addressOf(page), Size: pageBytes, Name: "kv", Location: "cpu:0",
		Permission: mem.GlobalReadWrite, Peers: []string{"dns:new"}})
	require.NoError(t, err)
	sees := func() int {
		d, err := other.client.Describe(t.Context(), owner.Self(), nil)
		require.NoError(t, err)
		return len(d.Regions)
	}
	require.Zero(t, sees())
	files.Write(t, ca.Issue(t, nil, "new"), ca)
	_, err = other.credentials.Reload(nil)
	require.NoError(t, err)
	greeting, err := owner.client.Hello(t.Context(), other.Address())
	require.NoError(t, err)
	owner.visitors.note(greeting.Peer, greeting.Proof, time.Now()) // and has not closed the connection yet
	require.Equal(t, 1, sees())
}
