package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/verbs"
)

// TestTransfersGoOnWhileNICsComeAndGo adds a NIC, changes an address, takes a NIC out and brings it back, each under a
// transfer. Each transfer ends whole.
func TestTransfersGoOnWhileNICsComeAndGo(t *testing.T) {
	f := fake.Open(t)
	a, b := rdmaPair(t)
	const size = 4 << 20
	source, destination := memory(t, size), newGuarded(t, size)
	offer(t, a, source, "")
	offer(t, b, destination.bytes, "there")
	remote := engine.Remote{Segment: segment(t, a, b, "there")}
	round := 0
	for _, change := range []string{"devices 3", "address fake0 9", "dead fake1 1", "dead fake1 0"} {
		for k := range 4 {
			round++
			fill(source, round)
			batch, err := a.Move(&engine.Request{Terms: request.Terms{Op: transport.Write}, Source: address(source),
				Remote: remote, Length: size})
			require.NoError(t, err)
			if k == 1 {
				f.Control(t, "%s", change)
			}
			sum := ended(t, a, batch)
			require.Equal(t, dispatch.Completed, sum.State, "transfer %d behind %s: %v", k, change, sum.Err)
			same(t, destination.bytes, round, 0)
			destination.check(t)
		}
	}
}
