package security

import (
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/tests/strangers"
)

// floodTime is how long strangers begin handshakes: TENT_FLOOD_SECONDS, or two seconds.
func floodTime(t *testing.T) time.Duration {
	t.Helper()
	seconds, err := strconv.Atoi(os.Getenv("TENT_FLOOD_SECONDS"))
	if err != nil {
		seconds = 2
	}
	return time.Duration(seconds) * time.Second
}

// Strangers of another host that begin handshakes as fast as one processor can keep nobody out, and take little memory.
// They may delay those that come from their own host: before the handshake these look the same.
func TestHandshakesBegunInALoopKeepNobodyOut(t *testing.T) {
	const held = 300 // more than an engine takes
	word, err := strangers.FirstWord()
	require.NoError(t, err)
	for name, each := range map[string]struct {
		flood strangers.Flood
		held  int // connections that stay open, the newest ones
	}{
		"a connection, and gone": {strangers.Silent, 0},
		"first word only":        {word, held},
		"first word, and gone":   {word, 0},
		"whole handshakes":       {strangers.Whole, held},
	} {
		t.Run(name, func(t *testing.T) {
			e := victim(t)
			before := heap()
			var begun atomic.Int64
			halt := make(chan struct{})
			var attack sync.WaitGroup
			attack.Go(func() { each.flood("127.0.0.2", e.Address(), each.held, &begun, halt) })
			for until := time.Now().Add(floodTime(t)); time.Now().Before(until); {
				opensInTime(t, e)
			}
			grown := heap() - before
			close(halt)
			attack.Wait()
			t.Logf("%d handshakes were begun, %d KiB", begun.Load(), grown>>10)
			require.Positive(t, begun.Load())
			require.Less(t, grown, int64(64<<20))
		})
	}
}
