package main

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

// Load is an actor that keeps moves under way.
type Load struct{ netbed.Actor }

// Flow is one worker's moves of one size, each after the end of the one before. Its place is its own.
type Flow struct {
	Op     transport.Op
	Class  uint8
	Offset uint64
	Bytes  uint64
	Gap    time.Duration // between the begins of moves, 0: none waits
	Cancel time.Duration // after which each is cancelled, 0: never
}

// Work is the task of an actor, for a time.
type Work struct {
	Flows []Flow
	For   time.Duration
}

// Span is the time of a move, on the clock that all processes of a machine share.
type Span struct{ Begin, End clock.Time }

func (s Span) took() time.Duration { return s.End.Sub(s.Begin) }

// Run returns the spans of each flow.
func (l *Load) Run(work Work, spans *[][]Span) error {
	*spans = make([][]Span, len(work.Flows))
	errs := make([]error, len(work.Flows))
	until := clock.Now().Add(work.For)
	var wait sync.WaitGroup
	for i, f := range work.Flows {
		wait.Go(func() { (*spans)[i], errs[i] = l.flow(f, until) })
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *Load) flow(f Flow, until clock.Time) (spans []Span, err error) {
	for due := clock.Now(); due < until; {
		s, err := l.one(&f)
		if err != nil {
			return nil, err
		}
		spans = append(spans, s)
		due = max(due.Add(f.Gap), s.End)
		if rest := min(due, until).Sub(clock.Now()); rest > 0 {
			pause(rest)
		}
	}
	return spans, nil
}

// one carries out a move of a flow, or cancels it.
func (l *Load) one(f *Flow) (s Span, err error) {
	r := engine.Request{Source: l.Address(f.Offset), Length: f.Bytes,
		Remote: engine.Remote{Segment: l.Segment, Offset: f.Offset}}
	r.Op, r.Class = f.Op, f.Class
	s.Begin = clock.Now()
	id, err := l.Engine.Move(&r)
	if err != nil {
		return s, err
	}
	if f.Cancel > 0 {
		pause(f.Cancel)
		if _, err := l.Engine.Cancel(id, -1); err != nil {
			return s, err
		}
	}
	if !l.Engine.Wait(id, forked.Patience).Terminal() {
		return s, fmt.Errorf("a move has no end within %v", forked.Patience)
	}
	s.End = clock.Now()
	sum, err := l.Engine.Summary(id)
	if err == nil && f.Cancel == 0 && sum.State != dispatch.Completed {
		err = fmt.Errorf("a move of %d bytes ended %v: %w", f.Bytes, sum.State, sum.Err)
	}
	if err == nil {
		err = l.Engine.FreeBatch(id)
	}
	return s, err
}

// spans of the engine here, by flow.
func (t *tent) spans(work Work) (list [][]Span, err error) {
	err = t.near.Call("Load.Run", work, &list)
	return list, err
}

// several are flows side by side that differ in their place.
func several(n int, f Flow) (list []Flow) {
	for i := range n {
		g := f
		g.Offset += uint64(i) * f.Bytes
		list = append(list, g)
	}
	return list
}

// pause blocks the thread: in the guest, Go's timers are late when all threads are busy.
func pause(d time.Duration) {
	for left := unix.NsecToTimespec(int64(max(d, 0))); unix.Nanosleep(&left, &left) == unix.EINTR; {
	}
}
