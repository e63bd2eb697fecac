package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/qos"
	"github.com/tent-engine/tent/gocore/transport"
)

// nic brings up a rail of a NIC: 1 GB/s, the given window.
func (r *rig) nic(id plan.LinkID, index int, device string, window uint64) {
	r.core.RailUp(id, transport.RailInfo{Rail: railOf(id, index, 1), Local: "a", Remote: "b", Device: device,
		BytesMax: window, Bandwidth: 1e9}, r.now)
}

// peers makes a link with one rail to each of n peers, all of one NIC, and a plan for each.
func (r *rig) peers(n int, device string, window uint64) (plans []*plan.Plan) {
	for peer := range n {
		id := r.core.AddLink(LinkSpec{Peer: uint32(peer + 1), PeerName: fmt.Sprint("peer", peer),
			Info: &transport.Info{}})
		r.nic(id, 0, device, window)
		plans = append(plans, to(r.core, id))
	}
	return plans
}

// classes sums the bytes of slices by class.
func classes(slices []*transport.Slice) (n [ClassCount]uint64) {
	for _, s := range slices {
		n[s.Class] += s.Length
	}
	return n
}

// ruffle has something urgent pass, so that the rails' NIC is not calm.
func (r *rig) ruffle(p *plan.Plan) {
	r.submit(p, High, 4*kib, clock.Never)
	r.finishOf(High)
}

// finishOf completes the first slice of a class that is out, and returns the slices that were handed out then.
func (r *rig) finishOf(class uint8) []*transport.Slice {
	r.Helper()
	for i, s := range r.out {
		if s.Class == class {
			return r.finish(i, nil)
		}
	}
	require.Fail(r, "nothing of the class is out")
	return nil
}

func TestTheWindowOfLowIsTheNICs(t *testing.T) {
	const window = 500_000 // half a millisecond at 1 GB/s
	alone := newRig(t, Options{})
	p := alone.peers(1, "eth0", 4<<20)[0]
	alone.ruffle(p)
	alone.submit(p, Low, 64<<20, clock.Never)
	require.InDelta(t, window, sum(alone.out), window/4)

	r := newRig(t, Options{})
	peers := r.peers(8, "eth0", 4<<20)
	r.ruffle(peers[0])
	for _, p := range peers {
		r.submit(p, Low, 64<<20, clock.Never)
	}
	require.LessOrEqual(t, sum(r.out), uint64(window), "eight peers have one window, not eight")

	apart := newRig(t, Options{})
	for i := range 8 {
		apart.submit(apart.peers(1, fmt.Sprint("eth", i), 4<<20)[0], Low, 64<<20, clock.Never)
	}
	require.Greater(t, sum(apart.out), uint64(6*window), "eight NICs have eight")
}

// Payload of READs comes over several connections: the slices of a window share the wire and end together. Their time
// must not be taken for the path's delay: the window would grow with it, and the delay with the window.
func TestTheWindowOfLowDoesNotFollowItsOwnDelay(t *testing.T) {
	const rate = 48e6
	r := newRig(t, Options{})
	r.submit(r.peers(1, "eth0", 8<<20)[0], Low, 1<<30, clock.Never)
	begin, most := r.now, uint64(0)
	for r.now.Sub(begin) < 5*time.Second {
		ended := make([]transport.Completion, 0, len(r.out))
		for _, s := range r.out {
			ended = append(ended, transport.Completion{Slice: s, Id: s.Id, Bytes: s.Length})
		}
		bytes := sum(r.out)
		if r.now.Sub(begin) > time.Second {
			most = max(most, bytes)
		}
		r.out = nil
		r.now = r.now.Add(50*time.Microsecond + time.Duration(float64(bytes)/rate*1e9))
		r.core.Complete(0, ended, r.now)
		r.step()
	}
	require.Less(t, most, uint64(rate*0.01), "the window of a calm NIC is 4 ms, and 8 in a probe")
	require.Greater(t, most, uint64(rate*0.004))
}

// The peers of a NIC get the window in turn.
func TestPeersShareTheWindowOfLow(t *testing.T) {
	r := newRig(t, Options{})
	plans := r.peers(5, "eth0", 4<<20)
	for _, p := range plans {
		r.submit(p, Low, 64<<20, clock.Never)
	}
	bytes := map[transport.Link]uint64{}
	for range 1000 {
		r.now = r.now.Add(100 * time.Microsecond)
		for _, s := range r.finish(0, nil) {
			bytes[s.Rail.Link] += s.Length
		}
	}
	total := uint64(0)
	for _, n := range bytes {
		total += n
	}
	require.Len(t, bytes, 5)
	for link, n := range bytes {
		require.InEpsilon(t, total/5, n, 0.2, "link %d", link)
	}
}

// LOW waits now and then until the wire of a NIC is empty, so that its delay can be measured. The slice that empties it
// wakes the other peers, though its own has nothing more to send.
func TestADrainedNICWakesTheOtherPeers(t *testing.T) {
	r := newRig(t, Options{})
	plans := r.peers(3, "eth0", 4<<20)
	r.submit(plans[0], Low, 4*kib, clock.Never)
	r.finish(0, nil) // measures the delay
	r.now = r.now.Add(252 * time.Millisecond)
	r.submit(plans[0], Low, 4*kib, clock.Never)
	r.submit(plans[1], Low, 4*kib, clock.Never)
	r.submit(plans[2], Low, 4*kib, clock.Never)
	require.Len(t, r.out, 1, "the others wait until the wire is empty")
	require.Len(t, r.finish(0, nil), 2)
	r.drain()
	require.Zero(t, r.core.Outstanding())
}

// A bandwidth probe widens the window of LOW at the moment in which it refuses a peer. That peer does not wait for
// slices of its own, for it has none: the wider window takes it at once.
func TestABandwidthProbeLeavesNoPeerBehind(t *testing.T) {
	r := newRig(t, Options{})
	plans := r.peers(2, "eth0", 4<<20)
	r.submit(plans[0], Low, 1<<20, clock.Never) // has no room, so a probe is due in 20 ms
	r.drain()
	r.now = r.now.Add(20 * ms)
	r.submit(plans[0], Low, 7*64*kib, clock.Never)
	require.Len(t, r.out, 7, "they leave no room for an eighth")
	b := r.submit(plans[1], Low, 64*kib, clock.Never)
	require.Len(t, r.out, 8)
	r.drain()
	require.Equal(t, Completed, r.status(b).State)
}

// A peer that stands still holds its slices, and must not hold up LOW to the others of the NIC.
func TestAPeerThatStandsStillKeepsNoWindow(t *testing.T) {
	r := newRig(t, Options{})
	plans := r.peers(2, "eth0", 4<<20)
	r.submit(plans[0], High, 4*kib, clock.Never) // both have delivered before
	r.submit(plans[1], High, 4*kib, clock.Never)
	r.now = r.now.Add(ms / 10)
	r.drain()
	r.submit(plans[0], Low, 64<<20, clock.Never)
	b := r.submit(plans[1], Low, 1<<20, clock.Never)
	require.Zero(t, classesTo(r.out, 2), "the first one has the window")
	for deadline := r.now.Add(100 * ms); !r.status(b).State.Terminal(); {
		require.Less(t, r.now, deadline)
		r.wait(ms / 2)
		for i := 0; i < len(r.out); {
			if r.out[i].Rail.Link == 2 {
				r.finish(i, nil)
			} else {
				i++
			}
		}
	}
	require.Equal(t, Completed, r.status(b).State)
}

// A rail that has ended has no turn any more: the next one of its NIC has it.
func TestARailThatFallsGivesItsTurnOnTheNICToTheNext(t *testing.T) {
	r := newRig(t, Options{})
	plans := r.peers(2, "eth0", 4<<20)
	r.submit(plans[0], Low, 64<<20, clock.Never)
	r.submit(plans[1], Low, 64*kib, clock.Never)
	require.Zero(t, classesTo(r.out, 2), "the first one has the window")
	r.core.RailDown(plans[0].Routes[0].Hops[0].Link, railOf(plans[0].Routes[0].Hops[0].Link, 0, 1), nil, r.now)
	require.NotZero(t, classesTo(r.step(), 2))
}

func classesTo(slices []*transport.Slice, link transport.Link) (n uint64) {
	for _, s := range slices {
		if s.Rail.Link == link {
			n += s.Length
		}
	}
	return n
}

// While HIGH to one peer waits for room, nothing less urgent to another begins on the NIC but the turns of ageing.
func TestOrderIsStrictAcrossThePeersOfANIC(t *testing.T) {
	for _, class := range []uint8{Medium, Low} {
		r := newRig(t, Options{})
		plans := r.peers(2, "eth0", 128*kib)
		high := r.submit(plans[0], High, 1<<20, clock.Never)
		r.submit(plans[1], class, 64<<20, clock.Never)
		require.Zero(t, classes(r.out)[class], "class %d", class)
		for r.core.Counters(0, High).Bytes[transport.Write] < 1<<20-192*kib { // the last of it goes with the next one
			require.Zero(t, classes(r.finishOf(High))[class])
		}
		require.NotZero(t, classes(r.finishOf(High))[class], "it begins with the event that lets it")
		r.drain()
		require.Equal(t, Completed, r.status(high).State)
	}
	other := newRig(t, Options{})
	other.submit(other.peers(1, "eth0", 128*kib)[0], High, 64<<20, clock.Never)
	other.submit(other.peers(1, "eth1", 128*kib)[0], Low, 64<<20, clock.Never)
	require.NotZero(t, classes(other.out)[Low], "another NIC is another matter")
}

func TestHighThatCannotBeSentHoldsNobodyUp(t *testing.T) {
	r := newRig(t, Options{})
	plans := r.peers(2, "eth0", 128*kib)
	b := r.submit(plans[0], High, 64<<20, clock.Never)
	r.submit(plans[1], Low, 64<<20, clock.Never)
	require.Zero(t, classes(r.out)[Low])
	_, err := r.core.Cancel(b, 0, 1, r.now)
	require.Nil(t, err)
	require.NotZero(t, classes(r.step())[Low], "it was canceled")

	r = newRig(t, Options{})
	plans = r.peers(2, "eth0", 128*kib)
	r.submit(plans[0], High, 64<<20, clock.Never)
	r.submit(plans[1], Low, 64<<20, clock.Never)
	r.core.RailDown(1, railOf(1, 0, 1), broken(1), r.now)
	require.NotZero(t, classes(r.step())[Low], "its rail is down")
}

// Under endless HIGH to one peer, LOW to another gets a slice in each time-out, and the counter says so.
func TestAgeingGrantsTurnsAcrossPeers(t *testing.T) {
	r := newRig(t, Options{})
	plans := r.peers(2, "eth0", 128*kib)
	r.submit(plans[0], High, 1<<30, clock.Never)
	r.submit(plans[1], Low, 1<<30, clock.Never)
	turns := 0
	for range 1000 { // 100 ms
		r.now = r.now.Add(ms / 10)
		for _, s := range r.finish(0, nil) {
			if s.Class == Low {
				turns++
			}
		}
	}
	require.InDelta(t, 10, turns, 2)
	require.EqualValues(t, turns, r.core.Counters(0, Low).Promotions)
	require.Zero(t, r.core.Counters(0, High).Promotions)
}

// The timer alone brings a turn: nothing completes, nothing is submitted.
func TestAHeldClassIsLookedAtAgainByItself(t *testing.T) {
	r := newRig(t, Options{SuspectAfter: time.Second})
	due := r.now.Add(10 * ms)
	plans := r.peers(2, "eth0", 128*kib)
	r.submit(plans[0], High, 1<<30, clock.Never)
	r.submit(plans[1], Low, 1<<30, clock.Never)
	require.LessOrEqual(t, r.core.Deadline(), due)
	r.now = r.core.Deadline()
	for classes(r.step())[Low] == 0 {
		require.LessOrEqual(t, r.now, due)
		r.now = r.core.Deadline()
	}
	require.Equal(t, due, r.now)
}

func TestATurnForEachEntry(t *testing.T) {
	r := newRig(t, Options{Rails: []RailOptions{{PerEntry: true}}})
	p := to(r.core, r.link(1, 0, 1, 64*kib))
	r.submit(p, High, 1<<30, clock.Never)
	for range 5 {
		r.submit(p, Low, 1<<30, clock.Never)
	}
	turns := 0
	for range 1000 { // 100 ms
		r.now = r.now.Add(ms / 10)
		for _, s := range r.finish(0, nil) {
			if s.Class == Low {
				turns++
			}
		}
	}
	require.InDelta(t, 45, turns, 5, "none in the first 10 ms, then five in each")
}

// With four NICs and HIGH about, LOW has two of them at any moment, in turn, and goes on; without HIGH it has all.
func TestNICsTakeTurnsInRefusingLow(t *testing.T) {
	r := newRig(t, Options{Rails: []RailOptions{{Filter: qos.Filter{Interval: 200 * time.Microsecond}}}})
	id := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Info: &transport.Info{}})
	for i := range 4 {
		r.nic(id, i, fmt.Sprint("eth", i), 4<<20)
	}
	p := to(r.core, id)
	used := func(slices []*transport.Slice) map[uint16]bool {
		m := map[uint16]bool{}
		for _, s := range slices {
			if s.Class == Low {
				m[s.Rail.Index] = true
			}
		}
		return m
	}
	r.submit(p, Low, 1<<30, clock.Never)
	require.Len(t, used(r.out), 4, "nobody else wants them")
	r.submit(p, High, 4*kib, clock.Never)
	all := map[uint16]bool{}
	for range 8 {
		r.now = (r.now/200000 + 1) * 200000
		var fresh []*transport.Slice
		for range len(r.out) {
			fresh = append(fresh, r.finish(0, nil)...)
		}
		now := used(fresh)
		require.Len(t, now, 2)
		for i := range now {
			all[i] = true
		}
	}
	require.Len(t, all, 4)
	r.now = r.now.Add(20 * ms)
	var fresh []*transport.Slice
	for range len(r.out) {
		fresh = append(fresh, r.finish(0, nil)...)
	}
	require.Len(t, used(fresh), 4, "HIGH has gone")
}

func TestTheFilterLeavesNoClassWithoutARail(t *testing.T) {
	r := newRig(t, Options{Rails: []RailOptions{{Filter: qos.Filter{Interval: 200 * time.Microsecond}}}})
	id := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Info: &transport.Info{}})
	for i := range 3 {
		r.nic(id, i, fmt.Sprint("eth", i), 4<<20)
	}
	p := to(r.core, id)
	for down := range 2 { // with three, two and one rail
		for turn := range 6 {
			r.now = (r.now/200000 + 1) * 200000
			r.submit(p, High, 4*kib, clock.Never)
			before := len(r.out)
			r.submit(p, Low, 4*kib, clock.Never)
			require.Len(t, r.out, before+1, "%d rails down, turn %d", down, turn)
			r.drain()
		}
		r.core.RailDown(id, railOf(id, down, 1), broken(1), r.now)
	}
}

// A rail that is idle but refuses is tried again when the NICs rotate, without any other event.
func TestRotationWakesByItself(t *testing.T) {
	r := newRig(t, Options{SuspectAfter: time.Second,
		Rails: []RailOptions{{Filter: qos.Filter{Interval: 200 * time.Microsecond}}}})
	id := r.core.AddLink(LinkSpec{Peer: 1, PeerName: "peer", Info: &transport.Info{}})
	for i := range 3 {
		r.nic(id, i, fmt.Sprint("eth", i), 4<<20)
	}
	p := to(r.core, id)
	r.submit(p, High, 4*kib, clock.Never)
	r.submit(p, Low, 1<<30, clock.Never)
	r.now = r.core.Deadline()
	require.Zero(t, r.now%200000)
	require.NotZero(t, classes(r.step())[Low], "the next NIC is open now")
}

// A slice in flight counts for its class until it has come back, also on a rail that is replaced.
func TestBooksOfANICAreEven(t *testing.T) {
	r := newRig(t, Options{RetryAfter: ms})
	plans := r.peers(3, "eth0", 1<<20)
	for i, p := range plans {
		r.submit(p, uint8(i), 2<<20, clock.Never)
	}
	r.core.RailDown(3, railOf(3, 0, 1), broken(1), r.now)
	r.step()
	r.core.RailUp(3, transport.RailInfo{Rail: railOf(3, 0, 2), Device: "eth0", BytesMax: 1 << 20}, r.now)
	r.step()
	r.drain()
	for len(r.ended) < 3 {
		r.wait(ms)
		r.drain()
	}
	d := r.core.devices[deviceKey{name: "eth0"}]
	require.Len(t, d.rails, 3)
	require.True(t, d.idle())
	require.Zero(t, d.low)
	require.Equal(t, [ClassCount]int{}, d.waiting)
}

// TestTransportsShareTheWireOfANIC by the system's name of it. Ends without one are each transport's own.
func TestTransportsShareTheWireOfANIC(t *testing.T) {
	r := newRig(t, Options{})
	for number := range uint8(2) {
		id := r.link(uint32(number), number, 0, 0)
		for i, device := range []string{"eth0", ""} {
			info := transport.RailInfo{Rail: railOf(id, i, 1), Local: "end", Device: device, BytesMax: 1 << 20}
			r.core.RailUp(id, info, r.now)
		}
	}
	require.Len(t, r.core.devices, 3)
	require.Len(t, r.core.devices[deviceKey{name: "eth0"}].rails, 2)
	for number := range uint8(2) {
		require.Len(t, r.core.devices[deviceKey{"end", number + 1}].rails, 1)
	}
}

// carry completes slices in their order for a time, 1 GB/s over all NICs, or until nothing is out.
func (r *rig) carry(d time.Duration) {
	for end := r.now.Add(d); len(r.out) > 0 && r.now < end; {
		r.now = r.now.Add(time.Duration(r.out[0].Length))
		r.finish(0, nil)
	}
}

// leastRate is the lowest rate that is believed of a NIC while it carries for a time.
func (r *rig) leastRate(d *device, within time.Duration) float64 {
	least := d.meter.Rate()
	for end := r.now.Add(within); r.now < end; {
		require.NotEmpty(r, r.out)
		r.carry(100 * time.Microsecond)
		least = min(least, d.meter.Rate())
	}
	return least
}

// A NIC that carries 1 GB/s all the time is believed to, whenever its own rate is measured: while several rails share
// it.
func TestANICKeepsItsRateWhoeverSharesIt(t *testing.T) {
	for name, happens := range map[string]func(r *rig, first *plan.Plan){
		"another peer comes while it is busy": func(r *rig, first *plan.Plan) {
			r.submit(first, High, 64<<20, clock.Never)
			r.carry(20 * ms)
			r.onNIC(8)
			r.carry(time.Second)
		},
		"another peer goes, and one comes much later": func(r *rig, first *plan.Plan) {
			gone := r.onNIC(8).Routes[0].Hops[0].Link
			r.submit(first, High, 4<<30, clock.Never)
			r.carry(50 * ms)
			r.core.RailDown(gone, railOf(gone, 0, 1), nil, r.now)
			r.carry(2 * time.Second)
		},
		"this process is stopped": func(r *rig, first *plan.Plan) {
			r.onNIC(8)
			r.submit(first, High, 64<<20, clock.Never)
			r.carry(20 * ms)
			r.now = r.core.Deadline().Add(10 * time.Second)
			r.step()
		},
		"the peer is stopped": func(r *rig, first *plan.Plan) {
			r.onNIC(8)
			r.submit(first, High, 64<<20, clock.Never)
			r.carry(20 * ms)
			for range 1000 {
				r.wait(ms)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{})
			first := r.onNIC(7)
			happens(r, first)
			r.now = r.now.Add(ms)
			second := r.onNIC(9)
			r.submit(second, High, 1<<30, clock.Never)
			r.submit(first, Low, 1<<30, clock.Never)
			d := r.core.link(first.Routes[0].Hops[0].Link).devices[0]
			require.True(t, d.shared)
			require.InEpsilon(t, 1e9, r.leastRate(d, 20*ms), 0.5)
		})
	}
}

// onNIC is a plan for a new peer by a rail of one NIC.
func (r *rig) onNIC(peer uint32) *plan.Plan {
	id := r.core.AddLink(LinkSpec{Peer: peer, PeerName: fmt.Sprint("peer", peer), Info: &transport.Info{}})
	r.nic(id, 0, "eth0", 4<<20)
	return to(r.core, id)
}
