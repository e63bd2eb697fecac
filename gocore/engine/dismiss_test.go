//go:build cgo

package engine

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/security/securitytest"
	"github.com/tent-engine/tent/gocore/transport"
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

// together is a transport in which revocations for one peer wait until those for the other one are there.
type together struct {
	*hand
	began func()
	there sync.WaitGroup
}

func (r *together) Revoke(ctx context.Context, key transport.LocalKey, from *transport.Peer, e transport.Epoch) error {
	if from != nil {
		r.began()
		r.there.Done()
		r.there.Wait()
	}
	return r.hand.Revoke(ctx, key, from, e)
}

// A pattern names several peers. All of them are kept out before anybody waits for the bytes of one, and no wait for
// one comes before that for another.
func TestPeersThatAreDisconnectedTogetherWaitForNoneOfThem(t *testing.T) {
	r := &together{hand: newHand("hand")}
	w := newWorkshopOver(t, []*hand{r.hand}, handFactory{r})
	w.region("kv")
	one, other := caller(1, "uid:7"), caller(2, "uid:7")
	w.shown(one, security.Proof{})
	w.shown(other, security.Proof{})
	r.there.Add(2)
	r.began = func() {
		for _, p := range []transport.Peer{one, other} {
			if !w.credentials.Barred(p.ID) {
				t.Error("a peer may come while another one is waited for")
			}
		}
	}
	ended := make(chan error)
	go func() {
		n, err := w.Disconnect(t.Context(), "uid:7")
		if n != 2 {
			t.Errorf("%d peers", n)
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		require.NoError(t, err)
		require.Empty(t, w.Peers())
	case <-time.After(patience):
		r.there.Done() // so that Close finds nobody in there
		require.Fail(t, "one peer is waited for before another one")
	}
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
	_, err := owner.Register(Memory{Addr: mem.AddressOf(page), Size: pageBytes, Name: "kv", Location: "cpu:0",
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
