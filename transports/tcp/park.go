package tcp

import (
	"time"

	"golang.org/x/sys/unix"
)

// parkMost bounds the lanes that one parked waiter listens to; workers keep the others.
const parkMost = 16

// Park sleeps in the kernel on the lanes that owe an answer, so that the answer wakes the waiter itself. Handing it
// on from a worker would cost two more wake-ups. It returns when there was something to read, which it has read, when
// wake became readable, or after timeout. Meanwhile workers keep away from these lanes' read side and serve all
// others. It returns false, at once, when no lane owes anything.
//
// It sleeps on only one of the lanes with much READ payload on its way: other processors should receive the rest.
func (t *Transport) Park(wake int, timeout time.Duration) bool {
	var own [parkMost]*initiatorLane
	var set [parkMost + 1]unix.PollFd
	n, bulk := 0, false
	for l := range t.dialledLanes {
		if n == parkMost || !l.busy.Load() || (bulk && l.bulk.Load()) {
			continue
		}
		if fd := l.sleepOn(); fd >= 0 {
			bulk = bulk || l.bulk.Load()
			own[n], set[n] = l, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}
			n++
		}
	}
	t.Arm() // the others
	if n == 0 {
		return false
	}
	set[n] = unix.PollFd{Fd: int32(wake), Events: unix.POLLIN}
	limit := unix.NsecToTimespec(int64(max(timeout, 0)))
	if _, err := unix.Ppoll(set[:n+1], &limit, nil); err != nil {
		set = [parkMost + 1]unix.PollFd{} // EINTR: the caller looks at its clock and comes back
	}
	w := t.borrow()
	for i, l := range own[:n] {
		l.wokeUp()
		if set[i].Revents != 0 && l.readMu.TryLock() {
			l.drain(w, workerBudget)
			l.readMu.Unlock()
		}
	}
	t.giveBack(w)
	if set[n].Revents != 0 {
		var count [8]byte
		_, _ = unix.Read(wake, count[:]) // non-blocking; the caller looks for its reason
	}
	return true
}

// sleepOn makes workers leave the read side of the lane to a parked waiter. It returns the socket, or -1 if there is
// nothing to wait for any more. A broken socket is readable for ever: waiters that came back to it until it is closed
// would keep all processors from the goroutine that closes it, and a rail that was reset would be noticed 20 ms late.
func (l *initiatorLane) sleepOn() int {
	l.armMu.Lock()
	defer l.armMu.Unlock()
	if l.fd < 0 || l.isDown() {
		return -1
	}
	l.sleepers++
	if l.interest != 0 {
		l.setInterest(0)
	}
	l.deaf.Store(true)
	return l.fd
}

func (l *initiatorLane) wokeUp() {
	l.armMu.Lock()
	l.sleepers--
	l.armMu.Unlock()
}
