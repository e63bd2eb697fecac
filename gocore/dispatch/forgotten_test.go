package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/transport"
)

// lose makes a rail lose a slice of MEDIUM, and some copies of it, and deliver others of a class behind it for a time.
func (r *rig) lose(class uint8, copies int, d time.Duration) (lost BatchID) {
	id := r.link(1, 1, 1, 1<<20)
	p := to(r.core, id)
	lost = r.submit(p, Medium, 64*kib, clock.Never)
	require.Len(r, r.out, 1)
	for end := r.now.Add(d); r.now < end && r.status(lost).State == Pending && len(r.out) <= copies; {
		r.submit(p, class, 64*kib, clock.Never)
		r.core.Progress(id, r.out[0].Rail, r.now)
		r.finish(len(r.out)-1, nil)
		r.wait(100 * ms)
	}
	return lost
}

// TestASliceThatOthersHavePassedIsSentAgain: its transport has forgotten it, and the rail goes on.
func TestASliceThatOthersHavePassedIsSentAgain(t *testing.T) {
	r := newRig(t, Options{Stall: 3 * time.Second})
	lost := r.lose(Medium, 1, time.Second)
	require.Len(t, r.out, 2)
	r.finish(1, nil)
	require.Equal(t, Pending, r.status(lost).State, "a straggler may still write")
	r.finish(0, withdrawn)
	require.Equal(t, Completed, r.status(lost).State)
}

// TestASliceThatOthersHavePassedClaimsNoProgress: the stall limit ends its task, if the transport never says more.
// Slices that are more urgent may pass it for ever.
func TestASliceThatOthersHavePassedClaimsNoProgress(t *testing.T) {
	r := newRig(t, Options{Stall: 3 * time.Second})
	s := r.status(r.lose(Medium, 99, time.Minute))
	require.Equal(t, Failed, s.State)
	require.True(t, s.Dirty)
	require.ErrorContains(t, s.Err, "no progress for 3s")
	require.Greater(t, s.Attempts, uint16(2))

	r = newRig(t, Options{Stall: 3 * time.Second})
	require.Equal(t, Pending, r.status(r.lose(High, 99, time.Minute)).State)
	require.Len(t, r.out, 1)
}

// answers lets time pass while the peer is well: it answers probes, and has nothing else to say. It ends when a slice
// is handed out.
func (r *rig) answers(d time.Duration, signs transport.Signs) {
	id := r.core.links[1].id
	for end, n := r.now.Add(d), len(r.out); r.now < end && len(r.out) == n; {
		r.now = min(end, max(r.core.Deadline(), r.now+1))
		r.step()
		doubts, probes := r.questions()
		for _, doubt := range doubts {
			r.core.Liveness(Question{Link: id, Rail: doubt}, signs, r.now)
		}
		for _, probe := range probes {
			r.core.Probed(id, probe, 1000, nil, r.now)
		}
	}
}

// Nothing else is out on the only rail. The peer answers, so it is not silent, and its slice was lost.
func TestALoneSliceThatIsForgottenIsSentAgainSoon(t *testing.T) {
	for _, warm := range []bool{true, false} {
		r := newRig(t, Options{})
		id := r.ends(1, 0, [2]string{"a", "A"})
		p := to(r.core, id)
		limit := time.Second // nobody knows yet how long a slice takes there
		if warm {
			limit = 100 * ms
			r.warm(p)
		}
		begun, b := r.now, r.submit(p, High, kib, clock.Never)
		for copies := 1; copies < 4; copies++ {
			require.Len(t, r.out, 1)
			r.answers(limit<<copies, transport.Signs{Heard: r.now.Add(ms)}) // its system has acknowledged it
			require.Len(t, r.out, 2, "copy %d, warm: %v", copies, warm)
			require.Equal(t, r.out[:1], r.asked)
			r.finish(0, withdrawn)
		}
		r.finish(0, nil)
		require.Equal(t, Completed, r.status(b).State)
		require.NotContains(t, r.kinds(), event.PeerSilent)
		require.Less(t, r.now.Sub(begun), 8*limit)
	}
}

// A peer that is stopped answers no probe, and its system takes the bytes of each. Nothing else moves.
func TestAProbeThatASystemTakesIsNoSignOfItsProcess(t *testing.T) {
	r := newRig(t, Options{})
	id := r.ends(1, 0, [2]string{"a", "A"})
	p := to(r.core, id)
	r.warm(p)
	r.submit(p, High, kib, clock.Never)
	probed, signs := false, transport.Signs{}
	for end := r.now.Add(2 * time.Second); r.now < end; {
		r.now = min(end, max(r.core.Deadline(), r.now+1))
		r.step()
		doubts, probes := r.questions()
		if probed = probed || len(probes) > 0; probed {
			signs.Heard, signs.Moved = r.now, r.now
		}
		for _, doubt := range doubts {
			r.core.Liveness(Question{Link: id, Rail: doubt}, signs, r.now)
		}
	}
	require.True(t, probed)
	require.Contains(t, r.kinds(), event.PeerSilent)
}

// Bytes that are not acknowledged are on their way, and a peer that holds the rail up has them.
func TestASliceOnItsWayIsNotForgotten(t *testing.T) {
	for _, signs := range []transport.Signs{{Unacked: true}, {Held: true}} {
		r := newRig(t, Options{})
		p := to(r.core, r.ends(1, 0, [2]string{"a", "A"}))
		r.warm(p)
		r.submit(p, High, kib, clock.Never)
		r.answers(20*time.Second, signs)
		require.Len(t, r.out, 1)
		require.Empty(t, r.asked)
	}
}

// A peer that stood still answers in any order when it goes on.
func TestAnAnswerBehindAStandstillSendsNothingAgain(t *testing.T) {
	r := newRig(t, Options{})
	id := r.ends(1, 0, [2]string{"a", "A"})
	p := to(r.core, id)
	r.warm(p)
	b := r.submit(p, High, 4*64*kib, clock.Never)
	require.Len(t, r.out, 4)
	for range 300 {
		r.wait(ms)
	}
	r.core.Probed(id, railOf(id, 0, 1), clock.Time(300*ms), nil, r.now)
	require.Empty(t, r.step())
	for len(r.out) > 0 {
		r.wait(ms)
		r.finish(0, nil)
	}
	require.Equal(t, Status{State: Completed, Attempts: 1, Bytes: 4 * 64 * kib}, r.status(b))
}

// The others have come back, so that nothing passes the slice any more.
func TestASliceThatOthersHavePassedIsSentAgainSoon(t *testing.T) {
	r := newRig(t, Options{})
	p := to(r.core, r.link(1, 0, 1, 1<<20)) // without probes
	r.warm(p)
	lost := r.submit(p, High, kib, clock.Never)
	for range 9 {
		r.submit(p, High, kib, clock.Never)
	}
	for len(r.out) > 1 {
		r.finish(1, nil)
	}
	r.answers(100*ms, transport.Signs{})
	require.Len(t, r.out, 2)
	r.finish(0, withdrawn)
	r.finish(0, nil)
	require.Equal(t, Completed, r.status(lost).State)
}

// Slices that are passed for a moment come by another connection of the rail.
func TestSlicesThatComeInAnotherOrderAreSentOnce(t *testing.T) {
	r := newRig(t, Options{})
	p := to(r.core, r.link(1, 0, 1, 1<<20))
	r.warm(p)
	for range 100 {
		b := r.submit(p, High, 8*64*kib, clock.Never)
		for len(r.out) > 0 {
			for range 8 {
				require.Empty(t, r.wait(ms))
			}
			r.finish(len(r.out)-1, nil)
		}
		require.EqualValues(t, 1, r.status(b).Attempts)
	}
}

// A rail that loses each copy answers its probes, so that no silence is a reason to leave it.
func TestATaskLeavesARailThatLosesEachCopy(t *testing.T) {
	r := newRig(t, Options{Failovers: 3})
	id := r.ends(1, 0, [2]string{"a", "A"})
	other := r.link(1, 1, 1, 1<<20)
	p := to(r.core, id, other)
	r.warm(to(r.core, id))
	b := r.submit(p, High, kib, clock.Never)
	for begun := r.now; r.out[0].Rail.Link == transport.Link(id); {
		require.Less(t, r.now.Sub(begun), 2*r.core.options.AttemptLimit)
		r.answers(time.Second, transport.Signs{})
		if len(r.out) > 1 {
			r.finish(0, withdrawn)
		}
	}
	r.drain()
	s := r.status(b)
	require.Equal(t, Completed, s.State)
	require.EqualValues(t, 1, s.Failovers)
}
