package tcp

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// A list reuses its places, shrinks when lanes have left, and may be walked and changed at once.
func TestALaneListReusesItsPlaces(t *testing.T) {
	var tr Transport
	list := &tr.attended[1]
	visible := func() (n int) {
		for range tr.attendedLanes {
			n++
		}
		return n
	}
	lanes := make([]*initiatorLane, 100)
	for i := range lanes {
		lanes[i] = &initiatorLane{}
		list.insert(lanes[i])
		list.insert(lanes[i])
		require.Equal(t, i+1, visible())
	}
	length := len(list.all())
	for range 1000 {
		for _, l := range lanes[:50] {
			list.remove(l, false)
		}
		require.Equal(t, 50, visible())
		for _, l := range lanes[:50] {
			list.insert(l)
			require.Same(t, l, list.all()[l.place].Load())
		}
	}
	require.Len(t, list.all(), length)
	met := 0
	for range tr.attendedLanes {
		if met++; met == 1 {
			for _, l := range lanes[1:] {
				list.remove(l, false)
			}
		}
	}
	require.Equal(t, 1, visible())
	require.LessOrEqual(t, len(list.all()), laneListMin)
	list.remove(lanes[0], true)
	list.insert(lanes[0])
	require.Zero(t, visible(), "a lane that is gone does not come back")
}

// Waiters look at the lanes with something due, not at those of peers that were busy before.
func TestWaitersLookAtNoIdleLane(t *testing.T) {
	near := newTestEndpoint(t, Settings{Lanes: 1})
	tr := near.tr.(*Transport)
	memory := mapping(t, 4096)
	local, _, err := tr.Register(context.Background(), regionOf(memory))
	require.NoError(t, err)
	const peers = 20
	var links [peers]transport.Link
	var keys [peers]transport.RemoteKey
	for i := range links {
		far := newTestEndpoint(t, Settings{Lanes: 1, Workers: 1})
		_, d, err := far.tr.Register(context.Background(), regionOf(mapping(t, 4096)))
		require.NoError(t, err)
		near.change(func() { clear(near.rails) })
		links[i], err = tr.Attach(far.self)
		require.NoError(t, err)
		keys[i], err = tr.Import(links[i], d)
		require.NoError(t, err)
		near.await(t, "a rail", 5*time.Second, func() bool { return len(near.rails) == 1 })
	}
	write := func(to int, class uint8) {
		s := &transport.Slice{Op: transport.Write, Rail: transport.Rail{Link: links[to], Generation: 1},
			LocalKey: local, RemoteKey: keys[to], Local: mem.AddressOf(memory), Length: 4096, Class: class}
		require.Equal(t, 1, tr.Submit([]*transport.Slice{s}))
		for late := time.Now().Add(5 * time.Second); near.end(s).Slice == nil; tr.Poll(8, transport.AllClasses) {
			require.True(t, time.Now().Before(late))
		}
		tr.Arm()
		require.Nil(t, near.end(s).Err)
	}
	for i := range peers {
		write(i, 0)
		write(i, 1)
	}
	for range 2 * calmTurns {
		write(7, 0)
	}
	var attended []*initiatorLane
	for l := range tr.attendedLanes {
		attended = append(attended, l)
	}
	require.Len(t, attended, 1)
	require.Equal(t, links[7], attended[0].link.number)
	for i := range peers {
		for l := range tr.conns.All() {
			if l := tr.initiatorOf(l); l != nil && l != attended[0] {
				require.True(t, l.attended.Load() || l.watched(), "a lane that nobody attends is epoll's")
			}
		}
		write(i, uint8(i%2)) // and it comes back
	}
}

// A lane rests behind a wait. A slice that nobody waits for needs no sweep, and the end of the peer needs no more than
// that.
func TestALaneAtRestServesWhoeverWrites(t *testing.T) {
	near := newTestEndpoint(t, Settings{Lanes: 1})
	far, err := newEndpoint(Settings{Lanes: 1})
	require.NoError(t, err)
	tr := near.tr.(*Transport)
	tr.sweeper.Stop()
	tr.sweeper = time.NewTimer(time.Hour) // nobody sweeps but the test
	from, to := mapping(t, 4096), mapping(t, 4096)
	local, _, err := tr.Register(context.Background(), regionOf(from))
	require.NoError(t, err)
	_, d, err := far.tr.Register(context.Background(), regionOf(to))
	require.NoError(t, err)
	link, err := tr.Attach(far.self)
	require.NoError(t, err)
	key, err := tr.Import(link, d)
	require.NoError(t, err)
	near.await(t, "a rail", 5*time.Second, func() bool { return len(near.rails) == 1 })
	lane := tr.setOf(transport.Rail{Link: link, Generation: 1}).groups[0].lanes()[0]
	rest := func() { // also when a worker was faster than the waiter, and has armed the lane
		tr.Arm()
		lane.armMu.Lock()
		defer lane.armMu.Unlock()
		lane.rests.Store(true)
		lane.setInterest(0)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for turn := range 50 {
		for i := range from {
			from[i] = byte(random.Uint32())
		}
		s := &transport.Slice{Op: transport.Write, Rail: transport.Rail{Link: link, Generation: 1}, LocalKey: local,
			RemoteKey: key, Local: mem.AddressOf(from), Length: uint64(len(from))}
		require.Equal(t, 1, tr.Submit([]*transport.Slice{s}))
		if turn%2 == 0 {
			for late := time.Now().Add(5 * time.Second); near.end(s).Slice == nil; tr.Poll(8, transport.AllClasses) {
				require.True(t, time.Now().Before(late))
			}
			rest()
		} else {
			near.await(t, "the end of a slice that nobody waits for", 5*time.Second, func() bool {
				return near.ends[s].Slice != nil
			})
		}
		require.Nil(t, near.end(s).Err)
		require.Equal(t, from, to)
	}
	rest()
	far.close(t)
	tr.sweep()
	near.await(t, "the end of the rail", 5*time.Second, func() bool { return len(near.rails) == 0 })
}

// end returns the completion of a slice, the zero one before it has come.
func (e *endpoint) end(s *transport.Slice) transport.Completion {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ends[s]
}

// A lane that is about to leave the list for its calm stays if somebody needs it at that moment.
func TestALaneThatNeedsALookIsNotDismissed(t *testing.T) {
	c := newSelf(t, Settings{Lanes: 1, Workers: 1}, 4096)
	lane := c.tr.(*Transport).setOf(c.rails[0].Rail).groups[0].lanes()[0]
	lane.expect()
	lane.dismiss()
	require.True(t, lane.attended.Load(), "an answer is due")
	lane.busy.Store(false)
	lane.armMu.Lock()
	lane.setInterest(0)
	lane.armMu.Unlock()
	lane.dismiss()
	require.True(t, lane.watched(), "a waiter that disarmed it may have left")
	require.False(t, lane.attended.Load())
}

// A worker leaves a lane to a waiter, and the waiter leaves before the lane is on its list. Then the worker arms it.
func TestALaneThatIsLeftToAWaiterWhoLeavesIsArmed(t *testing.T) {
	c := newSelf(t, Settings{Lanes: 1, Workers: 1}, 4096)
	tr := c.tr.(*Transport)
	lane := tr.setOf(c.rails[0].Rail).groups[0].lanes()[0]
	list := &tr.attended[lane.group]
	for range 100 {
		list.remove(lane, false)
		lane.armMu.Lock()
		lane.setInterest(0)
		lane.armMu.Unlock()
		tr.polling[lane.group].Store(true)
		list.mu.Lock() // the worker stops on its way to the list
		armed := make(chan struct{})
		go func() {
			defer close(armed)
			lane.arm()
		}()
		for lane.armMu.TryLock() {
			lane.armMu.Unlock()
			runtime.Gosched()
		}
		tr.Arm()
		list.mu.Unlock()
		<-armed
		require.True(t, lane.watched())
	}
}

// Slices of several submitters complete without a waiter, also when one was polling a moment ago.
func TestSlicesCompleteAfterEveryWaiterHasLeft(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	c := newSelf(t, Settings{Lanes: 1, Workers: 1}, 1<<20)
	tr := c.tr.(*Transport)
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for range 500 {
				s := c.slice(transport.Write, 0, i<<16, 64)
				s.Remote += 1 << 19
				s.Class = uint8(random.IntN(2))
				for tr.Submit([]*transport.Slice{s}) == 0 {
					tr.Poll(4, transport.AllClasses)
				}
				for range random.IntN(4) {
					tr.Poll(4, transport.AllClasses)
				}
				tr.Arm()
				for range random.IntN(2 * calmTurns) {
					tr.Arm()
				}
				c.await(t, "the end without a waiter", 10*time.Second, func() bool { return c.ends[s].Slice != nil })
			}
		})
	}
	group.Wait()
}

// A lane's socket is full while another waiter polls, and that one leaves without another look. Then epoll looks at
// both sides of the lane.
func TestAFullSocketIsWatchedWhenThePollerLeaves(t *testing.T) {
	c := newSelf(t, Settings{Lanes: 1, Workers: 1}, 4096)
	tr := c.tr.(*Transport)
	lane := tr.setOf(c.rails[0].Rail).groups[0].lanes()[0]
	lane.arm()
	require.True(t, lane.watched())
	lane.writeMu.Lock() // no worker writes meanwhile
	defer lane.writeMu.Unlock()
	tr.polling[lane.group].Store(true)
	lane.unfinished()
	lane.arm()
	require.True(t, lane.attended.Load())
	tr.Arm()
	lane.armMu.Lock()
	defer lane.armMu.Unlock()
	require.True(t, lane.interest == unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLOUT || lane.interest == 0 && lane.held,
		"epoll looks for %#x", lane.interest)
}

// A worker that comes for an event while a waiter reads leaves the lane disarmed. The waiter arms it, also one that
// is not attended any more.
func TestAReaderArmsALaneThatAWorkerCameFor(t *testing.T) {
	c := newSelf(t, Settings{Lanes: 1, Workers: 1}, 4096)
	tr := c.tr.(*Transport)
	lane := tr.setOf(c.rails[0].Rail).groups[0].lanes()[0]
	require.True(t, lane.takeReading())
	w := tr.borrow()
	tr.serve(w, &lane.conn, unix.EPOLLIN, false)
	tr.giveBack(w)
	require.False(t, lane.watched())
	lane.letGo()
	require.True(t, lane.watched())
}
