package tcp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

// broad is a link with three lanes for class 0, and memory of which the halves are moved to each other.
func broad(t *testing.T) *couple {
	return newSelf(t, Settings{Lanes: 3, Addresses: []string{"127.0.0.1"}}, 16<<20)
}

// background moves the first half of the memory onto the second by slices of a class, and looks at both.
func (c *couple) background(t *testing.T, class uint8, size int) {
	t.Helper()
	half := len(c.memory) / 2
	fillPattern(c.memory[:half], uint64(time.Now().UnixNano()))
	clear(c.memory[half:])
	var list []*transport.Slice
	for at := 0; at < half; at += size {
		s := c.slice(transport.Write, 0, at, size)
		s.Class, s.Remote = class, s.Remote+uint64(half)
		list = append(list, s)
	}
	c.carry(t, list)
	for _, s := range list {
		require.Nil(t, c.ends[s].Err)
	}
	require.Equal(t, c.memory[:half], c.memory[half:])
}

func fillPattern(b []byte, seed uint64) {
	for i := range b {
		b[i] = byte(uint64(i)*2654435761 + seed + uint64(i)>>13)
	}
}

// sockets counts both ends of all lanes.
func (c *couple) sockets() int { return c.tr.(*Transport).conns.Len() }

func TestTheFirstLargeSliceOfTheBackgroundWidensItsRail(t *testing.T) {
	c := broad(t)
	set := c.tr.(*Transport).setOf(c.rails[0].Rail)
	c.background(t, 0, 1<<20)
	c.background(t, 2, 32<<10)
	require.Equal(t, 2*(3+1), c.sockets(), "neither class 0 nor small slices need more")
	c.background(t, 2, 1<<20)
	require.Eventually(t, func() bool { return len(set.groups[1].lanes()) == 3 }, 10*time.Second, time.Millisecond)
	require.Equal(t, 2*(3+3), c.sockets())
	c.background(t, 1, 1<<20)
	for i, l := range set.groups[1].lanes() {
		l.mu.Lock()
		require.NotZero(t, l.out.tail, "lane %d has carried nothing", i)
		l.mu.Unlock()
	}
	require.Same(t, set, c.tr.(*Transport).setOf(c.rails[0].Rail), "the rail is the same generation")
}

func TestARailThatCannotGetWiderGoesOn(t *testing.T) {
	c := broad(t)
	set := c.tr.(*Transport).setOf(c.rails[0].Rail)
	r, ended := set.rail, make(chan bool, 1)
	require.True(t, r.link.runOnLink(func(clock.Time) { r.remote = netip.MustParseAddrPort("127.0.0.1:1") }))
	c.background(t, 2, 1<<20)
	require.Eventually(t, func() bool {
		return r.link.runOnLink(func(clock.Time) { ended <- set.widened && r.extra == nil }) && <-ended
	}, 10*time.Second, time.Millisecond)
	c.background(t, 2, 1<<20)
	require.Len(t, set.groups[1].lanes(), 1)
	require.Equal(t, 2*(3+1), c.sockets())
	require.Same(t, set, c.tr.(*Transport).setOf(c.rails[0].Rail))
}

// A rail that goes down while it gets wider leaves no socket behind, and the next generation gets wider, too.
func TestRailsEndWhileTheyGetWider(t *testing.T) {
	c := broad(t)
	for range 8 { // the pauses between generations grow
		was := c.rails[0].Rail
		s := c.slice(transport.Write, 0, 0, 1<<20)
		s.Class, s.Remote = 2, s.Remote+uint64(len(c.memory)/2)
		require.Equal(t, 1, c.tr.Submit([]*transport.Slice{s}))
		c.tr.Fence(was)
		c.awaitEnds(t, 10*time.Second, s)
		c.await(t, "the next generation", 10*time.Second, func() bool {
			return c.rails[0].Rail.Generation > was.Generation
		})
	}
	c.background(t, 2, 1<<20)
	require.Eventually(t, func() bool { return c.sockets() == 2*(3+3) }, 10*time.Second, time.Millisecond)
}

// A rail is fenced while another lane is on its way. That lane takes nothing, and ends with the rail.
func TestNothingPassesAFenceOnALaneThatJoinsBehindIt(t *testing.T) {
	c := broad(t)
	was := c.rails[0].Rail
	set := c.tr.(*Transport).setOf(was)
	inside, gate := make(chan struct{}), make(chan struct{})
	require.True(t, set.rail.link.runOnLink(func(clock.Time) { close(inside); <-gate }))
	<-inside // lanes join on that goroutine otherwise
	c.tr.Fence(was)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(fds[1])) }()
	lane := set.newInitiatorLane(fds[0], c.tr.(*Transport).nextLane.Add(1), 1, nil, nil)
	lane.life.advance(eventOpened)
	set.groups[1].add(lane)
	s := c.slice(transport.Write, 0, 0, 1<<20)
	s.Class = 2
	var w *worker
	n, more := lane.accept([]*transport.Slice{s}, &w)
	require.Zero(t, n)
	require.False(t, more)
	close(gate)
	c.await(t, "the next generation", 10*time.Second, func() bool {
		return c.rails[0].Rail.Generation > was.Generation
	})
	require.Equal(t, stateEnded, lane.life.state())
}
