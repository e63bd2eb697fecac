package tests

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestCheckedRequestsArrive(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		const size = 3<<20 + 5
		here, there := w.open(t, nil), w.open(t, nil)
		own, theirs := memory(t, size), memory(t, size)
		offer(t, here, own, "")
		offer(t, there, theirs, "kv")
		at := segment(t, here, there, "kv")
		for tag, op := range []transport.Op{transport.Write, transport.Read} {
			from, to := own, theirs
			if op == transport.Read {
				from, to = to, from
			}
			fill(from, tag+1)
			id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: op, Integrity: request.IntegrityCRC32C},
				Source: address(own), Length: size,
				Remote: engine.Remote{Segment: at}})
			require.NoError(t, err)
			sum := ended(t, here, id)
			require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
			require.Equal(t, from, to)
		}
	})
}

// TestBytesThatChangeOnTheirWayAreFound: the core sends a slice again that did not arrive as it was sealed. When that
// does not help the request fails, and says why. The source that changes stands for any flipped bit on the way.
func TestBytesThatChangeOnTheirWayAreFound(t *testing.T) {
	const size = 1 << 20
	here, there := openTCP(t, nil), openTCP(t, nil)
	own, theirs := memory(t, size), memory(t, size)
	offer(t, here, own, "")
	offer(t, there, theirs, "kv")
	at := segment(t, here, there, "kv")
	move := func() dispatch.Summary {
		id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write,
			Integrity: request.IntegrityCRC32C}, Source: address(own), Length: size,
			Remote: engine.Remote{Segment: at}})
		require.NoError(t, err)
		return ended(t, here, id)
	}
	var stop atomic.Bool
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		for n := uint64(0); !stop.Load(); n++ {
			binary.LittleEndian.PutUint64(own[size-8:], n)
		}
	}()
	late := time.Now().Add(patience)
	for noticed := false; !noticed; {
		require.True(t, time.Now().Before(late), "no slice was sent again although its bytes changed all the time")
		sum := move()
		if noticed = sum.Attempts > 1; sum.State != dispatch.Completed {
			require.Equal(t, errs.Corrupted, sum.Err.Code, "%v", sum.Err)
			require.Equal(t, errs.SidePath, sum.Err.Side)
		}
	}
	stop.Store(true)
	<-rest
	sum := move()
	require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
	require.Equal(t, own, theirs)
}
