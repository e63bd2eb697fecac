package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/transport"
)

// TestASecondCompletionNeverEndsAnotherSlice completes a slice again when its record is another one's already.
func TestASecondCompletionNeverEndsAnotherSlice(t *testing.T) {
	r := newRig(t, Options{})
	route := to(r.core, r.link(1, 0, 1, 1<<20), r.link(1, 1, 1, 1<<20))
	strays := func() uint64 { return r.core.Gauges(0).Strays }
	stray := func(end transport.Completion) {
		r.core.Complete(0, []transport.Completion{end}, r.now)
		r.step()
	}

	r.submit(route, High, 4*kib, 0)
	first := r.out[0]
	twice := transport.Completion{Slice: first, Id: first.Id, Bytes: first.Length}
	r.finish(0, nil)
	stray(twice)
	require.EqualValues(t, 1, strays(), "while nobody uses the record")

	second := r.submit(route, High, 4*kib, 0)
	require.Same(t, first, r.out[0], "the record is used again")
	stray(twice)
	require.EqualValues(t, 2, strays())
	require.Equal(t, Pending, r.status(second).State)
	require.Equal(t, 1, r.core.Outstanding())
	require.EqualValues(t, 4*kib, r.core.Gauges(0).InFlight)

	last := r.events[len(r.events)-1]
	require.Equal(t, event.StrayCompletion, last.Kind)
	require.Equal(t, []any{"rdma", 2}, []any{last.Transport, last.N})
	require.ErrorContains(t, last.Err, `"rdma" completed slice 1`)

	stray(twice)
	require.EqualValues(t, 3, strays())
	require.Zero(t, r.core.Gauges(0).RailsUp, "its links are down")
	require.Equal(t, 1, r.core.Gauges(1).RailsUp, "those of others are not")
	require.Equal(t, Pending, r.status(second).State, "its slice is out")
	r.drain()
	require.Equal(t, Completed, r.status(second).State, "over the other transport")
	require.EqualValues(t, 3, strays())
}
