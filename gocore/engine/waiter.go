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
}

// newWaiter returns an unused waiter. The caller holds e.mu.
func (e *Engine) newWaiter() *waiter {
	if n := len(e.waiters); n > 0 {
		w := e.waiters[n-1]
		e.waiters = e.waiters[:n-1]
		return w
	}
	w := &waiter{wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	w.signal, _ = newSignal() // without one it parks on the channel
	return w
}

// putWaiter gives a waiter back. The caller holds e.mu.
func (e *Engine) putWaiter(w *waiter) {
	if e.gone {
		w.close()
		return
	}
	e.waiters = append(e.waiters, w)
}

func (w *waiter) close() {
	if w.signal != nil {
		_ = w.signal.close()
	}
}

// wakeUp wakes the waiter's thread wherever it is parked. It never blocks.
func (w *waiter) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
	if w.parked.Load() {
		w.signal.raise()
	}
}

// ppoll sleeps until a watch is ready or the waiter is woken, or for limit, and notes the ready ones. A signal of the
// system ends it early with none.
func (w *waiter) ppoll(limit time.Duration) {
	w.set = w.set[:0]
	for i := range w.watches {
		w.set = append(w.set, unix.PollFd{Fd: w.watches[i].Fd, Events: w.watches[i].Events})
	}
	w.set = append(w.set, unix.PollFd{Fd: int32(w.signal.fd), Events: unix.POLLIN})
	left := unix.NsecToTimespec(int64(max(limit, 0)))
	if _, err := unix.Ppoll(w.set, &left, nil); err != nil {
		return
	}
	for i := range w.watches {
		w.watches[i].Ready = w.set[i].Revents
	}
	if w.set[len(w.watches)].Revents != 0 {
		w.signal.clear()
	}
}
