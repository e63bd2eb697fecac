package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// rekey gives region 1 of a link another key and returns the keys that are retired by it, and the slices cut.
func (r *rig) rekey(id plan.LinkID, old, key transport.RemoteKey) []*transport.Slice {
	r.Helper()
	r.core.Rekey(id, old, key, nil, r.now)
	return r.step()
}

func replaced() *errs.Error { return transport.Replaced("test") }

func keysOf(list []*transport.Slice) (keys []transport.RemoteKey) {
	for _, s := range list {
		keys = append(keys, s.RemoteKey)
	}
	return keys
}

func TestARunningTaskGoesOnWithTheNewKeyAndTheOldOneRetiresLast(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 2, 128*kib)
	b := r.submit(to(r.core, id), High, 1<<20, clock.Never)
	require.Equal(t, []transport.RemoteKey{1, 1, 1, 1}, keysOf(r.out))
	r.rekey(id, 1, 2)
	require.Empty(t, r.retired, "four slices carry it")
	for range 3 {
		for _, s := range r.finish(0, nil) {
			require.EqualValues(t, 2, s.RemoteKey)
		}
		require.Empty(t, r.retired)
	}
	r.finish(0, nil)
	require.Equal(t, []Retired{{Key: 1}}, r.retired)
	r.drain()
	require.Equal(t, Status{State: Completed, Attempts: 1, Bytes: 1 << 20}, r.status(b))
	require.Len(t, r.retired, 1, "once")
}

func TestASliceWithAReplacedKeyIsSentAgainWithTheNewOneAtOnce(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	b := r.submit(to(r.core, id), High, 64*kib, clock.Never)
	r.rekey(id, 1, 2)
	again := r.finish(0, replaced())
	require.Equal(t, []transport.RemoteKey{2}, keysOf(again))
	require.Empty(t, r.stale, "the new key was known")
	r.drain()
	s := r.status(b)
	require.Equal(t, Completed, s.State)
	require.Empty(t, r.kinds(), "no rail is to blame")
}

func TestATaskPlannedWithAnOldKeyCatchesUp(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	old := to(r.core, id)
	r.rekey(id, 1, 2)
	require.Len(t, r.retired, 1, "nothing carried it")
	r.rekey(id, 2, 3)
	for _, refusal := range []*errs.Error{replaced(), // by the owner, and by a transport that has forgotten the key
		errs.New(errs.AddressNotRegistered, "test", "no such key").WithScope(errs.ScopeSlice, errs.SideRemote)} {
		b := r.submit(old, High, 64*kib, clock.Never)
		require.Equal(t, []transport.RemoteKey{3}, keysOf(r.finish(0, refusal)), "past the one between")
		r.drain()
		require.Equal(t, Completed, r.status(b).State)
	}
}

func TestALateTaskDoesNotStandInForTheSlicesOfBefore(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	old := to(r.core, id)
	r.submit(old, High, 64*kib, clock.Never)
	r.rekey(id, 1, 2)
	r.submit(old, High, 64*kib, clock.Never) // with the old key, after the change
	r.finish(1, replaced())
	require.Empty(t, r.retired, "the first slice still carries the key")
	r.finish(0, nil)
	require.Len(t, r.retired, 1)
	r.drain()
}

// The owner has lost the NIC of rail 0, and its new descriptor is for rail 1. Where the engine does not say so, rails
// without the key refuse it.
func TestTheRailsOfATaskAreThoseOfItsNewKey(t *testing.T) {
	for _, told := range []bool{true, false} {
		for _, refused := range []bool{true, false} {
			r := newRig(t, Options{})
			id := r.link(1, 0, 2, 128*kib)
			p := to(r.core, id)
			if !refused {
				p = onRails(r.core, 0b01, id)
			}
			b := r.submit(p, High, 512*kib, clock.Never)
			for i := 0; i < len(r.out); i++ {
				if r.out[i].Rail.Index == 1 {
					r.finish(i, notHere())
					i = -1
				}
			}
			require.Equal(t, uint64(0b01), r.used(), "the keys of before work there only")
			r.core.RailDown(id, railOf(id, 0, 1), broken(errs.ScopeRail), r.now)
			for len(r.out) > 0 {
				r.finish(0, broken(errs.ScopeRail))
			}
			var matches plan.Matches
			if told {
				matches = plan.Matches{1: {Rails: 0b10}}
			}
			r.core.Rekey(id, 1, 2, matches, r.now)
			r.step()
			require.Equal(t, uint64(0b10), r.used())
			r.drain()
			require.Equal(t, Completed, r.status(b).State)
		}
	}
}

func TestATaskLeavesTheRailsThatItsNewKeyHasLost(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 2, 128*kib)
	b := r.submit(to(r.core, id), High, 512*kib, clock.Never)
	require.Equal(t, uint64(0b11), r.used())
	r.core.Rekey(id, 1, 2, plan.Matches{1: {Rails: 0b10}}, r.now)
	r.finish(0, errs.New(errs.NotHere, "test", "the old key").WithScope(errs.ScopeRail, errs.SideRemote))
	for len(r.out) > 0 {
		for _, s := range r.finish(0, nil) {
			require.Equal(t, uint16(1), s.Rail.Index)
		}
	}
	require.Equal(t, Completed, r.status(b).State)
}

// Late news about an old key on rail 1 does not keep the new one away from there.
func TestARefusalOfAnOldKeyBarsNoRailFromTheNewOne(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 2, 64*kib)
	b := r.submit(to(r.core, id), High, 128*kib, clock.Never)
	require.Equal(t, uint64(0b11), r.used())
	r.rekey(id, 1, 2)
	r.core.RailDown(id, railOf(id, 0, 1), nil, r.now)
	late := slices.IndexFunc(r.out, func(s *transport.Slice) bool { return s.Rail.Index == 1 })
	again := r.finish(late, notHere())
	require.Len(t, again, 1)
	require.Equal(t, uint16(1), again[0].Rail.Index)
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

func TestAnUnknownReplacementIsAskedForOnceAndAwaited(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(7, 0, 1, 1<<20)
	b := r.submit(to(r.core, id), High, 256*kib, clock.Never)
	require.Len(t, r.out, 4)
	for len(r.out) > 0 {
		require.Empty(t, r.finish(0, replaced()))
	}
	require.Equal(t, []uint32{7}, r.stale, "one question for all")
	require.Len(t, r.wait(2*ms), 1, "the first one counts as a try")
	require.Empty(t, r.finish(0, replaced()))
	require.Len(t, r.stale, 1, "the answer is on the way")
	fresh := r.rekey(id, 1, 2)
	require.Equal(t, []transport.RemoteKey{2, 2, 2, 2}, keysOf(fresh), "all at once")
	r.core.Refreshed(7, r.now)
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

// The end of a task takes its other pieces out of the list that is walked.
func TestPiecesThatWaitForADescriptionEndWithTheirPeer(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(7, 0, 1, 1<<20)
	b := r.submit(to(r.core, id), High, 256*kib, clock.Never)
	for len(r.out) > 0 {
		require.Empty(t, r.finish(0, replaced()))
	}
	require.Equal(t, 3, r.core.parked[retryRungs-1].Len())
	r.core.PeerGone(7, broken(errs.ScopeLink), r.now)
	r.core.Refreshed(7, r.now)
	r.drain()
	require.Equal(t, Failed, r.status(b).State)
	require.Zero(t, r.core.parked[retryRungs-1].Len())
}

// A fence ends the key of all peers, and waits for one that is silent before the owner describes the next key.
// A task without another route outlasts that, and none waits for a description that never comes.
func TestATaskWithoutAnotherRouteAwaitsTheDescriptionOfASlowOwner(t *testing.T) {
	for name, comes := range map[string]bool{"comes": true, "never comes": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{Failovers: 1})
			id := r.link(7, 0, 1, 1<<20)
			b := r.submit(to(r.core, id), High, 64*kib, clock.Never)
			begun := r.now
			waited := func() time.Duration { return r.now.Sub(begun) }
			for r.status(b).State == Pending && waited() < transport.HearingLimit+100*ms || !comes && len(r.out) > 0 {
				for len(r.out) > 0 {
					r.finish(0, replaced())
					r.core.Refreshed(7, r.now) // the description is as it was
					r.step()
				}
				for r.status(b).State == Pending && len(r.out) == 0 {
					r.wait(ms)
				}
			}
			require.Less(t, len(r.stale), 50, "it asks all the time")
			if !comes {
				require.Equal(t, Failed, r.status(b).State)
				require.Equal(t, errs.Replaced, r.status(b).Err.Code)
				require.InDelta(t, describedWithin, waited(), float64(200*ms))
				return
			}
			r.rekey(id, 1, 2)
			r.drain()
			require.Equal(t, Completed, r.status(b).State)
		})
	}
}

// A stop of this process is no time in which the owner could have described its next key.
func TestOurOwnPauseDoesNotEndTheWaitForADescription(t *testing.T) {
	r := newRig(t, Options{Failovers: 1})
	id := r.link(7, 0, 1, 1<<20)
	b := r.submit(to(r.core, id), High, 64*kib, clock.Never)
	try := func(d time.Duration) {
		for end := r.now.Add(d); r.now < end && r.status(b).State == Pending; {
			for len(r.out) > 0 {
				r.finish(0, replaced())
				r.core.Refreshed(7, r.now)
				r.step()
			}
			r.wait(ms)
		}
	}
	try(time.Second)
	r.core.Deadline()
	r.wait(time.Minute)
	try(500 * ms)
	require.Equal(t, Pending, r.status(b).State)
	r.rekey(id, 1, 2)
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

// Tasks that lack a description ask for it together, however many they are, and none waits for the tries of others.
func TestManyTasksAskForADescriptionAsOneDoes(t *testing.T) {
	const answer = 5 * ms
	r := newRig(t, Options{Failovers: 1})
	id := r.link(7, 0, 1, 1<<20)
	var list []BatchID
	for range 100 {
		list = append(list, r.submit(to(r.core, id), High, 64*kib, clock.Never))
	}
	begun, asked, due := r.now, 0, clock.Never
	pending := func(b BatchID) bool { return r.status(b).State == Pending }
	for slices.ContainsFunc(list, pending) {
		require.Less(t, r.now.Sub(begun), describedWithin+200*ms, "a task waits for ever")
		for len(r.out) > 0 {
			r.finish(0, replaced())
		}
		if len(r.stale) > asked {
			asked, due = len(r.stale), r.now.Add(answer)
		}
		if r.wait(ms); r.now >= due { // the description is as it was
			r.core.Refreshed(7, r.now)
			due = clock.Never
			r.step()
		}
	}
	require.Less(t, len(r.stale), 50, "they ask all the time")
	require.GreaterOrEqual(t, r.now.Sub(begun), describedWithin)
}

func TestAReplacementThatNobodyDescribesEndsTheRoute(t *testing.T) {
	r := newRig(t, Options{Failovers: 1})
	first, second := r.link(7, 0, 1, 1<<20), r.link(7, 1, 1, 1<<20)
	b := r.submit(to(r.core, first, second), High, 64*kib, clock.Never)
	for i := 0; r.out[0].Rail.Link == transport.Link(first); i++ {
		require.Less(t, i, 50, "it never gives up")
		r.finish(0, replaced())
		r.core.Refreshed(7, r.now) // the description is as it was
		r.step()
		for j := 0; len(r.out) == 0; j++ {
			require.Less(t, j, 1000)
			r.wait(ms)
		}
	}
	require.Greater(t, len(r.stale), 1, "asked again")
	r.drain()
	s := r.status(b)
	require.Equal(t, Completed, s.State)
	require.EqualValues(t, 1, s.Failovers)
}

func TestARegionThatIsOfferedNoMoreOverALinkTakesTheNextRoute(t *testing.T) {
	r := newRig(t, Options{Failovers: 1})
	first, second := r.link(7, 0, 1, 1<<20), r.link(7, 1, 1, 1<<20)
	b := r.submit(to(r.core, first, second), High, 64*kib, clock.Never)
	r.rekey(first, 1, 0)
	again := r.finish(0, replaced())
	require.Len(t, again, 1)
	require.Equal(t, transport.Link(second), again[0].Rail.Link)
	require.Len(t, r.retired, 1)
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

func TestAFenceOfAnOldKeyEndsTasksThatHaveTheNewOne(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 64*kib)
	b := r.submit(to(r.core, id), High, 256*kib, clock.Never)
	r.rekey(id, 1, 2)
	r.core.Fenced(map[RegionKey]transport.Epoch{{id, 1}: 5}, r.now)
	r.step()
	r.drain()
	require.Equal(t, Failed, r.status(b).State)
}

func TestAnInlineCallKeepsItsKeyAlive(t *testing.T) {
	r := newRig(t, Options{})
	id := r.core.AddLink(LinkSpec{Peer: 1, Transport: 0, Info: &transport.Info{SliceMax: 1 << 20}})
	r.railUp(id, 0, 1, 1<<20)
	specs := []TaskSpec{{Plan: to(r.core, id), Local: 1 << 20, Length: kib}}
	reserve := func() Reservation {
		b, err := r.core.NewBatch(1)
		require.Nil(t, err)
		held, ok := r.core.Reserve(b, specs, r.now)
		require.True(t, ok)
		return held
	}
	before := reserve()
	r.rekey(id, 1, 2)
	after := reserve()
	r.core.Record(&after, specs, r.now)
	r.step()
	require.Empty(t, r.retired, "a call that began before may still copy by it")
	r.core.Record(&before, specs, r.now)
	r.step()
	require.Len(t, r.retired, 1)
}

func TestALinkRemembersBoundedlyManySuccessors(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 1<<20)
	for i := range transport.RemoteKey(4 * successorsMost) {
		r.rekey(id, i+1, i+2)
	}
	require.Len(t, r.core.link(id).successors, successorsMost)
	require.Len(t, r.retired, 4*successorsMost)
	b := r.submit(to(r.core, id), High, kib, clock.Never)
	require.Equal(t, Pending, r.status(b).State)
	r.rekey(id, 4*successorsMost+1, 1) // an old key is back in use
	require.EqualValues(t, 1, r.core.link(id).current(4*successorsMost))
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

func TestAFenceEndsATaskThatCameWithAKeyOfBefore(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 64*kib)
	old := to(r.core, id)
	r.rekey(id, 1, 2)
	b := r.submit(old, High, 256*kib, clock.Never)
	require.Contains(t, keysOf(r.out), transport.RemoteKey(1), "its key is put right when the owner refuses it")
	r.core.Fenced(map[RegionKey]transport.Epoch{{Link: id, Key: 2}: 1}, r.now)
	r.step()
	for len(r.out) > 0 {
		require.Empty(t, r.finish(0, replaced()), "nothing is cut in the epoch before")
	}
	require.Equal(t, Failed, r.status(b).State)
}

// Another region's key has a successor on the same link.
func TestAFenceEndsTheTasksOfItsRegionAlone(t *testing.T) {
	r := newRig(t, Options{})
	id := r.link(1, 0, 1, 64*kib)
	replaced, plain := to(r.core, id), to(r.core, id)
	plain.Routes[0].Hops[0].RemoteKey = 5
	r.rekey(id, 1, 2)
	for _, fenced := range []transport.RemoteKey{5, 2, 1} {
		b := [2]BatchID{r.submit(replaced, High, 256*kib, clock.Never), r.submit(plain, High, 256*kib, clock.Never)}
		r.core.Fenced(map[RegionKey]transport.Epoch{{Link: id, Key: fenced}: 1}, r.now)
		r.step()
		r.drain()
		want := [2]State{Failed, Completed}
		if fenced == 5 {
			want = [2]State{Completed, Failed}
		}
		require.Equal(t, want, [2]State{r.status(b[0]).State, r.status(b[1]).State}, "the region of key %d", fenced)
	}
}
