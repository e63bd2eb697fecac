package security

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/transport"
)

// reports takes all events of an engine so far, and returns those of reports.
func reports(t *testing.T, e *engine.Engine, id engine.FollowerID) (list []event.Event) {
	t.Helper()
	for {
		some, _, err := e.Events(id, 1000)
		require.NoError(t, err)
		if len(some) == 0 {
			return list
		}
		for _, each := range some {
			if each.Kind == event.Traced {
				list = append(list, each)
			}
		}
	}
}

// tell sends reports, and returns the answer.
func (a *attacker) tell(e *engine.Engine, list ...control.Traced) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return a.Report(ctx, e.Self(), list)
}

// A peer that reports without an end makes a bounded number of events, and the rest is counted.
func TestAFloodOfReportsMakesFewEvents(t *testing.T) {
	e := victim(t)
	id, err := e.Follow()
	require.NoError(t, err)
	a := newAttacker(t, transport.Peer{Address: "10.0.0.1:1"})
	list := make([]control.Traced, control.ReportsMax)
	for i := range list {
		list[i] = control.Traced{Trace: "flood", Turn: control.TurnCompleted}
	}
	const calls = 100
	begin := time.Now()
	for range calls {
		require.NoError(t, a.tell(e, list...))
	}
	seconds := int(time.Since(begin)/time.Second) + 1
	seen := len(reports(t, e, id))
	require.LessOrEqual(t, seen, min(100*(seconds+1), calls*len(list)))
	require.GreaterOrEqual(t, seen, 100)
	require.EqualValues(t, calls*len(list)-seen, e.Metrics()["tent_trace_reports_dropped_total"])
}

// Texts of reports can neither write lines nor grow, and reports that make no sense are refused whole.
func TestHostileReportsAreHarmless(t *testing.T) {
	e, honest := victim(t), victim(t)
	_, err := e.OpenSegment(context.Background(), honest.Address())
	require.NoError(t, err)
	id, err := e.Follow()
	require.NoError(t, err)
	a := newAttacker(t, transport.Peer{Address: honest.Address()})
	good := control.Traced{Trace: "good", Turn: control.TurnCompleted}
	for name, bad := range map[string]control.Traced{
		"no trace":     {Turn: control.TurnCompleted},
		"long trace":   {Trace: strings.Repeat("x", 65), Turn: control.TurnCompleted},
		"no turn":      {Trace: "x"},
		"unknown turn": {Trace: "x", Turn: 6},
	} {
		require.Error(t, a.tell(e, good, bad), name)
	}
	require.Error(t, a.tell(e, make([]control.Traced, control.ReportsMax+1)...))
	require.Empty(t, reports(t, e, id))
	require.EqualValues(t, 5, e.Metrics()[`tent_refused_total{plane="control",reason="malformed"}`])

	require.NoError(t, a.tell(e, control.Traced{Trace: "a\nb\x1b[2J\xff", Turn: control.TurnFailed, Bytes: 1<<64 - 1,
		Code: 65535, Cause: "\r\n\x00" + strings.Repeat("y", 1<<20)}))
	list := reports(t, e, id)
	require.Len(t, list, 1)
	require.Equal(t, "a\uFFFDb\uFFFD[2J\uFFFD", list[0].Trace)
	require.Less(t, len(list[0].Err.Cause), 300)
	require.NotContains(t, list[0].Err.Error(), "\n")
	require.NotEqual(t, honest.Address(), list[0].Peer, "it bears the address of a peer that is open")
}
