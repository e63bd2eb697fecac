package engine

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// heldReporter sends nothing before it is released by a value in its channel, the outcome of one call.
func heldReporter(t *testing.T) (r *reporter, calls chan []string, outcomes chan error) {
	calls, outcomes = make(chan []string, 1000), make(chan error)
	r = newReporter(func(ctx context.Context, _ *peer, list []control.Traced) error {
		var names []string
		for _, each := range list {
			names = append(names, each.Trace)
		}
		calls <- names
		select {
		case err := <-outcomes:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	t.Cleanup(r.close)
	return r, calls, outcomes
}

func traceOf(p *peer, i int) report { return report{control.Traced{Trace: fmt.Sprint(i)}, p, nil} }

func received(t *testing.T, calls chan []string) []string {
	t.Helper()
	select {
	case list := <-calls:
		return list
	case <-time.After(patience):
		t.Fatal("no call came")
		return nil
	}
}

func TestAFullQueueOfReportsDropsTheOldest(t *testing.T) {
	r, calls, outcomes := heldReporter(t)
	a, b := &peer{}, &peer{}
	r.push(traceOf(a, 0))
	require.Equal(t, []string{"0"}, received(t, calls))
	for i := range 2 * reportsMax { // while the first is under way
		r.push(traceOf([]*peer{a, b}[i%2], i+1))
	}
	require.EqualValues(t, reportsMax, r.dropped.Load())
	next := reportsMax + 1
	var got []string
	for range 2 * reportsMax / 2 / control.ReportsMax {
		outcomes <- nil
		list := received(t, calls)
		require.Len(t, list, control.ReportsMax, "reports to one peer travel together")
		got = append(got, list...)
	}
	outcomes <- nil
	require.Len(t, got, reportsMax)
	require.Contains(t, got, fmt.Sprint(next), "the oldest that was not dropped")
	require.NotContains(t, got, fmt.Sprint(next-1))
	r.running.Wait()
	require.EqualValues(t, reportsMax, r.dropped.Load())
	require.False(t, r.sends, "no goroutine is left")
}

func TestAPeerThatDoesNotKnowReportsIsNotAskedAgain(t *testing.T) {
	r, calls, outcomes := heldReporter(t)
	old, other := &peer{}, &peer{}
	r.push(traceOf(old, 1))
	received(t, calls)
	r.push(traceOf(old, 2)) // behind it
	outcomes <- errs.New(errs.NotImplemented, "control.report", "the peer does not know this call")
	r.running.Wait()
	r.push(traceOf(old, 3))
	r.push(traceOf(other, 4))
	require.Equal(t, []string{"4"}, received(t, calls))
	outcomes <- nil
	r.running.Wait()
	require.EqualValues(t, 3, r.dropped.Load())
	require.Equal(t, int64(clock.Never), old.deaf.Load())
}

func TestCloseWaitsAMomentForReportsThatHang(t *testing.T) {
	r, calls, _ := heldReporter(t)
	for i := range 3 {
		r.push(traceOf(&peer{}, i))
	}
	received(t, calls)
	closed := make(chan struct{})
	go func() {
		r.close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Fatal("close hangs")
	}
	require.EqualValues(t, 3, r.dropped.Load())
	r.push(traceOf(&peer{}, 4))
	require.EqualValues(t, 4, r.dropped.Load(), "nothing is taken any more")
}

func TestReportsOfAPeerAreFewEachSecond(t *testing.T) {
	var r reportRates
	now := clock.Time(1)
	one := transport.NumberedID(1)
	require.Equal(t, 64, r.admit(one, 64, now))
	require.Equal(t, heardEvery-64, r.admit(one, 64, now))
	require.Zero(t, r.admit(one, 64, now.Add(time.Second-1)))
	require.Equal(t, 3, r.admit(transport.NumberedID(2), 3, now), "each peer has its own number")
	require.Equal(t, 64, r.admit(one, 64, now.Add(time.Second)))

	full := 0
	for i := range 2 * heardPeers {
		full += r.admit(transport.NumberedID(uint64(100+i)), 1, now.Add(time.Second))
	}
	require.LessOrEqual(t, len(r.peers), heardPeers)
	require.Less(t, full, heardPeers)
	require.Equal(t, 1, r.admit(transport.NumberedID(9999), 1, now.Add(2*time.Second)), "silent peers are forgotten")
}
