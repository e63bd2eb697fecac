package rdma

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// verdict is the error that a status makes: the end that is blamed, how much goes with it, and the text for the user.
type verdict struct {
	text  string
	code  errs.Code
	scope errs.Scope // ScopeSlice: the rail lives
	side  errs.Side
}

// verdicts by the status of a completion, 1 to 21 and one that no library has.
var verdicts = map[int]verdict{
	1:  {"local length error", errs.RdmaError, errs.ScopeSlice, errs.SideLocal},
	2:  {"local queue pair operation error", errs.RdmaError, errs.ScopeRail, errs.SideLocal},
	3:  {"local EE context operation error", errs.RdmaError, errs.ScopeRail, errs.SideLocal},
	4:  {"local protection error", errs.AddressNotRegistered, errs.ScopeSlice, errs.SideLocal},
	5:  {"work request flushed", errs.Lost, errs.ScopeRail, errs.SideLocal},
	6:  {"memory window bind error", errs.RdmaError, errs.ScopeSlice, errs.SideLocal},
	7:  {"bad response", errs.Lost, errs.ScopeRail, errs.SideRemote},
	8:  {"local access error", errs.AddressNotRegistered, errs.ScopeSlice, errs.SideLocal},
	9:  {"remote invalid request", errs.AddressNotRegistered, errs.ScopeSlice, errs.SideRemote},
	10: {"remote access error", errs.AddressNotRegistered, errs.ScopeSlice, errs.SideRemote},
	11: {"remote operation error", errs.Lost, errs.ScopeRail, errs.SideRemote},
	12: {"transport retries exceeded", errs.Lost, errs.ScopeRail, errs.SidePath},
	13: {"receiver not ready, retries exceeded", errs.Lost, errs.ScopeRail, errs.SideRemote},
	14: {"local RDD violation", errs.RdmaError, errs.ScopeRail, errs.SideLocal},
	15: {"remote invalid RD request", errs.RdmaError, errs.ScopeRail, errs.SideRemote},
	16: {"remote aborted", errs.Lost, errs.ScopeRail, errs.SideRemote},
	17: {"invalid EE context number", errs.RdmaError, errs.ScopeRail, errs.SideLocal},
	18: {"invalid EE context state", errs.RdmaError, errs.ScopeRail, errs.SideLocal},
	19: {"fatal error", errs.Lost, errs.ScopeRail, errs.SideLocal},
	20: {"response timeout", errs.Lost, errs.ScopeRail, errs.SidePath},
	21: {"general error", errs.Lost, errs.ScopeRail, errs.SideLocal},
	77: {"status 77", errs.Lost, errs.ScopeRail, errs.SideUnknown},
}

func (v *verdict) check(t *testing.T, err *errs.Error) {
	t.Helper()
	require.NotNil(t, err)
	require.Equal(t, []any{v.code, v.scope, v.side}, []any{err.Code, err.Scope, err.Side}, "%v", err)
	require.ErrorContains(t, err, v.text)
}

// TestEachStatusBlamesItsEnd: a slice's own status costs its slice alone and takes neighbours along for another try.
// Every other one takes the rail down, which comes back. The other rail goes on in each case.
func TestEachStatusBlamesItsEnd(t *testing.T) {
	for status := 1; status <= int(verbs.StatusCount); status++ {
		if status == int(verbs.StatusCount) {
			status = 77
		}
		v := verdicts[status]
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			r := newRig(t, func(s *Settings) { s.Lanes = 1 }) // so that neighbours share a queue pair
			rails := r.c.Rails()
			r.f.Control(t, "status %d", status)
			r.f.Control(t, "statuses 1")
			list := []*transport.Slice{r.slice(t, rails[0], 0, 4096), r.slice(t, rails[0], 8192, 4096)}
			require.Equal(t, 2, r.c.Submit(list...))
			ends := r.c.Wait(t, list...)
			v.check(t, ends[0].Err)
			require.False(t, ends[0].Err.Collateral)
			if v.scope == errs.ScopeSlice {
				require.NotNil(t, ends[1].Err)
				require.True(t, ends[1].Err.Collateral, "%v", ends[1].Err)
				require.Empty(t, r.downs.all(), "the slice alone is to blame")
				require.Contains(t, r.c.Rails(), rails[0], "the same generation")
			} else {
				await(t, "the rail to go down", func() bool { return len(r.downs.all()) > 0 })
				require.Len(t, r.downs.all(), 1)
				v.check(t, r.downs.all()[0])
				require.Contains(t, r.downs.all()[0].Error(), "fake0>fake0", "the rail")
			}
			require.Contains(t, r.c.Rails(), rails[1], "the other rail goes on")
			r.c.Must(t, r.slice(t, rails[1], 16384, 4096))
			await(t, "both rails", func() bool { return r.rails() == 2 })
			r.works(t)
		})
	}
}

// effect is that of an asynchronous event: the rails that go down, their cause, and whether they come back.
type effect struct {
	text  string
	downs int
	side  errs.Side
	back  bool
}

// eventNews are the verbs counterparts of the device events in the LNet resiliency seed, by type. Those that
// concern queue pairs come about one of rail 0.
var eventNews = map[uint32]effect{
	0:  {"completion queue failed", 1, errs.SideLocal, false},
	1:  {"queue pair failed", 1, errs.SideLocal, true},
	2:  {"queue pair got an invalid request", 1, errs.SideRemote, true},
	3:  {"queue pair got an access that is not allowed", 1, errs.SideRemote, true},
	4:  {}, // communication established
	5:  {}, // send queue drained
	6:  {}, // path migrated
	7:  {}, // path migration failed: there is no alternate path
	8:  {"device failed", 1, errs.SideLocal, false},
	9:  {}, // port is up: rails that are down are connected at once
	10: {"port is down", 1, errs.SideLocal, true},
	11: {"LID changed", 1, errs.SideLocal, true},
	12: {}, // partition keys changed
	13: {}, // subnet manager changed
	14: {}, // shared receive queue failed: there is none
	15: {}, // shared receive queue is low
	16: {}, // last request reached
	17: {}, // client has to register again, with a subnet manager
	18: {}, // addresses changed, and those of our rails are as before
}

// TestEventsOfAnotherPortHaveNoEffect: the fake's are about the first port. Events of a device come in turn, so one
// about the device ends the wait.
func TestEventsOfAnotherPortHaveNoEffect(t *testing.T) {
	r := newRig(t, func(s *Settings) { s.Port = 2 })
	const portFailed, lidChanged, addressesChanged, deviceFailed = 10, 11, 18, 8
	for _, kind := range []int{portFailed, lidChanged, addressesChanged, deviceFailed} {
		r.f.Control(t, "event fake0 %d", kind)
	}
	await(t, "a rail to go down", func() bool { return len(r.downs.all()) > 0 })
	require.ErrorContains(t, r.downs.all()[0], "device failed")
}

// TestEachEventOfADeviceHasItsEffect gives every event to a device under a connected rail.
func TestEachEventOfADeviceHasItsEffect(t *testing.T) {
	for kind, want := range eventNews {
		t.Run(fmt.Sprint(kind, verbs.EventName(kind)), func(t *testing.T) {
			r := newRig(t, nil)
			rails := r.c.Rails()
			l := r.a.Transport.(*Transport).links.Lookup(r.c.Link)
			aboutPair := kind >= 1 && kind <= 7 || kind == 16
			if aboutPair {
				rail := l.rail(0)
				rail.mu.Lock()
				number := rail.lanes[0].pair.Number
				rail.unlock()
				r.f.Control(t, "pair-event %d %d", number, kind)
			} else {
				r.f.Control(t, "event fake0 %d", kind)
			}
			// Events of a device come in turn, so one that has an effect ends the wait for those that have none.
			const portFailed = 10
			if want.downs == 0 {
				r.f.Control(t, "event fake0 %d", portFailed)
			}
			await(t, "a rail to go down", func() bool { return len(r.downs.all()) > 0 })
			require.Len(t, r.downs.all(), 1)
			cause := r.downs.all()[0]
			if want.downs == 0 {
				require.ErrorContains(t, cause, "port is down", "%d has no effect", kind)
				want.back = true
			} else {
				require.ErrorContains(t, cause, want.text)
				require.ErrorContains(t, cause, "fake0")
				require.Equal(t, []any{errs.Lost, errs.ScopeRail, want.side},
					[]any{cause.Code, cause.Scope, cause.Side})
			}
			require.Contains(t, r.c.Rails(), rails[1], "the other device's rail goes on")
			if want.back {
				await(t, "both rails", func() bool { return r.rails() == 2 })
			} else {
				require.True(t, l.rail(0).device.lost.Load())
			}
			r.works(t)
		})
	}
}
