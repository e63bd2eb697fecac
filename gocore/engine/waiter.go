package engine

import (
	"sync/atomic"
	"time"
)

// waiter parks one thread, on the channel or in the kernel on a transport's sockets. The channel has room for one
// token, so that waking never blocks; a thread in the kernel is woken by the signal. The timer is stopped between
// waits.
type waiter struct {
	wake   chan struct{}
	timer  *time.Timer
	signal *signal     // nil if there was no descriptor left
	parked atomic.Bool // in the kernel, or about to be
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
