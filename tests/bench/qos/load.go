package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/bench/report"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
)

// Load is an actor that floods its peer and asks for small requests at times that were fixed before. How long those
// take counts from the time at which they should have begun, so nothing that delays them hides itself.
type Load struct{ netbed.Actor }

// Work is the task of an actor. Floods begin at once and end at To; the time from From to To counts, on the monotonic
// clock, which all processes of a machine share.
type Work struct {
	Op         transport.Op
	From, To   clock.Time
	Floods     []Flood
	SmallEvery time.Duration // 0: no small requests
	SmallClass uint8
	Seed       uint64 // of the times of small requests
}

// Flood keeps Depth requests under way, each at a place of its own: the first flood begins at offset 0, the next behind
// it.
type Flood struct {
	Class uint8
	Bytes uint64 // of a request
	Depth int
}

// Seen is the record of the time between From and To.
type Seen struct {
	Took    []time.Duration // small requests, from the time at which they should have begun to their end
	Parts   []Parts         // of each
	Flooded []uint64        // bytes acknowledged, by flood
	Done    []Place         // places that were moved whole at least once, in order and without overlap
	Stolen  float64         // share of the machine's time that its host gave to others
}

// Parts are where the time of a small request went. Their sum is its time.
type Parts struct {
	Late time.Duration // until the call was made: the share of the operating system and of this program
	Call time.Duration // until it returned: the core's step, and the system calls of the bytes that have room
	Way  time.Duration // until the core knew the end: queue, wire, the peer and its answer
	Wake time.Duration // until the waiting goroutine ran again
}

// Place is a part of the region.
type Place struct{ Offset, Bytes uint64 }

const (
	smallBytes   = 64 << 10
	smallPlaces  = 32
	smallWorkers = 16 // requests that can be under way; more arrivals wait, and their time counts
)

// tally counts the bytes of a flood.
type tally struct {
	mu      sync.Mutex
	live    map[dispatch.BatchID]bool
	ended   uint64 // bytes of requests that have ended
	stopped bool
	done    map[uint64]uint64 // bytes by offset
	failed  error
}

// Run does the work and returns its record. A request that fails is an error, but for those that were cancelled at To.
func (l *Load) Run(w Work, seen *Seen) error {
	var running sync.WaitGroup
	tallies := make([]*tally, len(w.Floods)+1)
	for i := range tallies {
		tallies[i] = &tally{live: map[dispatch.BatchID]bool{}, done: map[uint64]uint64{}}
	}
	offset := uint64(0)
	for i, f := range w.Floods {
		for range f.Depth {
			at := offset
			running.Go(func() { l.flood(w.Op, f.Class, Place{at, f.Bytes}, tallies[i]) })
			offset += f.Bytes
		}
	}
	smalls := tallies[len(w.Floods)]
	if w.SmallEvery > 0 {
		l.smalls(w, smalls, seen, &running)
	}
	sleepUntil(w.From)
	steal := report.Steal{}
	steal.Share()
	for _, t := range tallies[:len(w.Floods)] {
		seen.Flooded = append(seen.Flooded, l.bytes(t))
	}
	sleepUntil(w.To)
	for i, t := range tallies[:len(w.Floods)] {
		seen.Flooded[i] = l.bytes(t) - seen.Flooded[i]
	}
	seen.Stolen = steal.Share()
	for _, t := range tallies[:len(w.Floods)] {
		l.stop(t)
	}
	running.Wait()
	for _, t := range tallies {
		for at, n := range t.done {
			seen.Done = append(seen.Done, Place{at, n})
		}
		if t.failed != nil {
			return t.failed
		}
	}
	seen.Done = joined(seen.Done)
	return nil
}

// flood moves one place again and again.
func (l *Load) flood(op transport.Op, class uint8, at Place, t *tally) {
	for l.move(op, class, at, t, &Parts{}) {
	}
}

// move carries out one request, notes where its time went, and reports whether the next may follow.
func (l *Load) move(op transport.Op, class uint8, at Place, t *tally, parts *Parts) bool {
	r := engine.Request{Terms: engine.Terms{Op: op, Class: class}, Source: l.Address(at.Offset), Length: at.Bytes,
		Remote: engine.Remote{Segment: l.Segment, Offset: at.Offset}}
	begun := clock.Now()
	id, err := l.Engine.Move(&r)
	called := clock.Now()
	if err != nil {
		t.fail(err)
		return false
	}
	t.mu.Lock()
	t.live[id] = true
	stopped := t.stopped
	t.mu.Unlock()
	if stopped {
		_, _ = l.Engine.Cancel(id, -1) // a batch that has ended meanwhile needs none
	}
	state := l.Engine.Wait(id, forked.Patience)
	whole := clock.Now().Sub(begun)
	parts.Call = called.Sub(begun)
	known := min(max(l.Engine.Elapsed(id), parts.Call), whole)
	parts.Way, parts.Wake = known-parts.Call, whole-known
	sum, err := l.Engine.Summary(id)
	t.mu.Lock()
	delete(t.live, id)
	t.ended += sum.Bytes
	stopped = t.stopped
	if state == dispatch.Completed {
		t.done[at.Offset] = at.Bytes
	}
	t.mu.Unlock()
	switch {
	case err != nil:
	case state == dispatch.Completed, state == dispatch.Canceled && stopped:
		err = l.Engine.FreeBatch(id)
	case sum.Err != nil:
		err = sum.Err
	default:
		err = fmt.Errorf("a request is %v", state)
	}
	if err != nil {
		t.fail(err)
	}
	return err == nil && !stopped
}

func (t *tally) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == nil {
		t.failed = err
	}
}

// bytes that were acknowledged until now.
func (l *Load) bytes(t *tally) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.ended
	for id := range t.live {
		if sum, err := l.Engine.Summary(id); err == nil {
			n += sum.Bytes
		}
	}
	return n
}

// stop cancels the transfers under way; nothing new begins.
func (l *Load) stop(t *tally) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	for id := range t.live {
		_, _ = l.Engine.Cancel(id, -1)
	}
}

// arrivals are the times of small requests. There is one in each interval, at a random moment of its first half, so
// that alone no two of them meet, and none keeps step with another periodic event.
func arrivals(w Work) (list []clock.Time) {
	rng := rand.New(rand.NewPCG(w.Seed, 0))
	for at := w.From; at.Add(w.SmallEvery) <= w.To; at = at.Add(w.SmallEvery) {
		list = append(list, at.Add(time.Duration(rng.Int64N(int64(w.SmallEvery/2)+1))))
	}
	return list
}

// smalls begins each small request at its time. The goroutine that begins one waits for it.
func (l *Load) smalls(w Work, t *tally, seen *Seen, running *sync.WaitGroup) {
	times := arrivals(w)
	seen.Took, seen.Parts = make([]time.Duration, len(times)), make([]Parts, len(times))
	first := uint64(len(l.Memory)) - smallPlaces*smallBytes
	next := &atomic.Int64{}
	for range smallWorkers {
		running.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(times) {
					return
				}
				sleepUntil(times[i])
				p := &seen.Parts[i]
				p.Late = clock.Now().Sub(times[i])
				if !l.move(w.Op, w.SmallClass, Place{first + uint64(i%smallPlaces)*smallBytes, smallBytes}, t, p) {
					return
				}
				seen.Took[i] = p.Late + p.Call + p.Way + p.Wake
			}
		})
	}
}

// sleepUntil blocks the thread as a program without Go's timers would, which are late when all threads are busy. The
// kernel is told not to gather this wake-up with others, which it does within 50 µs.
func sleepUntil(at clock.Time) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // else a little late
	t := unix.NsecToTimespec(int64(at))
	for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &t, nil) == unix.EINTR {
	}
}

// joined sorts places and joins those that touch or repeat.
func joined(list []Place) (whole []Place) {
	slices.SortFunc(list, func(a, b Place) int { return int(int64(a.Offset) - int64(b.Offset)) })
	for _, p := range list {
		if n := len(whole); n > 0 && p.Offset <= whole[n-1].Offset+whole[n-1].Bytes {
			whole[n-1].Bytes = max(whole[n-1].Bytes, p.Offset+p.Bytes-whole[n-1].Offset)
			continue
		}
		whole = append(whole, p)
	}
	return whole
}
