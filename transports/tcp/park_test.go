package tcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

// TestWaitersDoNotComeBackToABrokenLane keeps the link's goroutine from closing a lane that has broken with answers
// expected on it. Its socket stays readable, and waiters that were woken by it again and again would take the
// processor that the goroutine needs.
func TestWaitersDoNotComeBackToABrokenLane(t *testing.T) {
	c := newCouple(t, Settings{Addresses: []string{"127.0.0.1"}}, 1<<20)
	tr := c.tr.(*Transport)
	held, free := make(chan struct{}), make(chan struct{})
	require.True(t, tr.links.Lookup(c.link).runOnLink(func(clock.Time) { close(held); <-free }))
	<-held
	lane := tr.setOf(c.rails[0].Rail).groups[1].lanes()[0]
	lane.expect()
	lane.shutdown()
	c.await(t, "the end of the lane", 5*time.Second, func() bool {
		list := tr.Watch(nil, transport.AllClasses)
		for i := range list {
			list[i].Ready = unix.POLLIN
		}
		tr.Woken(list)
		return lane.isDown()
	})
	require.Empty(t, tr.Watch(nil, transport.AllClasses), "nothing comes on it any more")
	tr.Poll(1, transport.AllClasses)
	tr.Arm()
	c.await(t, "the end of every worker's look", 5*time.Second, func() bool { return !lane.watched() })
	close(free)
	c.await(t, "the rail", 5*time.Second, func() bool { return c.rails[0].Rail.Generation == 2 })
}

// TestAWaiterSleepsOnLanesOfItsClassesAlone expects answers in both groups of classes. A waiter of HIGH that answers of
// LOW wake works for LOW, and waits for a processor later.
func TestAWaiterSleepsOnLanesOfItsClassesAlone(t *testing.T) {
	c := newCouple(t, Settings{Addresses: []string{"127.0.0.1"}}, 1<<20)
	tr := c.tr.(*Transport)
	groups := &tr.setOf(c.rails[0].Rail).groups
	urgent, others := groups[0].lanes()[0], groups[1].lanes()[0]
	urgent.expect()
	others.expect()
	for classes, want := range map[transport.Classes][]int{
		0: nil, 1: {urgent.fd}, 2: {others.fd}, 4: {others.fd}, 6: {others.fd}, 5: {urgent.fd, others.fd},
		transport.AllClasses: {urgent.fd, others.fd},
	} {
		list := tr.Watch(nil, classes)
		var fds []int
		for i := range list {
			fds = append(fds, int(list[i].Fd))
		}
		tr.Arm()
		tr.Woken(list)
		tr.Arm()
		require.ElementsMatch(t, want, fds, "classes %b", classes)
	}
}

// TestAWaiterLooksAtLanesOfItsClassesAlone: workers keep the lanes of other classes meanwhile. A waiter of HIGH would
// read LOW's answers, and send LOW's next slices.
func TestAWaiterLooksAtLanesOfItsClassesAlone(t *testing.T) {
	c := newCouple(t, Settings{Addresses: []string{"127.0.0.1"}}, 1<<20)
	tr := c.tr.(*Transport)
	groups := &tr.setOf(c.rails[0].Rail).groups
	lanes := [2]*initiatorLane{groups[0].lanes()[0], groups[1].lanes()[0]}
	for classes, own := range map[transport.Classes][2]bool{
		0: {}, 1: {true, false}, 2: {false, true}, 6: {false, true}, 5: {true, true},
		transport.AllClasses: {true, true},
	} {
		for _, l := range lanes {
			l.arm()
			l.expect()
		}
		tr.Poll(8, classes)
		for i, l := range lanes {
			require.Equal(t, own[i], !l.busy.Load(), "classes %b, group %d: a look finds nothing due", classes, i)
			l.eventTaken() // as a worker does that serves it
			l.arm()
			require.Equal(t, own[i], !l.watched(), "classes %b, group %d", classes, i)
		}
		tr.Arm()
	}
}
