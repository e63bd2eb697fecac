package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/event"
)

func TestEventsOfATaskBearTheTraceOfItsBatch(t *testing.T) {
	r := newRig(t, Options{Stall: 10 * time.Second})
	id := r.link(1, 0, 1, 128*kib)
	b := r.submit(to(r.core, id), High, 1<<20, clock.Never)
	r.core.Trace(b, "req-17")
	r.wait(11 * time.Second)
	r.finish(0, withdrawn)
	r.finish(0, withdrawn)
	sum, err := r.core.Summary(b)
	require.Nil(t, err)
	require.Equal(t, "req-17", sum.Trace)
	traced := 0
	for _, e := range r.events {
		if e.Kind == event.Stalled {
			require.Equal(t, "req-17", e.Trace)
			traced++
		}
	}
	require.Equal(t, 1, traced)
	require.Nil(t, r.core.FreeBatch(b))
	again := r.submit(to(r.core, id), High, 1<<20, clock.Never)
	sum, err = r.core.Summary(again)
	require.Nil(t, err)
	require.Empty(t, sum.Trace, "a slot is used again, its name is not")
}
