package tcp

import (
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
)

// Watch implements transport.Parker. It appends the lanes that owe an answer, so that the answer wakes the waiter
// itself: handing it on from a worker would cost two more wake-ups. Workers keep away from the read side of these lanes
// and serve all others.
//
// Lanes of other classes stay with the workers. It takes only one of the lanes with much READ payload on its way: other
// processors should receive the rest.
func (t *Transport) Watch(list []transport.Watch, classes transport.Classes) []transport.Watch {
	bulk, room := false, transport.WatchesMost
	for l := range t.attendedLanes {
		if room == 0 || !l.carries(classes) || !l.busy.Load() || (bulk && l.bulk.Load()) {
			continue
		}
		if fd := l.sleepOn(); fd >= 0 {
			bulk = bulk || l.bulk.Load()
			list = append(list, transport.Watch{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP,
				Tag: uint64(l.key)})
			room--
		}
	}
	return list
}

// Woken implements transport.Parker. A lane that was closed meanwhile is not found by its key.
func (t *Transport) Woken(list []transport.Watch) {
	w := t.borrow()
	for i := range list {
		l := t.initiatorOf(connKey(list[i].Tag))
		if l == nil {
			continue
		}
		l.wokeUp()
		if list[i].Ready != 0 && l.readMu.TryLock() {
			l.drain(w, workerBudget)
			l.letGo()
		}
	}
	t.giveBack(w)
}

// sleepOn makes workers leave the read side of the lane to a waiter that sleeps on it. It returns the socket, or -1 if
// there is nothing to wait for any more, or if a worker is at the many answers of the lane already. A broken socket is
// readable for ever: waiters that came back to it until it is closed would keep all processors from the goroutine that
// closes it, and a rail that was reset would be noticed 20 ms late.
func (l *initiatorLane) sleepOn() int {
	l.armMu.Lock()
	defer l.armMu.Unlock()
	if l.fd < 0 || l.held && l.bulk.Load() || l.isDown() {
		return -1
	}
	l.sleepers++
	if left := l.interest &^ uint32(unix.EPOLLIN|unix.EPOLLRDHUP); left != l.interest {
		l.setInterest(left)
	}
	l.deaf.Store(true)
	l.attend() // it may have left the list since the walk, and the waiter's Arm is to find it
	return l.fd
}

func (l *initiatorLane) wokeUp() {
	l.armMu.Lock()
	l.sleepers--
	l.armMu.Unlock()
}
