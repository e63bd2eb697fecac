package netns

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/netbed"
)

// TestASlowRailCarriesWhatItCan: one rail of four becomes ten times slower in the middle of a transfer.
func TestASlowRailCarriesWhatItCan(t *testing.T) {
	netbed.EitherWay(t, func(t *testing.T, op transport.Op) {
		w := newWorld(t, nil)
		even := w.Move(t, op)
		slow := w.Moves(t, op, func() error { return w.Rails[1].Limit(railRate / 10) })
		t.Logf("all alike %v, one at a tenth %v", even.Took.Round(time.Millisecond), slow.Took.Round(time.Millisecond))
		require.Empty(t, w.Broken(t), "a slow rail is no dead one")
	})
}

// TestPacketsAreLostNowAndThen: one in a hundred, on every rail; TCP repairs that, and nobody is declared dead. A
// connection that waits for its retransmission time may be replaced by a new one, which is quicker.
func TestPacketsAreLostNowAndThen(t *testing.T) {
	netbed.EitherWay(t, func(t *testing.T, op transport.Op) {
		w := newWorld(t, nil)
		w.all(t, func(r *netbed.Rail) error { return r.Lose(0.01) })
		for range 2 {
			out := w.Move(t, op)
			t.Logf("%v", out.Took.Round(time.Millisecond))
		}
		require.Empty(t, w.Broken(t))
	})
}
