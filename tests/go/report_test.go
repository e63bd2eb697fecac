package tests

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/transport"
)

// told collects the events of an engine about its peers' traced transfers.
type told struct {
	*testing.T
	by   *engine.Engine
	id   engine.FollowerID
	list []event.Event
}

func follow(t *testing.T, e *engine.Engine) *told {
	id, err := e.Follow()
	require.NoError(t, err)
	return &told{T: t, by: e, id: id}
}

// take returns all reports so far, by trace, after at least n have come.
func (h *told) take(n int) map[string][]event.Event {
	for until := time.Now().Add(patience); len(h.list) < n; {
		more, err := h.by.EventsWait(h.id, time.Until(until))
		require.NoError(h, err)
		require.True(h, more, "%d reports of %d came: %v", len(h.list), n, h.list)
		list, _, err := h.by.Events(h.id, 1000)
		require.NoError(h, err)
		for _, e := range list {
			if e.Kind == event.Traced {
				h.list = append(h.list, e)
			}
		}
	}
	by := make(map[string][]event.Event)
	for _, e := range h.list {
		by[e.Trace] = append(by[e.Trace], e)
	}
	return by
}

// traced begins a WRITE with a trace, and with a notification unless that is nil.
func traced(t *testing.T, e *engine.Engine, r engine.Request, trace string, note *engine.Note) dispatch.BatchID {
	call, err := e.Begin(r.Terms)
	require.NoError(t, err)
	require.NoError(t, call.AddRange(r.Source, r.Remote, r.Length))
	require.NoError(t, call.Trace(trace))
	id, err := call.Commit(note)
	require.NoError(t, err)
	return id
}

func TestThePeerHearsHowATracedTransferEnded(t *testing.T) {
	w := newTwoWays(t, map[string]any{"max_failover_attempts": 1}, "seed=1")
	peer := follow(t, w.there)
	run := func(trace string, note *engine.Note) dispatch.Summary {
		return ended(t, w.here, traced(t, w.here, w.request(0, 4096), trace, note))
	}
	require.Equal(t, dispatch.Completed, run("completed", nil).State)
	require.Equal(t, dispatch.Completed, run("notified", &engine.Note{Name: []byte("page")}).State)
	require.Equal(t, dispatch.Completed, run("", nil).State)

	require.NoError(t, w.faults.Apply("transport=rdma drop silent"))
	id := traced(t, w.here, w.request(4096, 4096), "canceled", nil)
	_, err := w.here.Cancel(id, -1)
	require.NoError(t, err)
	require.NoError(t, w.faults.Apply("heal"))
	require.Equal(t, dispatch.Canceled, ended(t, w.here, id).State)

	require.NoError(t, w.faults.Apply("status_corrupt_rate=1"))
	failed := run("failed", nil)
	require.Equal(t, dispatch.Failed, failed.State)
	same(t, w.destination.bytes[:4096], 5, 0)

	heard := peer.take(4)
	one := func(trace, note string, bytes uint64) *errs.Error {
		require.Len(t, heard[trace], 1, "%v", heard)
		e := heard[trace][0]
		require.Equal(t, []any{note, w.here.Address(), bytes}, []any{e.Note, e.Peer, e.Bytes}, "%v", e)
		return e.Err
	}
	require.Nil(t, one("completed", "completed", 4096))
	cause := one("canceled", "canceled", 0)
	require.Equal(t, errs.Canceled, cause.Code)
	require.Len(t, heard["failed"], 2, "its failover and its end: %v", heard)
	require.Equal(t, "failover", heard["failed"][0].Note)
	end := heard["failed"][1]
	require.Equal(t, "failed", end.Note)
	require.Equal(t, failed.Err.Code, end.Err.Code)
	require.Equal(t, failed.Err.Cause, end.Err.Cause)
	require.Equal(t, errs.SideRemote, end.Err.Side)
	require.Empty(t, heard["notified"], "the notification is enough")
	require.Len(t, heard, 3)
	require.Zero(t, w.metric("tent_trace_reports_dropped_total"))
}

// Over every kind of transport, also where the call carries out its bytes itself, each of several peers hears its own
// part.
func TestEachPeerHearsItsPartOfATracedTransfer(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		here, source := w.open(t, nil), memory(t, 4096)
		offer(t, here, source, "")
		call, err := here.Begin(engine.Terms{Op: transport.Write})
		require.NoError(t, err)
		require.NoError(t, call.Trace("both"))
		var peers []*told
		for i := range 2 {
			there := w.open(t, map[string]any{"log_level": "debug"})
			offer(t, there, memory(t, 4096), "kv")
			to := segment(t, here, there, "kv")
			peers = append(peers, follow(t, there))
			require.Equal(t, dispatch.Completed, ended(t, here, traced(t, here, engine.Request{Terms: engine.Terms{
				Op: transport.Write}, Source: address(source), Length: 64, Remote: engine.Remote{Segment: to}}, "one",
				nil)).State)
			for range i + 1 {
				require.NoError(t, call.AddRange(address(source), engine.Remote{Segment: to}, 512))
			}
		}
		id, err := call.Commit(nil)
		require.NoError(t, err)
		require.Equal(t, dispatch.Completed, ended(t, here, id).State)
		for i, peer := range peers {
			heard := peer.take(2)
			require.Len(t, heard["one"], 1)
			require.EqualValues(t, 64, heard["one"][0].Bytes)
			require.Len(t, heard["both"], 1)
			require.EqualValues(t, 512*(i+1), heard["both"][0].Bytes)
			require.True(t, slices.ContainsFunc(peer.by.Logs(1000), func(line engine.LogRecord) bool {
				return line.Level == slog.LevelDebug && line.Attrs["trace"] == "one" &&
					line.Message == "A transfer of the peer: completed, 64 bytes"
			}))
		}
	})
}

// A peer that has ended takes no reports: transfers end as ever, and so does the engine.
func TestReportsToAPeerThatHasEndedHoldNothingUp(t *testing.T) {
	w := newTwoWays(t, nil, "seed=1")
	require.Empty(t, w.there.Close(patience, true))
	for range 300 {
		call, err := w.here.Begin(engine.Terms{Op: transport.Write})
		require.NoError(t, err)
		r := w.request(0, 4096)
		if call.AddRange(r.Source, r.Remote, r.Length) != nil { // the engine has learned of the end
			call.Discard()
			continue
		}
		require.NoError(t, call.Trace("late"))
		if id, err := call.Commit(nil); err == nil {
			ended(t, w.here, id)
		}
	}
	begin := time.Now()
	require.Empty(t, w.here.Close(0, true))
	require.Less(t, time.Since(begin), patience)
}
