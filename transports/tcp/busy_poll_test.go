package tcp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// newDryLane returns a responder without workers, one of its lanes, and the peer's end of it, which sends nothing.
func newDryLane(t *testing.T, s Settings) (tr *Transport, l *responderLane, peer int) {
	tr = newTestEndpoint(t, s).tr.(*Transport)
	stopWorkers(t, tr)
	tr.spinners = max(tr.spinners, 1) // on a machine of one processor, too
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	l = tr.newResponderLane(fds[0], netip.Addr{})
	l.mayBuffer(nil, nil)
	require.NoError(t, l.register())
	return tr, l, fds[1]
}

// spinsOn spins as the worker that has the right to read the lane, and returns how long it did.
func spinsOn(tr *Transport, l *responderLane) (took time.Duration, n int, open bool) {
	l.readMu.Lock()
	defer l.letGo()
	begin := clock.Now()
	n, open = tr.spin(tr.newWorker(), &l.conn)
	return clock.Now().Sub(begin), n, open
}

// TestABusyPollLastsItsTimeAndNoLonger spins where nothing ever comes: each turn, however many were in vain, lasts the
// time of the setting. Without the setting spinning that did not pay is left out.
func TestABusyPollLastsItsTimeAndNoLonger(t *testing.T) {
	const limit = 2 * time.Millisecond
	tr, l, _ := newDryLane(t, Settings{BusyPoll: limit})
	for range 6 {
		took, n, open := spinsOn(tr, l)
		require.Zero(t, n)
		require.True(t, open, "the lane goes on, armed")
		require.GreaterOrEqual(t, took, limit)
		require.Less(t, took, time.Second, "the time is a limit")
		require.Zero(t, tr.spinning.Load(), "the worker sleeps now")
	}
	tr, l, _ = newDryLane(t, Settings{})
	skipped := uint32(0)
	for range 6 {
		spinsOn(tr, l)
		skipped = max(skipped, l.rx.spins.skips)
	}
	require.NotZero(t, skipped, "the default is adaptive")
}

// TestABusyPollLeavesAWorkerForOtherLanes bounds the workers that are away with one lane each: a slice of HIGH on
// another lane finds one that sleeps in epoll.
func TestABusyPollLeavesAWorkerForOtherLanes(t *testing.T) {
	for _, workers := range []int{1, 2, 3} {
		tr := newTestEndpoint(t, Settings{BusyPoll: time.Second, Workers: workers}).tr.(*Transport)
		require.Less(t, tr.spinners, int32(workers))
	}
	tr, l, _ := newDryLane(t, Settings{BusyPoll: time.Second})
	tr.spinning.Store(tr.spinners)
	took, _, open := spinsOn(tr, l)
	require.True(t, open)
	require.Less(t, took, time.Second/2, "all that may spin do")
}

// TestABusyPollEndsWithItsLaneAndItsTransport: the goroutine that closes either waits for the reader.
func TestABusyPollEndsWithItsLaneAndItsTransport(t *testing.T) {
	ends := map[string]func(tr *Transport, l *responderLane){
		"lane":      func(_ *Transport, l *responderLane) { l.broke(kit.Closed("test")) },
		"transport": func(tr *Transport, _ *responderLane) { tr.cancel() },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			tr, l, _ := newDryLane(t, Settings{BusyPoll: time.Second})
			took := make(chan time.Duration, 1)
			go func() {
				d, _, _ := spinsOn(tr, l)
				took <- d
			}()
			require.Eventually(t, func() bool { return tr.spinning.Load() == 1 }, time.Minute, time.Microsecond)
			end(tr, l)
			require.Less(t, <-took, time.Second*9/10)
			require.Zero(t, tr.spinning.Load())
		})
	}
}

// TestHighIsServedBesideALaneThatIsSpunOn: a WRITE of HIGH comes and goes on its own lane while a worker spins on the
// lane of LOW. The order of both ends shows it, however slow the machine is: in one attempt the spin lasts longer. A
// responder with one worker does not spin.
func TestHighIsServedBesideALaneThatIsSpunOn(t *testing.T) {
	const high, low, attempts, bound = 0, 1, 20, 100 * time.Millisecond
	for _, workers := range []int{1, 2} {
		c := newSelf(t, Settings{BusyPoll: bound, Workers: workers, Lanes: 1}, 8192)
		tr := c.tr.(*Transport)
		if tr.spinners == 0 {
			continue
		}
		move := func(class uint8) {
			s := c.slice(transport.Write, 0, 0, 4096)
			s.Remote, s.Class = 4096, class
			require.Equal(t, 1, tr.Submit([]*transport.Slice{s}))
			for late := time.Now().Add(10 * time.Second); c.end(s).Slice == nil; tr.Poll(8, transport.AllClasses) {
				require.True(t, time.Now().Before(late))
			}
			tr.Arm()
			require.Nil(t, c.end(s).Err)
		}
		move(high) // both lanes are there
		spun, beside := 0, false
		for n := 0; n < attempts && !beside; n++ {
			move(low)
			var lane *responderLane
			for late := time.Now().Add(2 * bound); lane == nil && time.Now().Before(late); {
				lane = spunOn(tr, low)
			}
			if lane != nil { // else HIGH's was spun on still, or the worker was not let run
				spun++
				move(high)
				beside = spunOn(tr, low) == lane
			}
		}
		require.True(t, beside, "workers: %d: HIGH has waited for the end of each of %d spins", workers, spun)
	}
}

// spunOn returns the lane of a group that a worker reads now, while one spins; nil if there is none.
func spunOn(tr *Transport, group int) *responderLane {
	if tr.spinning.Load() == 0 {
		return nil
	}
	for _, each := range tr.attachments.ofPeer(nil) {
		for _, l := range each.allLanes() {
			l.armMu.Lock() // a lane that is new joins its group beside this
			other := int(l.group) != group
			l.armMu.Unlock()
			if other {
				continue
			}
			if !l.readMu.TryLock() {
				return l
			}
			l.letGo()
		}
	}
	return nil
}

// TestAWorkerLooksForTheNextTransferBehindAWholeOne has a turn at a part of a WRITE, whose sender is busy, and one at
// the rest of it.
func TestAWorkerLooksForTheNextTransferBehindAWholeOne(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	p := newPacketsOver(t, fds[0], fds[1], 1<<20, shield{})
	p.conn.t.spinners = max(p.conn.t.spinners, 1)
	frame, payload := p.frame(1, 90_000, 30_000)
	looks := func(part []byte) (failed uint32) {
		p.rx.spins = spinRecord{}
		n, err := unix.Write(p.other, part)
		require.NoError(t, err)
		require.Equal(t, len(part), n, "the socket holds all of it")
		p.readMu.Lock()
		require.True(t, p.conn.t.read(p.w, &p.conn, true))
		return p.rx.spins.misses
	}
	require.Zero(t, looks(frame[:20_000]))
	require.EqualValues(t, 1, looks(frame[20_000:]))
	require.Equal(t, payload, p.memory[:len(payload)])
}
