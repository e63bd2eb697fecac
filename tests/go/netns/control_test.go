package netns

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

// TestAnotherAddressOfThePeerIsAsGood: the address under which the peer is known is cut off, and with it every
// connection of the control plane. Transfers under way go on, and new calls find the peer by its other addresses.
func TestAnotherAddressOfThePeerIsAsGood(t *testing.T) {
	w := newWorld(t, nil)
	w.Moves(t, transport.Write, func() error { return w.Rails[0].Drop(netbed.Both) })
	require.NoError(t, w.Near.Call("Actor.Alive", forked.Nothing{}, &forked.Nothing{}), "asked over the control plane")
	w.Move(t, transport.Read)
	require.NoError(t, w.Rails[0].Heal())
	w.Moves(t, transport.Write, func() error { // kills the connections instead of silencing them
		_, _, err := w.Rails[0].Abort(w.A)
		return err
	})
	require.NoError(t, w.Near.Call("Actor.Alive", forked.Nothing{}, &forked.Nothing{}))
}
