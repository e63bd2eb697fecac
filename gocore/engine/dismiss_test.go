package engine

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
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

// Peers that are not admitted any more are asked once more, and say nothing. They lose their access behind the limit
// for all of them, also those for which no turn was left.
func TestPeersThatSayNothingHoldUpNoDismissal(t *testing.T) {
	owner := without(t, "shm")
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	require.NoError(t, err)
	defer silent.Close()
	var list []suspect
	for n := range 10 * renewalAsks {
		p := caller(n, "dns:a")
		p.Address = silent.Addr().String()
		list = append(list, suspect{visitor: visitor{peer: p}, reason: errors.New("it is not listed")})
	}
	const limit = 100 * time.Millisecond
	begin := time.Now()
	owner.renewOrDismiss(context.Background(), list, limit)
	require.Less(t, time.Since(begin), 20*limit)
	for _, s := range list {
		require.True(t, owner.credentials.Barred(s.peer.ID))
	}
}
