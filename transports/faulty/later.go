package faulty

import (
	"slices"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// later runs postponed functions at their times. Its goroutine starts with the transport and ends in stop, which does
// the rest at once; it sleeps while there is nothing. Its list is bounded by the slices and probes outstanding.
type later struct {
	wake chan struct{}
	quit chan struct{}
	once sync.Once
	done sync.WaitGroup

	mu   sync.Mutex
	list []task
}

type task struct {
	at clock.Time
	do func()
}

func (l *later) start() {
	l.wake, l.quit = make(chan struct{}, 1), make(chan struct{})
	l.done.Go(l.run)
}

func (l *later) stop() {
	l.once.Do(func() { close(l.quit) })
	l.done.Wait()
	l.carryOut(clock.Never) // those that came between
}

// at calls do at a time, on the goroutine of later.
func (l *later) at(when clock.Time, do func()) {
	l.mu.Lock()
	l.list = append(l.list, task{when, do})
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
			l.carryOut(clock.Never)
			return
		case <-l.wake:
		case <-timer.C:
		}
		if next := l.carryOut(clock.Now()); next != clock.Never {
			timer.Reset(next.Sub(clock.Now()))
		}
	}
}

// carryOut runs the due functions, in the order of time, and returns the time of the next.
func (l *later) carryOut(until clock.Time) clock.Time {
	var due []task
	next := clock.Never
	l.mu.Lock()
	left := l.list[:0]
	for _, d := range l.list {
		if d.at <= until {
			due = append(due, d)
		} else {
			left, next = append(left, d), min(next, d.at)
		}
	}
	clear(l.list[len(left):])
	l.list = left
	l.mu.Unlock()
	slices.SortStableFunc(due, func(a, b task) int { return int(a.at - b.at) })
	for _, d := range due {
		d.do()
	}
	return next
}
