package security

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security/securitytest"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
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

// A blob with an address that is none opens nothing, and its other texts lose their control characters.
func TestTextsOfABlobAreFitToBeSeen(t *testing.T) {
	e := victim(t)
	const evil = "\n2026-11-29 CRITICAL tent: \x1b[2Jall peers were disconnected"
	for address, is := range map[string]bool{"10.0.0.1:1" + evil: false, evil: false, "": false, "10.0.0.1:1": true} {
		d := &segment.Description{Address: address, Name: evil, MachineID: evil, Network: evil, ID: transport.ID{1}}
		require.NoError(t, d.Seal())
		at, err := e.OpenBlob(segment.Encode(d, false))
		if !is {
			require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%q", address)
			require.NotContains(t, err.Error(), "\x1b")
			continue
		}
		require.NoError(t, err)
		info, err := e.Segment(t.Context(), at, false)
		require.NoError(t, err)
		require.NotContains(t, info.Peer.Name+info.Peer.MachineID+info.Peer.Network, "\x1b")
	}
}
