package security

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
)

// note is the message of one notification as engines send it.
func note(number uint64, name string, text []byte) []byte {
	b := binary.LittleEndian.AppendUint16(nil, 1)
	b = binary.LittleEndian.AppendUint64(b, number)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(name)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	return append(append(b, name...), text...)
}

// notifies sends a notification and requires that the peer took it.
func notifies(t *testing.T, from *engine.Engine, to engine.SegmentID, name string) {
	t.Helper()
	b, err := from.Notify(to, engine.Note{Name: []byte(name)}, clock.Now().Add(patience))
	require.NoError(t, err)
	require.True(t, from.Wait(b, patience).Terminal())
	end, err := from.Summary(b)
	require.NoError(t, err)
	require.NoError(t, from.FreeBatch(b))
	require.Equal(t, dispatch.Completed, end.State, "%v", end.Err)
}

// arrived takes the notifications that wait, by name, with the peers that they are said to come from.
func arrived(e *engine.Engine) (names, peers []string) {
	e.NotesDrain(func(n *engine.Notification) bool {
		names, peers = append(names, string(n.Name)), append(peers, n.Peer)
		return true
	})
	return names, peers
}

// An attacker notifies in the name of an engine and claims the last number of all. No forged notification bears that
// engine's address, and none of its own is lost while it reads COMPLETED.
func TestNotificationsAreNeitherForgedNorSwallowed(t *testing.T) {
	e, honest := victim(t), victim(t)
	s, err := honest.OpenSegment(context.Background(), e.Address())
	require.NoError(t, err)
	notifies(t, honest, s, "first")
	_, err = e.OpenSegment(context.Background(), honest.Address()) // the victim knows whom the address belongs to
	require.NoError(t, err)

	for _, claims := range []transport.Peer{honest.Self(), // all that Hello says about it
		{Address: honest.Address(), ID: transport.NumberedID(4711)}} { // its address alone
		a := newAttacker(t, claims)
		for i, number := range []uint64{2, 1 << 40, 1<<64 - 1} {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			err := a.Notify(ctx, e.Self(), uint64(i+1), note(number, "forged", nil))
			cancel()
			if number == 1<<64-1 {
				require.Error(t, err)
			}
		}
	}
	notifies(t, honest, s, "second")
	notifies(t, honest, s, "third")
	names, peers := arrived(e)
	var real []string
	for i, name := range names {
		if name == "forged" {
			require.NotEqual(t, honest.Address(), peers[i], "a forged notification bears the engine's address")
			continue
		}
		require.Equal(t, honest.Address(), peers[i])
		real = append(real, name)
	}
	require.Equal(t, []string{"first", "second", "third"}, real)
}
