package faulty

import (
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

// later delivers what was delayed. Its goroutine starts with the transport and ends in stop, which delivers the rest at
// once; it sleeps while nothing is delayed. What it holds is bounded by the slices outstanding.
type later struct {
	t    *Transport
	wake chan struct{}
	quit chan struct{}
	done sync.WaitGroup

	mu   sync.Mutex
	list []delayed
}

type delayed struct {
	at  clock.Time
	end transport.Completion // Slice nil: Ready of rail
	of  transport.Rail
}

func (l *later) start(t *Transport) {
	l.t, l.wake, l.quit = t, make(chan struct{}, 1), make(chan struct{})
	l.done.Go(l.run)
}

func (l *later) stop() {
	l.mu.Lock()
	select {
	case <-l.quit:
	default:
		close(l.quit)
	}
	l.mu.Unlock()
	l.done.Wait()
}

func (l *later) complete(c transport.Completion, by time.Duration) {
	l.add(delayed{at: clock.Now().Add(by), end: c})
}

func (l *later) ready(rail transport.Rail) { l.add(delayed{at: clock.Now(), of: rail}) }

func (l *later) add(d delayed) {
	l.t.engaged.Add(1)
	l.mu.Lock()
	l.list = append(l.list, d)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *later) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-l.quit:
			l.deliver(clock.Never)
			return
		case <-l.wake:
		case <-timer.C:
		}
		if next := l.deliver(clock.Now()); next != clock.Never {
			timer.Reset(next.Sub(clock.Now()))
		}
	}
}

// deliver hands over what is due and says when the next is.
func (l *later) deliver(now clock.Time) clock.Time {
	var due []delayed
	next := clock.Never
	l.mu.Lock()
	left := l.list[:0]
	for _, d := range l.list {
		if d.at <= now {
			due = append(due, d)
		} else {
			left, next = append(left, d), min(next, d.at)
		}
	}
	l.list = left
	l.mu.Unlock()
	for _, d := range due {
		l.t.engaged.Add(-1)
		if d.end.Slice != nil {
			l.t.sink.Complete([]transport.Completion{d.end})
		} else {
			l.t.sink.Ready(d.of)
		}
	}
	return next
}
