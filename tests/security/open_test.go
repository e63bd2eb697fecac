package security

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
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
