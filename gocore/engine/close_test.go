package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
)

// A thread that waits may be inside beside Close and Forget: it looks at the shared page after both.
func TestCallsMayBeInsideBesideForget(t *testing.T) {
	w := newWorkshop(t, "hand")
	own, far := w.region("own"), w.region("far")
	r := w.request(own, far)
	id, err := w.Move(&r)
	require.NoError(t, err)
	const waiters = 32
	states := make(chan dispatch.State)
	for range waiters {
		go func() { states <- w.Wait(id, time.Minute) }()
	}
	require.Empty(t, w.Close(0, true))
	require.NoError(t, w.Forget())
	for range waiters {
		require.Equal(t, dispatch.Canceled, <-states)
	}
	require.Equal(t, dispatch.Canceled, w.Wait(id, time.Minute))
	require.Equal(t, 1, w.WaitMany([]dispatch.BatchID{id}, 1, time.Minute))
	require.NotZero(t, w.Elapsed(id))
	w.requireEnd(id, dispatch.Canceled, errs.Canceled)
}
