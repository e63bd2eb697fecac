package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// gatedSpec is a request that waits for a gate.
func gatedSpec(p *plan.Plan, gate GateID, length uint64, deadline clock.Time) TaskSpec {
	return TaskSpec{Terms: request.Terms{Op: transport.Write, Deadline: deadline}, Plan: p, Local: 1 << 20,
		Remote: 1 << 30, Length: length, Gate: gate}
}

func TestAGatedTaskSendsNothingBeforeItsGateOpens(t *testing.T) {
	r := newRig(t, Options{Stall: 100 * ms})
	link := r.link(1, 0, 1, 1<<20)
	gate := r.core.NewGate()
	waits := r.submitAll(gatedSpec(to(r.core, link), gate, 64*kib, 0), gatedSpec(to(r.core, link), gate, 64*kib, 0))
	free := r.submit(to(r.core, link), High, 64*kib, clock.Never)
	require.Len(t, r.out, 1, "a task that waits for no gate passes")
	r.drain()
	require.Equal(t, Completed, r.status(free).State)
	require.Greater(t, r.core.Predict(waits, 0, ms, r.now), 1000*ms, "nobody spins for a gate")
	r.wait(10 * r.core.options.Stall)
	require.Equal(t, Pending, r.status(waits).State, "the stall clock of a closed gate stands")

	r.core.OpenGate(gate, nil, r.now)
	require.Len(t, r.step(), 2)
	r.drain()
	require.Equal(t, Completed, r.status(waits).State)
	latency := r.core.counters[0][High].ByOp[transport.Write].Latency
	require.Zero(t, latency.Sum, "the time of the stream is none of the transport's")
}

func TestAFailedGateFailsItsTasks(t *testing.T) {
	r := newRig(t, Options{})
	link := r.link(1, 0, 1, 1<<20)
	gate := r.core.NewGate()
	waits := r.submitAll(gatedSpec(to(r.core, link), gate, 64*kib, 0))
	cause := errs.New(errs.CudaError, "stream", "it failed")
	r.core.OpenGate(gate, cause, r.now)
	require.Empty(t, r.step())
	require.Equal(t, Failed, r.status(waits).State)
	require.Equal(t, cause, r.status(waits).Err)
	require.False(t, r.status(waits).Dirty)
}

// TestATaskEndsAtItsClosedGate ends one of two tasks of a gate, then the other: the last one gives the gate up.
func TestATaskEndsAtItsClosedGate(t *testing.T) {
	fence := func(r *rig, link plan.LinkID, _ BatchID, _ int) {
		r.core.Fenced(map[RegionKey]transport.Epoch{{Link: link, Key: 1}: 1}, r.now)
	}
	for name, end := range map[string]struct {
		by   func(r *rig, link plan.LinkID, b BatchID, i int)
		both bool
		as   State
	}{
		"deadline": {func(r *rig, _ plan.LinkID, _ BatchID, _ int) { r.now = r.now.Add(10 * ms) }, true, TimedOut},
		"fence":    {fence, true, Failed},
		"cancel": {func(r *rig, _ plan.LinkID, b BatchID, i int) {
			_, err := r.core.Cancel(b, i, 1, r.now)
			require.Nil(r, err)
		}, false, Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{})
			link := r.link(1, 0, 1, 1<<20)
			gate, due := r.core.NewGate(), r.now.Add(5*ms)
			b := r.submitAll(gatedSpec(to(r.core, link), gate, kib, due), gatedSpec(to(r.core, link), gate, kib, due))
			end.by(r, link, b, 0)
			deserted := append([]GateID(nil), r.core.Step(r.now).Deserted...)
			if !end.both {
				require.Empty(t, deserted, "another task waits there")
				end.by(r, link, b, 1)
				deserted = append(deserted, r.core.Step(r.now).Deserted...)
			}
			require.Equal(t, []GateID{gate}, deserted)
			require.Equal(t, end.as, r.status(b).State)
			require.Zero(t, r.core.Pending())

			next := r.core.NewGate() // takes the slot
			waits := r.submitAll(gatedSpec(to(r.core, link), next, kib, 0))
			r.core.OpenGate(gate, nil, r.now)
			require.Empty(t, r.step(), "the old name opens nothing")
			r.core.OpenGate(next, nil, r.now)
			require.Len(t, r.step(), 1)
			r.drain()
			require.Equal(t, Completed, r.status(waits).State)
		})
	}
}
