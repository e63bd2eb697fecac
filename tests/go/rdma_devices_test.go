package tests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/verbs"
)

// TestTransfersGoOnWhileNICsComeAndGo adds a NIC, changes an address, takes a NIC out and brings it back. Each comes
// under transfers that both engines ask for, to write and to read. Each transfer ends whole, and events say so.
func TestTransfersGoOnWhileNICsComeAndGo(t *testing.T) {
	f := fake.Open(t)
	a, b := rdmaPair(t)
	const size = 4 << 20
	mine, theirs := newGuarded(t, 2*size), newGuarded(t, 2*size)
	offer(t, a, mine.bytes, "here")
	offer(t, b, theirs.bytes, "there")
	from := map[*engine.Engine]engine.SegmentID{a: segment(t, a, b, "there"), b: segment(t, b, a, "here")}
	follower, err := a.Follow()
	require.NoError(t, err)
	t.Cleanup(func() { a.Unfollow(follower) })
	begin := func(e *engine.Engine, own []byte, at uint64, op transport.Op) asked {
		id, err := e.Move(&engine.Request{Terms: request.Terms{Op: op}, Source: address(own[at:]),
			Remote: engine.Remote{Segment: from[e], Offset: at}, Length: size})
		require.NoError(t, err)
		return asked{e, id}
	}
	round := 0
	for _, change := range []struct {
		knob string
		says event.Kind
	}{{"devices 3", event.RailUp}, {"address fake0 9", event.RailDown}, {"dead fake1 1", event.RailDown},
		{"dead fake1 0", event.RailUp}} {
		_, _, err := a.Events(follower, 1<<12)
		require.NoError(t, err)
		for k := range 4 {
			round++
			fill(mine.bytes[:size], round)
			fill(theirs.bytes[size:], round+1000)
			// The first half goes there. The second half comes here, asked for at either end.
			written, come := begin(a, mine.bytes, 0, transport.Write), asked{}
			if k%2 == 1 {
				come = begin(a, mine.bytes, size, transport.Read)
			} else {
				come = begin(b, theirs.bytes, size, transport.Write)
			}
			if k == 1 {
				f.Control(t, "%s", change.knob)
			}
			for _, each := range []asked{written, come} {
				sum := ended(t, each.by, each.batch)
				require.Equal(t, dispatch.Completed, sum.State, "transfer %d behind %s: %v", k, change.knob, sum.Err)
			}
			same(t, theirs.bytes[:size], round, 0)
			same(t, mine.bytes[size:], round+1000, 0)
			mine.check(t)
			theirs.check(t)
		}
		require.Eventually(t, func() bool { return says(t, a, follower, change.says) }, patience, time.Millisecond,
			"no event says %s", change.knob)
	}
}

// asked is a transfer of an engine.
type asked struct {
	by    *engine.Engine
	batch dispatch.BatchID
}

// says reports whether an event of a kind has come; a rail that went down names its cause.
func says(t *testing.T, e *engine.Engine, follower engine.FollowerID, kind event.Kind) (found bool) {
	list, _, err := e.Events(follower, 1<<12)
	require.NoError(t, err)
	for _, ev := range list {
		found = found || ev.Kind == kind && (kind == event.RailUp || ev.Err != nil)
	}
	return found
}
