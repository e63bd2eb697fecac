package tests

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/faulty"
	"github.com/tent-engine/tent/transports/sim"
)

// The failover seed's end-to-end cases by their names, over two simulated transports with injected faults, and the
// cases that the seed leaves open: merged requests, partial acceptance. Every one looks at the bytes.

// twoWays is two engines with a fast and a slow way between them; faults are those of the first.
type twoWays struct {
	*testing.T
	here, there *engine.Engine
	faults      *faulty.Plan
	segment     engine.SegmentID
	source      []byte
	destination guarded
}

const wayBytes = 1 << 20

func newTwoWays(t *testing.T, settings map[string]any, faults string) *twoWays {
	plan, err := faulty.New(faults)
	require.NoError(t, err)
	network := sim.NewInline(1)
	names := []string{"rdma", "tcp"}
	start := func(settings map[string]any, plan *faulty.Plan) *engine.Engine {
		if settings == nil {
			settings = map[string]any{}
		}
		settings["fence_timeout_host_ms"] = 20_000 // Submit carries out all that follows, see openSim
		return open(t, settings, names, func() (list []engine.Plug) {
			for _, name := range names {
				var f transport.Factory = sim.Factory{Settings: sim.Settings{Network: network, Name: name, Rails: 2,
					SliceMax: 64 << 10}}
				if plan != nil {
					f = faulty.Wrap(f, plan)
				}
				list = append(list, engine.Plug{Factory: f})
			}
			return list
		})
	}
	w := &twoWays{T: t, here: start(settings, plan), there: start(nil, nil), faults: plan, source: memory(t, wayBytes),
		destination: newGuarded(t, wayBytes)}
	fill(w.source, 5)
	offer(t, w.here, w.source, "")
	offer(t, w.there, w.destination.bytes, "kv")
	w.segment = segment(t, w.here, w.there, "kv")
	return w
}

// request is a WRITE of some bytes to the same place at the other side.
func (w *twoWays) request(offset, length int) engine.Request {
	return engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(w.source[offset:]),
		Length: uint64(length),
		Remote: engine.Remote{Segment: w.segment, Offset: uint64(offset)}}
}

// write sends requests as one batch, waits, and checks the bytes of those that are COMPLETED.
func (w *twoWays) write(requests ...engine.Request) (list []dispatch.Status, sum dispatch.Summary) {
	id, err := w.here.NewBatch(len(requests))
	require.NoError(w, err)
	_, err = w.here.Submit(id, requests, nil)
	require.NoError(w, err)
	require.True(w, w.here.Wait(id, patience).Terminal())
	for i := range requests {
		s, err := w.here.Status(id, i)
		require.NoError(w, err)
		list = append(list, s)
		if s.State == dispatch.Completed {
			r := &requests[i]
			require.Equal(w, r.Length, s.Bytes)
			same(w.T, w.destination.bytes[r.Remote.Offset:][:r.Length], 5, int(r.Remote.Offset))
		}
	}
	w.destination.check(w.T)
	return list, ended(w.T, w.here, id)
}

// logged are the lines of the first engine's log since the last look.
func (w *twoWays) logged() (lines []string) {
	for _, line := range w.here.Logs(1000) {
		lines = append(lines, line.Message)
	}
	return lines
}

func (w *twoWays) metric(name string) int { return int(w.here.Metrics()[name]) }

const (
	failedOver   = `tent_transport_failover_total{from="rdma",to="tcp"}`
	triedOverTCP = `tent_transport_attempts_total{transport="tcp"}`
)

// A series that comes with its first event has no rate at that event. So each pair of transports between which tasks
// may switch is there from the start, and no other one: none of a transport to itself, or between peers and files.
func TestEachPairOfTransportsCountsFailoversFromTheStart(t *testing.T) {
	w := newTwoWays(t, nil, "")
	pairs := func(e *engine.Engine) map[string]float64 {
		found := map[string]float64{}
		for name, value := range e.Metrics() {
			if strings.HasPrefix(name, "tent_transport_failover_total{") {
				found[name] = value
			}
		}
		return found
	}
	require.Equal(t, map[string]float64{failedOver: 0, `tent_transport_failover_total{from="tcp",to="rdma"}`: 0},
		pairs(w.here))
	all := pairs(openAll(t, nil))
	require.Contains(t, all, `tent_transport_failover_total{from="shm",to="tcp"}`)
	require.NotContains(t, all, `tent_transport_failover_total{from="tcp",to="tcp"}`)
	require.NotContains(t, all, `tent_transport_failover_total{from="tcp",to="buf-io"}`)
}

func TestStatusCorruptionTriggersFailoverToSecondary(t *testing.T) {
	w := newTwoWays(t, nil, "transport=rdma status_corrupt_rate=1")
	list, _ := w.write(w.request(0, 4096))
	require.Equal(t, dispatch.Completed, list[0].State)
	require.EqualValues(t, 1, list[0].Transport, "by the second")
	require.EqualValues(t, 1, list[0].Failovers)
	require.Equal(t, 1, w.metric(failedOver))
	require.Equal(t, 1, w.metric(triedOverTCP))
	require.Contains(t, w.logged(), "Transport failover: rdma -> tcp (attempt 1/3)")
}

func TestBothTransportsFailExhaustsFailoverBudget(t *testing.T) {
	w := newTwoWays(t, nil, "status_corrupt_rate=1")
	list, sum := w.write(w.request(0, 4096))
	s := list[0]
	require.Equal(t, dispatch.Failed, s.State)
	require.EqualValues(t, 3, s.Failovers, "the whole budget")
	require.EqualValues(t, 4, s.Attempts)
	require.False(t, s.Dirty)
	// why: code, scope, transport, rail, peer
	require.Equal(t, errs.ScopeLink, s.Err.Scope)
	require.NotEqual(t, errs.OK, s.Err.Code)
	require.NotEmpty(t, s.Err.Transport)
	require.NotEmpty(t, s.Err.Rail)
	require.Equal(t, w.there.Address(), s.Err.Peer)
	require.Equal(t, s.Err, sum.Err)
	require.Contains(t, w.logged(), "Task failover limit reached (3), last transport=tcp")
}

func TestTheLastTransportThatFailsIsNamedInTheLog(t *testing.T) {
	w := newTwoWays(t, nil, "transport=tcp fail_attach; transport=rdma status_corrupt_rate=1")
	list, _ := w.write(w.request(0, 4096))
	require.Equal(t, dispatch.Failed, list[0].State)
	require.Zero(t, list[0].Failovers)
	require.Contains(t, w.logged(), "No more transports available after rdma failed")
}

func TestMixedFaultsAcrossManySubmissions(t *testing.T) {
	w := newTwoWays(t, nil, "transport=rdma status_corrupt_rate=0.3; seed=11")
	failovers := 0
	for i := range 10 {
		list, _ := w.write(w.request(i*4096, 4096))
		require.Equal(t, dispatch.Completed, list[0].State)
		failovers += int(list[0].Failovers)
	}
	require.NotZero(t, failovers)
	require.Less(t, failovers, 10)
	require.Equal(t, failovers, w.metric(failedOver))
	require.Equal(t, failovers, w.metric(triedOverTCP), "one attempt for each that was moved")
	require.Equal(t, 10, w.metric(`tent_transport_attempts_total{transport="rdma"}`), "and one for each at first")
}

func TestMaxFailoverAttemptsZeroDisablesFailover(t *testing.T) {
	w := newTwoWays(t, map[string]any{"max_failover_attempts": 0}, "transport=rdma status_corrupt_rate=1")
	list, _ := w.write(w.request(0, 4096))
	require.Equal(t, dispatch.Failed, list[0].State)
	require.Zero(t, list[0].Failovers)
	require.Zero(t, w.metric(triedOverTCP), "tcp is never touched")
}

func TestMaxFailoverAttemptsOneAllowsSingleFailover(t *testing.T) {
	settings := func() map[string]any { return map[string]any{"max_failover_attempts": 1} }
	one := newTwoWays(t, settings(), "transport=rdma status_corrupt_rate=1")
	got, _ := one.write(one.request(0, 4096))
	require.Equal(t, dispatch.Completed, got[0].State)
	require.EqualValues(t, 1, got[0].Failovers)
	both := newTwoWays(t, settings(), "status_corrupt_rate=1")
	got, _ = both.write(both.request(0, 4096))
	require.Equal(t, dispatch.Failed, got[0].State)
	require.EqualValues(t, 1, got[0].Failovers)
}

func TestPerTaskFailoverCountsAreIndependent(t *testing.T) {
	w := newTwoWays(t, map[string]any{"max_failover_attempts": 1, "merge_requests": false},
		"transport=rdma lose scope=link nth=2; transport=rdma lose scope=link nth=4")
	list, sum := w.write(w.request(0, 4096), w.request(8192, 4096), w.request(16384, 4096), w.request(24576, 4096))
	moved := 0
	for i, s := range list {
		require.Equal(t, dispatch.Completed, s.State, "task %d", i)
		require.LessOrEqual(t, s.Failovers, uint16(1), "task %d", i)
		moved += int(s.Failovers)
	}
	require.Equal(t, 2, moved, "each has a budget of its own: one switch would not do for two")
	require.EqualValues(t, 2, sum.Failovers)
}

// The first reason why the seed calls recovery at the submit stage unsafe. Requests that were merged would be sent
// again each for itself, and all of them.
func TestMergedRequestsThatAreRefusedFailOverEachOnceWithItsOwnBytes(t *testing.T) {
	w := newTwoWays(t, nil, "transport=rdma submit_fail_rate=1")
	var requests []engine.Request
	for i := range 8 {
		requests = append(requests, w.request(i*4096, 4096))
	}
	list, _ := w.write(requests...)
	for i, s := range list {
		require.Equal(t, dispatch.Status{State: dispatch.Completed, Transport: 1, Attempts: s.Attempts, Failovers: 1,
			Bytes: 4096}, s, "task %d", i)
	}
	require.Equal(t, 8*4096, w.metric(`tent_write_bytes_total{transport="tcp"}`), "no byte twice")
	require.Zero(t, w.metric(`tent_write_bytes_total{transport="rdma"}`))
	require.Equal(t, 8, w.metric(failedOver))
}

// The second: some of the slices that were submitted together may have begun. The transport takes a prefix and says so.
func TestWhatWasAcceptedBeforeARefusalIsNotSentAgain(t *testing.T) {
	w := newTwoWays(t, nil, "transport=rdma fail_after_n_submits=5")
	list, _ := w.write(w.request(0, wayBytes))
	require.Equal(t, dispatch.Completed, list[0].State)
	require.EqualValues(t, 1, list[0].Failovers)
	require.Equal(t, wayBytes, w.metric("tent_write_bytes_total"))
	require.Equal(t, wayBytes/(64<<10)-5, w.metric(triedOverTCP), "the five that were there are not sent again")
}

// The Open MPI seed's first class of errors: the slice is lost.
func TestWhatIsLostIsSentAgain(t *testing.T) {
	w := newTwoWays(t, nil, "transport=rdma drop rate=0.3; seed=3")
	list, _ := w.write(w.request(0, wayBytes))
	require.Equal(t, dispatch.Completed, list[0].State)
}

// Its second: delivered, but reported as lost. The copy that is sent again carries the same bytes, and no copy is under
// way once the request has ended: the user's next bytes there stay.
func TestWhatWasDeliveredButReportedLostDoesNotSpoilTheNextUseOfItsMemory(t *testing.T) {
	w := newTwoWays(t, nil, "transport=rdma lose rate=0.3; transport=tcp lose rate=0.2; seed=9")
	for kind := range 20 {
		fill(w.source, kind)
		id, err := w.here.NewBatch(1)
		require.NoError(t, err)
		_, err = w.here.Submit(id, []engine.Request{w.request(0, wayBytes)}, nil)
		require.NoError(t, err)
		require.Equal(t, dispatch.Completed, w.here.Wait(id, patience))
		same(t, w.destination.bytes, kind, 0)
		fill(w.source, -kind-1) // used again at once, by its owner
		clear(w.destination.bytes)
		require.NoError(t, w.here.FreeBatch(id))
		w.here.Progress()
		require.True(t, painted(w.destination.bytes, 0), "a late copy of a transfer that has ended")
	}
	require.NotZero(t, w.metric("tent_rail_errors_total"))
	w.destination.check(t)
}

func TestACancelWaitsForWhatMayStillLand(t *testing.T) {
	w := newTwoWays(t, nil, "transport=rdma drop silent")
	w.here.Logs(1000)
	r := w.request(0, 4096)
	id, err := w.here.Move(&r)
	require.NoError(t, err)
	n, err := w.here.Cancel(id, 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, dispatch.Pending, w.here.Wait(id, 10*time.Millisecond), "it may still land")
	require.NoError(t, w.faults.Apply("heal"))
	sum := ended(t, w.here, id)
	require.Equal(t, dispatch.Canceled, sum.State)
	require.False(t, sum.Dirty, "called back in time after all")
}
