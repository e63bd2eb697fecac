package tests

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
)

// A peer that was closed and opened again is the same peer to the receiver. Notifications after the second opening
// arrive too, each once and in order.
func TestNotificationsArriveAfterThePeerWasOpenedAgain(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		here, there := w.open(t, nil), w.open(t, nil)
		for i := range 5 {
			s, err := here.OpenSegment(context.Background(), there.Address())
			require.NoError(t, err)
			for _, text := range []string{"a", "b"} {
				b, err := here.Notify(s, engine.Note{Name: []byte(text), Message: []byte{byte(i)}},
					clock.Now().Add(patience))
				require.NoError(t, err)
				require.Equal(t, dispatch.Completed, ended(t, here, b).State)
			}
			require.NoError(t, here.CloseSegment(s))
			var got []string
			there.NotesDrain(func(n *engine.Notification) bool {
				require.Equal(t, []byte{byte(i)}, n.Message)
				got = append(got, string(n.Name))
				return true
			})
			require.Equal(t, []string{"a", "b"}, got, "opening %d", i)
		}
	})
}
