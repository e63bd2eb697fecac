package plugin

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// A call of C costs as much as the rest of a short slice. Two batches of 64 are offered by two calls, and need a third
// one where the plug-in copies in poll. None is made for ends that wait: Go reads them from memory.
func TestTwoBatchesAreTwoCallsOfCOrThree(t *testing.T) {
	compiled := built(t, asC, "testdata/abuse.c")
	for abuse, calls := range map[string]int64{"copies": 3, "own-threads": 2} {
		t.Run(abuse, func(t *testing.T) {
			a, b, w := abused(t, abusive(t, compiled, abuse), false)
			const n, rounds = 128, 50
			c := a.Connect(t, b)
			local := a.Register(t, n*64, mem.LocalReadWrite)
			remote := c.Import(t, b.Register(t, n*64, mem.GlobalReadWrite))
			local.Fill(7, 0, local.Size)
			poller := must[transport.Poller](t, a.Transport)
			poller.Poll(1, transport.AllClasses) // from now on the plug-in wakes nobody
			before := runtime.NumCgoCall()
			for range rounds {
				var list []*transport.Slice
				for i := range uint64(n) {
					list = append(list, c.Slice(transport.Write, c.Rail(t), local, i*64, remote, i*64, 64))
				}
				require.Equal(t, n, c.Submit(list...))
				c.Poll(t, n, list...)
				for _, end := range c.Wait(t, list...) {
					require.Nil(t, end.Err)
				}
			}
			made := runtime.NumCgoCall() - before
			poller.Arm()
			require.NoError(t, remote.Check(7, 0, 0, remote.Size))
			require.Empty(t, w.logged())
			require.InDelta(t, calls*rounds, made, rounds/2, "calls of C in %d rounds", rounds)
		})
	}
}
