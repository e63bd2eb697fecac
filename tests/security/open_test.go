package security

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security/securitytest"
)

// A text that came from outside opens another engine, and never a file nor the engine's own memory.
func TestATextFromOutsideOpensOtherEnginesOnly(t *testing.T) {
	e, other := victim(t), victim(t)
	_, port, err := net.SplitHostPort(e.Address())
	require.NoError(t, err)
	for _, text := range []string{"", "file:///etc/passwd", "file:///", "file:/etc/passwd", e.Address(),
		"localhost:" + port} {
		_, err := e.OpenPeer(context.Background(), text)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%q: %v", text, err)
	}
	s, err := e.OpenPeer(context.Background(), other.Address())
	require.NoError(t, err)
	require.NoError(t, e.CloseSegment(s))
}

// An engine that opens itself by its address proves the identity that is wanted, as any other one.
func TestTheIdentityOfOnesOwnAddressIsProved(t *testing.T) {
	ctx := context.Background()
	ca := securitytest.NewAuthority(t, nil)
	e := newMember(t, ca.Issue(t, nil, "spiffe://prod/decode/0"), ca, nil, "*").Engine
	offer(t, e, pageBytes, "kv")
	for _, name := range []string{e.Address(), e.Address() + "/kv"} {
		_, err := e.OpenWith(ctx, name, engine.OpenOptions{Identities: []string{"spiffe://prod/prefill/*"}})
		require.Equal(t, errs.PeerNotAdmitted, errs.CodeOf(err), "%s: %v", name, err)
		for _, own := range []string{"spiffe://prod/decode/*", idOf(e)} {
			s, err := e.OpenWith(ctx, name, engine.OpenOptions{Identities: []string{own}})
			require.NoError(t, err, "%s as %s", name, own)
			require.NoError(t, e.CloseSegment(s))
		}
	}
}
