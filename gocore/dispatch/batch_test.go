package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestIdsOfFreedBatchesAreStale(t *testing.T) {
	r := newRig(t, Options{Batches: 1})
	b := r.submit(to(r.core, r.link(1, 0, 1, 1<<20)), High, kib, clock.Never)
	_, err := r.core.NewBatch(1)
	require.Equal(t, errs.TooManyRequests, err.Code)
	require.Contains(t, err.Hint, "max_batches")
	require.Nil(t, r.core.FreeBatch(b))
	require.Equal(t, errs.Stale, r.core.FreeBatch(b).Code)
	_, err = r.core.NewBatch(1)
	require.NotNil(t, err, "its task is still pending")
	r.drain()
	require.Equal(t, []BatchID{b}, r.ended)
	again, err := r.core.NewBatch(1)
	require.Nil(t, err)
	require.Equal(t, b.Slot(), again.Slot())
	require.NotEqual(t, b, again)
	for _, err := range []*errs.Error{
		second(r.core.Status(b, 0)), second(r.core.Summary(b)), second(r.core.Task(b, 0)),
		second(r.core.Cancel(b, 0, 1, r.now)),
		second(r.core.Submit(b, nil, r.now)), second(r.core.Status(1<<63, 0)), second(r.core.Status(0, 0)),
	} {
		require.NotNil(t, err)
		require.Equal(t, errs.Stale, err.Code)
	}
}

func second[T any](_ T, err *errs.Error) *errs.Error { return err }

func TestSubmitTakesAllOrNothing(t *testing.T) {
	r := newRig(t, Options{Pending: 4})
	good := TaskSpec{Terms: request.Terms{Op: transport.Write}, Plan: to(r.core, r.link(1, 0, 1, 1<<20)), Local: 1,
		Remote: 1, Length: 1}
	b, err := r.core.NewBatch(4)
	require.Nil(t, err)
	for name, break_ := range map[string]func(*TaskSpec){
		"plan": func(s *TaskSpec) { s.Plan = nil }, "length": func(s *TaskSpec) { s.Length = 0 },
	} {
		bad := good
		break_(&bad)
		require.Equal(t, errs.InvalidArgument, second(r.core.Submit(b, []TaskSpec{good, bad}, r.now)).Code, name)
	}
	require.Equal(t, errs.TooManyRequests, second(r.core.Submit(b, []TaskSpec{good, good, good, good, good}, r.now)).
		Code)
	other, err := r.core.NewBatch(4)
	require.Nil(t, err)
	first, err := r.core.Submit(b, []TaskSpec{good, good}, r.now)
	require.Nil(t, err)
	require.Zero(t, first)
	require.Equal(t, errs.TooManyRequests, second(r.core.Submit(other, []TaskSpec{good, good, good}, r.now)).Code,
		"4 pending at most")
	first, err = r.core.Submit(b, []TaskSpec{good}, r.now)
	require.Nil(t, err)
	require.Equal(t, 2, first)
	require.Equal(t, 3, r.core.Pending())
	require.Len(t, r.step(), 3)
	for _, capacity := range []int{0, -1, 5} {
		require.Equal(t, errs.InvalidArgument, second(r.core.NewBatch(capacity)).Code)
	}
}

func TestSummaryIsTheWorstOfItsTasks(t *testing.T) {
	r := newRig(t, Options{})
	p := to(r.core, r.link(1, 1, 1, 1<<20))
	empty, err := r.core.NewBatch(1)
	require.Nil(t, err)
	s, err := r.core.Summary(empty)
	require.Nil(t, err)
	require.Equal(t, Completed, s.State)

	spec := TaskSpec{Terms: request.Terms{Op: transport.Write}, Plan: p, Local: 1, Remote: 1, Length: kib}
	soon := spec
	soon.Deadline = r.now.Add(ms)
	b := r.submitAll(spec, spec, soon, spec)
	state := func() State {
		s, err := r.core.Summary(b)
		require.Nil(t, err)
		return s.State
	}
	r.finish(0, nil)
	_, err = r.core.Cancel(b, 1, 1, r.now)
	require.Nil(t, err)
	r.finish(0, withdrawn)
	r.wait(ms)
	r.finish(0, withdrawn)
	require.Equal(t, Pending, state())
	failed := errs.New(errs.PermissionDenied, "test", "read only")
	r.finish(0, failed)
	sum, err := r.core.Summary(b)
	require.Nil(t, err)
	require.Equal(t, errs.PermissionDenied, sum.Err.Code, "of the worst")
	sum.Err = nil
	require.Equal(t, Summary{State: Failed, Tasks: 4, Bytes: kib, Total: 4 * kib, Attempts: 4, Transports: 1 << 1}, sum)
	k := r.core.Counters(1, High)
	require.Equal(t, [2]uint64{0, 4}, k.Requests)
	require.Equal(t, [2]uint64{0, 1}, k.Failures)
	require.EqualValues(t, 1, k.Canceled)
	require.EqualValues(t, 1, k.TimedOut)
	require.Equal(t, [2]uint64{0, kib}, k.Bytes)
	require.EqualValues(t, 2, k.Withdrawn)
	require.EqualValues(t, 4*kib, k.ByOp[transport.Write].Sizes.Sum)
	require.Nil(t, r.core.Counters(7, High))
}

// However many of its others end well behind the one that is dirty.
func TestABatchWithADirtyTaskStaysDirty(t *testing.T) {
	r := newRig(t, Options{FenceNetwork: time.Second})
	stuck, fine := r.link(1, 0, 1, 1<<20), r.link(2, 1, 1, 1<<20)
	spec := TaskSpec{Terms: request.Terms{Op: transport.Write, Deadline: r.now.Add(ms)}, Plan: to(r.core, stuck),
		Local: 1, Remote: 1, Length: kib}
	other := spec
	other.Plan, other.Deadline = to(r.core, fine), clock.Never
	b := r.submitAll(spec, other)
	require.Len(t, r.out, 2)
	r.wait(ms)
	r.wait(time.Second)
	require.True(t, r.status(b).Dirty)
	r.finish(slices.IndexFunc(r.out, func(s *transport.Slice) bool { return s.Rail.Link == transport.Link(fine) }), nil)
	sum, err := r.core.Summary(b)
	require.Nil(t, err)
	require.Equal(t, TimedOut, sum.State)
	require.True(t, sum.Dirty)
}

func TestABatchMayTakeMoreTasksAndEndAgain(t *testing.T) {
	r := newRig(t, Options{})
	b, err := r.core.NewBatch(2)
	require.Nil(t, err)
	spec := TaskSpec{Terms: request.Terms{Op: transport.Write}, Plan: to(r.core, r.link(1, 0, 1, 1<<20)), Local: 1,
		Remote: 1, Length: kib}
	for range 2 {
		_, err := r.core.Submit(b, []TaskSpec{spec}, r.now)
		require.Nil(t, err)
		r.step()
		r.drain()
	}
	require.Equal(t, []BatchID{b, b}, r.ended)
	got, err := r.core.Task(b, 1)
	require.Nil(t, err)
	require.Equal(t, spec, got)
	require.Equal(t, errs.InvalidEntry, second(r.core.Task(b, 2)).Code)
	require.Equal(t, errs.InvalidEntry, second(r.core.Cancel(b, 1, 2, r.now)).Code)
}

// Equal deadlines share a timer, and a step ends a bounded number of tasks.
func TestAMillionDeadlinesAreOneTimer(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 0, 0)
	specs := make([]TaskSpec, 20000)
	p := to(r.core, id)
	for i := range specs {
		specs[i] = TaskSpec{Terms: request.Terms{Op: transport.Write, Deadline: r.now.Add(ms)}, Plan: p, Local: 1,
			Remote: 1, Length: 1}
	}
	b := r.submitAll(specs...)
	require.Equal(t, 3, r.core.timers.Len(), "one for the tasks, one for the link, one for the peer")
	r.now = r.now.Add(ms)
	steps := 0
	for r.core.Pending() > 0 {
		r.step()
		steps++
		require.Less(t, steps, 100)
	}
	require.Equal(t, (len(specs)+expireMost-1)/expireMost, steps)
	s, err := r.core.Summary(b)
	require.Nil(t, err)
	require.Equal(t, TimedOut, s.State)
}
