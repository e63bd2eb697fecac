package tests

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/transport"
)

// TestAnOrderlyEndWarnsNobody: engines end all the time, and the logs of their peers are for failures.
func TestAnOrderlyEndWarnsNobody(t *testing.T) {
	for _, end := range []string{"the peer closes its engine", "the user closes the segment"} {
		t.Run(end, func(t *testing.T) {
			here, there := openTCP(t, nil), openTCP(t, nil)
			own, theirs := memory(t, 4096), memory(t, 4096)
			offer(t, here, own, "")
			offer(t, there, theirs, "kv")
			at := segment(t, here, there, "kv")
			exchange(t, here, at, own, transport.Write)
			follower, err := here.Follow()
			require.NoError(t, err)
			awaited := event.PeerGone
			if end == "the peer closes its engine" {
				require.Empty(t, there.Close(patience, true))
			} else {
				require.NoError(t, here.CloseSegment(at))
				awaited = event.LinkDown
			}
			require.Eventually(t, func() bool {
				list, _, _ := here.Events(follower, 1000)
				for _, e := range list {
					if e.Kind == awaited {
						return true
					}
				}
				return false
			}, patience, time.Millisecond)
			for _, e := range []*engine.Engine{here, there} {
				for _, line := range e.Logs(1000) {
					require.Less(t, line.Level, slog.LevelWarn, "%s %v", line.Message, line.Attrs)
				}
			}
		})
	}
}
