package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/qos"
	"github.com/tent-engine/tent/gocore/transport"
)

// hosted makes a race of one rail on a NIC that other processes use, too, with slots of 2 ms.
func hosted(t *testing.T, slots qos.Slots, rates ...float64) (*race, *host) {
	h := &host{}
	r := newRace(t, Options{Rails: []RailOptions{{Slots: slots}},
		Neighbours: func(uint8, string) qos.Neighbours { return h }}, rates...)
	h.world = r.world
	return r, h
}

const slot = 2 * time.Millisecond

// claim has another process claim slots for a class from now on, every so often, for so long.
func (h *host) claim(class int, every, hold time.Duration) {
	w := h.world
	h.theirs[class] = w.now.Add(hold)
	h.claimed[class] = max(h.claimed[class], h.theirs[class])
	w.after(every, func() { h.claim(class, every, hold) })
}

// While another process has HIGH without end, LOW begins in every third slot only, and gets the bytes of that slot.
func TestLowKeepsItsSlots(t *testing.T) {
	for _, borrow := range []bool{false, true} {
		r, h := hosted(t, qos.Slots{Interval: slot, Borrow: borrow}, 100*megabyte)
		h.claim(High, slot/4, slot)
		k := r.start(8<<20, Low) // the checker looks at the slot of each slice
		took := r.took(k)
		ideal := 3 * idealTime(8<<20, 100*megabyte)
		require.InEpsilon(t, ideal, took, 0.25, "a third of the time")
		low := r.core.Counters(0, Low)
		require.InEpsilon(t, float64(took/(3*slot)), low.SlotWaits, 0.15, "one wait for each round")
		require.InEpsilon(t, float64(took)*2/3/1000, low.SlotWait.Sum, 0.2, "of two slots")
		require.Zero(t, r.core.Counters(0, High).SlotWaits)
	}
}

// With borrowing an idle host's LOW has all slots; without, its own.
func TestSlotsOfAQuietHostAreBorrowed(t *testing.T) {
	const bytes = 8 << 20
	r, _ := hosted(t, qos.Slots{Interval: slot, Borrow: true}, 100*megabyte)
	require.Less(t, r.took(r.start(bytes, Low)), idealTime(bytes, 100*megabyte)*11/10)
	r, _ = hosted(t, qos.Slots{Interval: slot}, 100*megabyte)
	require.InEpsilon(t, 3*idealTime(bytes, 100*megabyte), r.took(r.start(bytes, Low)), 0.25)
}

// The bound of package qos: under endless HIGH of this process and of others, LOW moves a slice in each time-out and
// round.
func TestLowMovesUnderEndlessHighAndSlots(t *testing.T) {
	r, h := hosted(t, qos.Slots{Interval: slot, Borrow: true}, 100*megabyte)
	h.claim(High, slot/4, slot)
	r.start(1<<28, High)
	low := r.start(1<<28, Low)
	bytes, last := uint64(0), r.now
	for end := r.now.Add(2 * time.Second); r.now < end; {
		r.run(r.now.Add(time.Millisecond/4), func() bool { return false })
		if s, _ := r.core.Status(low.batch, 0); s.Bytes > bytes {
			bytes, last = s.Bytes, r.now
		}
		require.Less(t, r.now.Sub(last), 10*ms+3*slot+45*ms, "and the time that the window of HIGH takes on the wire")
	}
	turns := r.core.Counters(0, Low).Promotions
	require.InDelta(t, 2000/14, float64(turns), 40, "once in the time-out and what is left of a round")
	require.Less(t, bytes, uint64(2*100*megabyte/50), "it does not become HIGH because it is large")
}

// Where another process has a short HIGH request now and then, LOW has the time between them, and its own slots.
func TestShortHighLeavesLowTheTimeBetween(t *testing.T) {
	const bytes = 8 << 20
	r, h := hosted(t, qos.Slots{Interval: slot, Borrow: true}, 100*megabyte)
	h.claim(High, slot, slot/8)
	require.Less(t, r.took(r.start(bytes, Low)), idealTime(bytes, 100*megabyte)*12/10)
}

// Requests with short pauses between them are one work: its claims become long, and are renewed rarely.
func TestShortPausesDoNotEndWork(t *testing.T) {
	for _, c := range []struct{ pause, held time.Duration }{{slot / 20, slot}, {slot / 10, slot / 8}} {
		r, h := hosted(t, qos.Slots{Interval: slot, Borrow: true}, 1000*megabyte)
		for range 40 {
			k := r.start(64<<10, High)
			r.run(r.now.Add(time.Second), func() bool { return k.ended })
			r.run(r.now.Add(c.pause), func() bool { return false })
		}
		k := r.start(64<<10, High)
		require.Equal(t, c.held, h.claimed[High].Sub(r.now), "after pauses of %v", c.pause)
		r.run(r.now.Add(time.Second), func() bool { return k.ended })
	}
}

// Work that waits or is in flight keeps its claim although nothing happens. Behind it the claim lasts as long again, a
// slot at most, and nothing is claimed when there is nothing.
func TestWorkKeepsItsClaimAndEndsItSoon(t *testing.T) {
	for _, rate := range []float64{1000, 300, 100, 25, 1} { // one slice of 65 us to 65 ms
		r, h := hosted(t, qos.Slots{Interval: slot, Borrow: true}, rate*megabyte)
		begun := r.now
		k := r.start(64<<10, High)
		for !k.ended {
			r.run(r.now.Add(ms/50), func() bool { return k.ended })
			if r.now == begun || k.ended {
				continue
			}
			require.Greater(t, h.claimed[High], r.now)
			require.EqualValues(t, 64<<10, h.ours)
			require.LessOrEqual(t, r.now.Sub(h.told), slot, "the others see that it is alive")
		}
		require.Zero(t, h.ours)
		left := h.claimed[High].Sub(r.now)
		require.LessOrEqual(t, left, min(max(r.now.Sub(begun), slot/8), slot), "%v MB/s", rate)
		last := h.claimed[High]
		r.run(r.now.Add(time.Second), func() bool { return false })
		require.Equal(t, last, h.claimed[High])
		require.Zero(t, h.claimed[Low])
		require.Greater(t, r.core.Deadline(), r.now.Add(ms), "and nothing wakes up for it")
	}
}

// Of two equal NICs the one that other processes have filled is used less.
func TestTheLoadOfOthersIsSeen(t *testing.T) {
	busy, idle := &host{others: 4 << 20}, &host{}
	r := newRig(t, Options{Neighbours: func(_ uint8, name string) qos.Neighbours {
		return map[string]*host{"eth0": busy, "eth1": idle}[name]
	}})
	id := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Info: &transport.Info{}})
	r.nic(id, 0, "eth0", 4<<20)
	r.nic(id, 1, "eth1", 4<<20)
	r.submit(to(r.core, id), High, 2<<20, clock.Never)
	for _, s := range r.out {
		require.EqualValues(t, 1, s.Rail.Index)
	}
	require.EqualValues(t, 2<<20, idle.ours)
	require.Zero(t, busy.ours)
}

// Others forget bytes in flight that are not confirmed for 200 ms (package share), with slots of any length.
func TestBytesInFlightAreConfirmedAtEveryHeartbeat(t *testing.T) {
	for _, interval := range []time.Duration{slot, time.Second, 2 * time.Second, time.Minute} {
		r, h := hosted(t, qos.Slots{Interval: interval, Borrow: true}, 100*megabyte)
		k := r.start(1<<30, High)
		r.run(r.now.Add(ms), func() bool { return k.ended })
		for end := r.now.Add(5 * time.Second); r.now < end; {
			require.False(t, k.ended)
			require.Less(t, r.now.Sub(h.told), 2*heartbeat, "slots of %v", interval)
			r.run(r.now.Add(ms), func() bool { return k.ended })
		}
	}
}
