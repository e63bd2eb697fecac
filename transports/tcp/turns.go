package tcp

import (
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// Workers schedule connections by strict priority, with a turn of bounded length. The lanes of class 0 are in one
// epoll, all others in a second one, which is in the first: its readiness is one event there among those of class 0.
// A worker serves the events of the first epoll, then one lane of the second for a turn, and looks at the first
// again. So a READ or WRITE of HIGH waits for at most one turn of others on each worker, however many peers keep
// their LOW lanes full. An engine that only uses class 0 pays nothing for it.
//
// The second epoll is watched for edges (EPOLLET): a worker that finds it empty sleeps, and each lane that becomes
// ready wakes one. A worker that gets two ready lanes re-arms one; that edge wakes another worker.

// bulkTurnBytes is the length of a turn: about as many bytes of other classes pass before class 0 is looked at again.
const bulkTurnBytes = 512 << 10

// turn is the budget of a worker at the connection.
func (c *conn) turn() int {
	if c.group > 0 {
		return bulkTurnBytes
	}
	return workerBudget
}

// watchBulk puts the second epoll into the first one (EPOLL_CTL_ADD), or makes it report again if something is ready
// there (EPOLL_CTL_MOD).
func (t *Transport) watchBulk(op int) error {
	event := taggedEvent(unix.EPOLLIN|unix.EPOLLET, tagBulk, 0)
	return unix.EpollCtl(t.epfd, op, t.bulkFd, &event)
}

// work is the life of one of the transport's goroutines: wait for lanes, serve each until it is dry. It ends when the
// stop descriptor becomes readable.
func (t *Transport) work() {
	defer t.workers.Done()
	w := t.newWorker()
	for !t.round(w, -1) {
	}
}

// round waits for events and serves them. It returns true when the worker is to end, which a panic is no reason for.
func (t *Transport) round(w *worker, timeout int) (stop bool) {
	defer t.guard()
	w.passes.Pass(clock.Now())
	n, err := unix.EpollWait(t.epfd, w.event[:], timeout)
	if err == unix.EINTR {
		return false
	} else if err != nil {
		t.host.Log().Error("tcp: epoll_wait", "error", err)
		return true
	}
	stop, bulk := t.handle(w, w.event[:n])
	for bulk && !stop {
		bulk, stop = t.bulkTurn(w, n == 1)
		w.passes.Pass(clock.Now())
	}
	return stop
}

// handle serves events of the first epoll but for that of the second one.
func (t *Transport) handle(w *worker, events []unix.EpollEvent) (stop, bulk bool) {
	for i := range events {
		e := &events[i]
		if c := t.connOf(e); c != nil {
			t.serve(w, c, e.Events, len(events) == 1)
			continue
		} else if e.Fd != 0 {
			continue // it was closed meanwhile
		}
		switch e.Pad & (1<<tagBits - 1) {
		case tagStop:
			return true, bulk
		case tagListener:
			t.accept(w, int(e.Pad>>tagBits))
		case tagBulk:
			bulk = true
		}
	}
	return false, bulk
}

// urgent serves events that have come for class 0 meanwhile. It returns true when the worker is to end; the stop event
// stays, and every worker sees it.
//
// It does nothing inside itself, which happens when a lane that greets there joins the second epoll: another look would
// overwrite the events that are still to be served, and their lanes would sleep for ever (EPOLLONESHOT).
func (t *Transport) urgent(w *worker) (stop bool) {
	if w.inner {
		return false
	}
	w.inner = true
	defer func() { w.inner = false }()
	n, err := unix.EpollWait(t.epfd, w.high[:], 0)
	if err != nil || n == 0 {
		return false
	}
	stop, bulk := t.handle(w, w.high[:n])
	if bulk { // the caller is not done yet: another worker may help
		_ = t.watchBulk(unix.EPOLL_CTL_MOD)
	}
	return stop
}

// bulkTurn serves one lane of the second epoll, and class 0 afterwards. more reports that there was one.
func (t *Transport) bulkTurn(w *worker, alone bool) (more, stop bool) {
	n, err := unix.EpollWait(t.bulkFd, w.low[:], 0)
	if err != nil || n == 0 {
		return false, false
	}
	if n > 1 {
		if other := t.connOf(&w.low[1]); other != nil {
			other.eventTaken()
			other.arm()
		}
	}
	if c := t.connOf(&w.low[0]); c != nil {
		t.serve(w, c, w.low[0].Events, alone && n == 1)
	}
	return true, t.urgent(w)
}

// joinGroup moves a responder's lane, which has greeted, to the epoll of its group.
func (l *responderLane) joinGroup(group uint8) *errs.Error {
	if group == 0 {
		return nil
	}
	l.armMu.Lock()
	defer l.armMu.Unlock()
	l.group = group
	if l.fd < 0 {
		return nil
	}
	err := unix.EpollCtl(l.t.epfd, unix.EPOLL_CTL_DEL, l.fd, nil)
	if err == nil {
		l.interest = 0
		err = l.registerLocked()
	}
	if err != nil {
		return errs.Wrap(errs.Internal, "tcp.accept", err).WithScope(errs.ScopeRail, errs.SideLocal)
	}
	return nil
}
