package clock

import (
	"context"
	"sync"
	"time"
)

const (
	// lookEvery is the length of a look at the time; a pause of this process counts for two of them at most.
	lookEvery = 100 * time.Millisecond

	// longest is the longest limit that is looked after. Beyond it a pause is no matter, and looks are a waste.
	longest = 24 * time.Hour
)

// AfterAwake calls f once limit has passed, of which only the time counts in which this process was let run. A process
// that was stopped, frozen or not given a processor has not waited for its peer meanwhile: the answer may be in its
// socket. F runs on a goroutine of its own. Stop keeps it from being called, unless it has been.
func AfterAwake(limit time.Duration, f func()) (stop func()) { return newWatch(limit, f).stop }

// watch counts the time that this process was let run.
type watch struct {
	f func()

	mu      sync.Mutex
	left    time.Duration
	last    time.Time // the latest look
	timer   *time.Timer
	stopped bool
}

func newWatch(limit time.Duration, f func()) *watch {
	w := &watch{f: f, left: limit, last: time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.next(), w.look)
	return w
}

// next is the time until the next look. The caller holds mu.
func (w *watch) next() time.Duration {
	if w.left > longest {
		return w.left
	}
	return min(w.left, lookEvery)
}

func (w *watch) look() {
	w.mu.Lock()
	over := !w.stopped && w.passed(time.Now())
	switch {
	case over:
		w.stopped = true
	case !w.stopped:
		w.timer.Reset(w.next())
	}
	w.mu.Unlock()
	if over {
		w.f()
	}
}

// passed counts the time since the latest look, and reports whether none is left. The caller holds mu.
func (w *watch) passed(now time.Time) bool {
	since := now.Sub(w.last)
	if w.left <= longest {
		since = min(since, 2*lookEvery)
	}
	w.left, w.last = w.left-since, now
	return w.left <= 0
}

// over is the time at which nothing will be left, unless this process pauses.
func (w *watch) over() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last.Add(w.left)
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.timer.Stop()
}

// WithTimeout is context.WithTimeout by the time of AfterAwake. The deadline of its context moves with each pause.
func WithTimeout(parent context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	c := &awake{Context: parent, done: make(chan struct{})}
	if limit <= 0 {
		c.end(context.DeadlineExceeded)
	}
	c.watch = newWatch(max(0, limit), func() { c.end(context.DeadlineExceeded) })
	leave := context.AfterFunc(parent, func() { c.end(parent.Err()) })
	return c, func() {
		leave()
		c.watch.stop()
		c.end(context.Canceled)
	}
}

// awake is a context that ends with its parent, or when its time is over.
type awake struct {
	context.Context // the parent, for values
	watch           *watch
	done            chan struct{}

	mu  sync.Mutex
	err error
}

func (c *awake) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = cause
		close(c.done)
	}
}

// Done is closed at the end.
func (c *awake) Done() <-chan struct{} { return c.done }

// Err is context.DeadlineExceeded when its time is over.
func (c *awake) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Deadline is its end, unless this process pauses.
func (c *awake) Deadline() (time.Time, bool) {
	own := c.watch.over()
	if at, bounded := c.Context.Deadline(); bounded && at.Before(own) {
		return at, true
	}
	return own, true
}
