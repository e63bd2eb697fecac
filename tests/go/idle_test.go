package tests

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
)

// leastUsed is the least processor time that this process uses in one of some windows. The collector, or the remains of
// another test, run in a few of them.
func leastUsed(t *testing.T, windows int, window time.Duration) time.Duration {
	least := time.Hour
	for range windows {
		before := processorTime(t)
		<-time.After(window)
		least = min(least, processorTime(t)-before)
	}
	return least
}

// TestIdleEnginesUseNoProcessor: engines that have just moved bytes use none, without busy polling at once, and with it
// behind its bound. Both settings are on, and the time that they cost before shows it.
func TestIdleEnginesUseNoProcessor(t *testing.T) {
	const idle = 2 * time.Millisecond // of a window of 50
	for _, bound := range []time.Duration{0, 400 * time.Millisecond} {
		t.Run(bound.String(), func(t *testing.T) {
			settings := map[string]any{"busy_poll_us": bound.Microseconds(),
				"transports/tcp/busy_poll_us": bound.Microseconds()}
			here, there := openTCP(t, settings), openTCP(t, settings)
			own, theirs := memory(t, 4096), newGuarded(t, 4096)
			fill(own, 1)
			offer(t, here, own, "")
			offer(t, there, theirs.bytes, "kv")
			at := segment(t, here, there, "kv")
			before := processorTime(t)
			for range 10 {
				id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own),
					Length: 4096, Remote: engine.Remote{Segment: at}})
				require.NoError(t, err)
				require.Equal(t, dispatch.Completed, ended(t, here, id).State)
			}
			same(t, theirs.bytes, 1, 0)
			<-time.After(bound + bound/2) // a worker that another process has kept away goes on until it looks
			if bound > 0 && runtime.GOMAXPROCS(0) > 1 {
				require.Greater(t, processorTime(t)-before, bound/20, "no worker has polled: the test shows nothing")
			}
			require.Less(t, leastUsed(t, 5, 50*time.Millisecond), idle)
		})
	}
}
