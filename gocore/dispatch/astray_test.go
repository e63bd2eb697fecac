package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// gone is the refusal of a region that its owner has closed.
func gone() *errs.Error {
	return errs.New(errs.AddressNotRegistered, "test", "the region was closed").
		WithScope(errs.ScopeSlice, errs.SideRemote)
}

// addressed is a request by address.
func addressed(p *plan.Plan, length uint64, deadline clock.Time) TaskSpec {
	return TaskSpec{Terms: request.Terms{Op: transport.Write, Class: High, Deadline: deadline}, Plan: p, Local: 1 << 20,
		Remote: 1 << 30, Length: length, ByAddress: true}
}

// home is one region for a whole task.
func home(p *plan.Plan, remote uint64) []Home { return []Home{{Plan: p, Remote: remote}} }

// refuse completes everything that is out with an error.
func (r *rig) refuse(err *errs.Error) {
	for len(r.out) > 0 {
		r.finish(0, err)
	}
}

func TestATaskByAddressBeginsAgainInTheRegionThatIsThereNow(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 2, 128*kib)
	b := r.submitAll(addressed(to(r.core, id), 512*kib, clock.Never))
	r.refuse(gone())
	require.Len(t, r.astray, 1, "one question, however many of its slices were refused")
	a := r.astray[0]
	require.Equal(t, [2]uint64{1 << 30, 1<<30 + 512*kib}, [2]uint64{a.Begin, a.End})
	require.EqualValues(t, 1, a.Peer)
	require.Equal(t, Pending, r.status(b).State)
	r.core.Relocate(&a, home(to(r.core, id), 1<<10), nil, r.now)
	require.EqualValues(t, 1<<10, r.step()[0].Remote)
	r.core.Relocate(&a, home(to(r.core, id), 0), nil, r.now) // a second answer changes nothing
	r.drain()
	s := r.status(b)
	require.Equal(t, Completed, s.State)
	require.EqualValues(t, 512*kib, s.Bytes)
}

func TestATaskIsGivenOneOtherRegion(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	b := r.submitAll(addressed(to(r.core, id), 64*kib, clock.Never))
	r.refuse(gone())
	r.core.Relocate(&r.astray[0], home(to(r.core, id), 0), nil, r.now)
	r.step()
	r.refuse(gone())
	require.Len(t, r.astray, 1)
	require.Equal(t, Failed, r.status(b).State)
}

func TestATaskBeginsAgainOnlyWhereNothingOfItHasArrivedAndItNamedAnAddress(t *testing.T) {
	local := errs.New(errs.AddressNotRegistered, "test", "no local key").WithScope(errs.ScopeSlice, errs.SideLocal)
	for name, test := range map[string]struct {
		named   bool
		arrived bool
		err     *errs.Error
	}{"a named region": {named: true, err: gone()}, "bytes have arrived": {arrived: true, err: gone()},
		"local memory": {err: local},
		"another error": {err: errs.New(errs.PermissionDenied, "test", "no").
			WithScope(errs.ScopeSlice, errs.SideRemote)}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{})
			id := r.link(1, 0, 1, 1<<20)
			spec := addressed(to(r.core, id), 256*kib, clock.Never)
			spec.ByAddress = !test.named
			b := r.submitAll(spec)
			if test.arrived {
				r.finish(0, nil)
			}
			r.refuse(test.err)
			require.Empty(t, r.astray)
			require.Equal(t, Failed, r.status(b).State)
		})
	}
}

// A slice that cannot be called back may still reach the region of before. The task ends dirty, and begins nowhere.
func TestADirtyTaskBeginsNowhere(t *testing.T) {
	r := newRig(t, Options{FenceNetwork: 100 * ms})
	b := r.submitAll(addressed(to(r.core, r.link(1, 0, 1, 1<<20)), 128*kib, clock.Never))
	r.finish(0, gone())
	require.Len(t, r.asked, 1)
	r.wait(100 * ms)
	require.Empty(t, r.astray)
	s := r.status(b)
	require.Equal(t, Failed, s.State)
	require.True(t, s.Dirty)
}

// A task that waits for the answer ends at its deadline and when it is cancelled. So does one that is not quiescent
// yet: nobody wants it to begin again.
func TestATaskWhoseEndIsAskedForBeginsNowhere(t *testing.T) {
	const limit = 50 * ms
	ends := map[State]func(r *rig, b BatchID){
		TimedOut: func(r *rig, _ BatchID) { r.wait(limit) },
		Canceled: func(r *rig, b BatchID) {
			n, err := r.core.Cancel(b, 0, 1, r.now)
			require.Nil(r, err)
			require.Equal(r, 1, n)
			r.step()
		},
		Failed: func(r *rig, _ BatchID) { r.core.Relocate(&r.astray[0], nil, gone(), r.now) },
	}
	for state, end := range ends {
		for _, early := range []bool{false, true} {
			if early && state == Failed {
				continue // there is no question yet
			}
			r := newRig(t, Options{})
			id := r.link(1, 0, 1, 1<<20)
			b := r.submitAll(addressed(to(r.core, id), 128*kib, r.now.Add(limit)))
			if early {
				r.finish(0, gone()) // the second slice is out
				end(r, b)
				r.refuse(gone())
				require.Empty(t, r.astray)
				require.True(t, r.status(b).State.Terminal())
				continue
			}
			r.refuse(gone())
			end(r, b)
			require.Equal(t, state, r.status(b).State)
			require.Nil(t, r.core.FreeBatch(b))
			r.core.Relocate(&r.astray[0], home(to(r.core, id), 0), nil, r.now) // the answer is late
			require.Empty(t, r.wait(time.Second))
			require.Zero(t, r.core.Pending())
		}
	}
}

// The parts of a task stay where they are counted from.
func TestPartsBeginAgainWithTheirTask(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	spec := addressed(to(r.core, id), 3*kib, clock.Never)
	spec.Remote = 100
	spec.Parts = &transport.Pieces{LocalAt: []uint64{0, 4096, 8192}, RemoteAt: []uint64{9000, 0, 5000}, Bytes: kib}
	b := r.submitAll(spec)
	r.refuse(gone())
	require.Equal(t, [2]uint64{100, 9100 + kib}, [2]uint64{r.astray[0].Begin, r.astray[0].End})
	r.core.Relocate(&r.astray[0], home(to(r.core, id), 7), nil, r.now)
	require.EqualValues(t, 9007, r.step()[0].Remote)
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}
