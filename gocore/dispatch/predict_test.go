package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

// A rate that is assumed says nothing about the end of a short burst: the waiter is to look. A rate from traffic does.
func TestAnAssumedRatePredictsNothing(t *testing.T) {
	r := newRig(t, Options{})
	link := r.link(1, 0, 1, 1<<20)
	submit := func(length uint64) BatchID { return r.submit(to(r.core, link), High, length, clock.Never) }
	require.Zero(t, r.core.Predict(submit(4<<20), 0, ms, r.now), "of a rail that has carried nothing yet")
	r.drain()

	meter := &r.core.link(link).rails[0].meter
	for at := r.now; !meter.Measured(); { // 1 MiB a millisecond
		meter.Begin(at)
		meter.Full(false)
		at = at.Add(ms)
		meter.Carried(1<<20, true, at)
		r.now = at
	}
	require.InDelta(t, 4*ms, r.core.Predict(submit(4<<20), 0, 100*ms, r.now), float64(2*ms))
	r.drain()
}
