package engine

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
)

// waiter parks one thread, on the channel or in the kernel on descriptors of transports. The channel has room for one
// token, so that waking never blocks; a thread in the kernel is woken by the signal. The timer is stopped between
// waits.
type waiter struct {
	wake   chan struct{}
	timer  *time.Timer
	signal *signal     // nil if there was no descriptor left
	parked atomic.Bool // in the kernel, or about to be

	classes transport.Classes // of the batch that it waits for

	// Of the parked thread, used again by the next one.
	watches []transport.Watch
	ends    []int // of the watches of each parker, in the engine's order
	set     []unix.PollFd
	bells   *epollSet // nil before the first bell
}

// waiterPool has the waiters that no thread uses. Guarded by the engine's mutex.
type waiterPool struct {
	idle      []*waiter
	closed    bool
	epollSets atomic.Int32 // of all waiters; any goroutine may use it
}

// get returns an unused waiter.
func (p *waiterPool) get() *waiter {
	if n := len(p.idle); n > 0 {
		w := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return w
	}
	w := &waiter{wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	w.signal, _ = newSignal() // without one it parks on the channel
	return w
}

// put gives a waiter back.
func (p *waiterPool) put(w *waiter) {
	if p.closed {
		w.close()
		return
	}
	p.idle = append(p.idle, w)
}

// close closes the waiters, each that a thread uses when it is given back.
func (p *waiterPool) close() {
	for _, w := range p.idle {
		w.close()
	}
	p.idle, p.closed = nil, true
}

func (w *waiter) close() {
	if w.signal != nil {
		_ = w.signal.close()
	}
	if w.bells != nil {
		w.bells.close()
	}
}

// await parks on the channel until the waiter is woken, or for limit.
func (w *waiter) await(limit time.Duration) {
	w.timer.Reset(limit)
	select {
	case <-w.wake:
	case <-w.timer.C:
	}
	w.timer.Stop()
}

// wakeUp wakes the waiter's thread wherever it is parked. It never blocks.
func (w *waiter) wakeUp() {
	wake(w.wake)
	if w.parked.Load() {
		w.signal.raise()
	}
}

// sleep sleeps until a watch is ready or the waiter is woken, or for limit, and notes the ready ones. A signal of the
// system ends it early with none.
func (w *waiter) sleep(limit time.Duration) {
	hang := false
	w.set = w.set[:0]
	for i := range w.watches {
		if hang = hang || w.watches[i].Hangs; !w.watches[i].Hangs {
			w.set = append(w.set, unix.PollFd{Fd: w.watches[i].Fd, Events: w.watches[i].Events})
		}
	}
	switch {
	case !hang:
		w.ppoll(w.signal.fd, limit)
	case len(w.set) == 0 && limit >= time.Millisecond:
		w.bells.sleep(w, int(min(limit, time.Hour).Milliseconds())) // the caller sleeps for the rest
	case w.ppoll(w.bells.epoll, limit):
		w.bells.sleep(w, 0)
	}
}

// ppoll sleeps on the set and on one descriptor more, by which the waiter is woken. It reports whether that is ready.
func (w *waiter) ppoll(fd int, limit time.Duration) bool {
	w.set = append(w.set, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	left := unix.NsecToTimespec(int64(max(limit, 0)))
	if _, err := unix.Ppoll(w.set, &left, nil); err != nil {
		return false
	}
	k := 0
	for i := range w.watches {
		if !w.watches[i].Hangs {
			w.watches[i].Ready = w.set[k].Revents
			k++
		}
	}
	woken := w.set[k].Revents != 0
	if woken && fd == w.signal.fd {
		w.signal.clear()
	}
	return woken
}
