package kit

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Slices that an engine of a device carries out. A thread posts some before it asks for an end, so that the engine has
// its next work when it ends the one before. It posts postedMost of a class and direction at most, and none while a
// more urgent slice waits: posted ones cannot be taken back. Short slices go in bursts (burst.go).
//
// Nobody waits inside the device's library. Threads that poll ask for the ends of all posted slices by one call, one
// thread at a time, and each of them completes some. Without such a thread the worker asks, with pauses that double
// while nothing ends. So an end is seen at the latest when as much time has passed as the slice took, and the second
// one of its lane keeps the engine at work until then.

// Posted is the rest of a slice that a device carries out. Finish returns its end, without a wait for the device; one
// goroutine calls it, once, after the end was seen.
type Posted interface{ Finish() *errs.Error }

// postedMost bounds the slices of a class and direction that are posted, short ones apart: one under way, and the next.
const postedMost = 2

// PostedMost bounds the slices that are posted in all.
const PostedMost = Classes * 2 * BurstMost

// Pauses of a worker between two questions.
const (
	pauseLeast = 8 * time.Microsecond
	pauseMost  = 256 * time.Microsecond // 4,000 questions a second, while a device stands still
)

// StartPosting is Start for a transport with devices. begin posts the slices of a list, BurstMost at most, by as few
// calls of the device's library as it can. ended asks for the ends of a list, PostedMost at most, without blocking.
// It is called by one goroutine at a time, and an entry that has ended is never asked about again.
func (x *Executor[L]) StartPosting(n int, sink transport.Sink, up func(*L, transport.Rail) bool,
	begin func([]Beginning[L]), ended func(list []Posted, ends []bool)) error {
	if err := x.posting.alarm.open(); err != nil {
		return err
	}
	x.begin, x.ended, x.posting.pause = begin, ended, pauseLeast
	x.start(n, sink, up)
	return nil
}

// posting is the state of slices that are posted, guarded by the Executor's mutex.
type posting[L any] struct {
	lanes [Classes][2]lane[L] // by direction
	count int                 // entries in the lists of all lanes
	idle  []*burst[L]         // one for each thread that has begun slices

	asking bool // a goroutine asks: the arrays are its own
	asked  [PostedMost]*accepted[L]
	rests  [PostedMost]Posted
	ends   [PostedMost]bool

	resting bool // the worker waits for its alarm
	pause   time.Duration
	alarm   alarm
}

// lane has the slices of a class and direction that were begun.
type lane[L any] struct {
	begun  int // all that have not completed
	long   int // those of them that are not short
	posted List[accepted[L]]
}

func (x *Executor[L]) laneOf(s *transport.Slice) *lane[L] {
	return &x.posting.lanes[ClassOf(s.Class)][s.Op&transport.Write]
}

// enter counts a slice that is begun, leave one that completes.
func (l *lane[L]) enter(s *transport.Slice) {
	l.begun++
	if !short(s) {
		l.long++
	}
}

func (l *lane[L]) leave(s *transport.Slice) {
	l.begun--
	if !short(s) {
		l.long--
	}
}

// takeEnded takes the most urgent slice out that has ended, and asks for ends where none is known. The caller holds mu,
// which is released while the device is asked.
func (x *Executor[L]) takeEnded() *accepted[L] {
	p := &x.posting
	if e := p.firstEnded(); e != nil || p.count == 0 || p.asking {
		return e
	}
	p.asking = true
	n := p.list()
	x.mu.Unlock()
	x.ended(p.rests[:n], p.ends[:n])
	x.mu.Lock()
	for i, e := range p.asked[:n] {
		e.isOver = p.ends[i]
		p.asked[i], p.rests[i], p.ends[i] = nil, nil, false
	}
	p.asking = false
	return p.firstEnded()
}

// list notes the posted slices to ask about, and returns their number.
func (p *posting[L]) list() (n int) {
	for class := range p.lanes {
		for op := range p.lanes[class] {
			l := &p.lanes[class][op].posted
			for e := l.First(); e != nil; e = l.Next(&e.flight) {
				p.asked[n], p.rests[n] = e, e.rest
				n++
			}
		}
	}
	return n
}

// firstEnded takes the slice out that has ended and for which its user has the least patience. Two slices of a lane may
// be on two devices, so the second one may end first.
func (p *posting[L]) firstEnded() *accepted[L] {
	for class := range p.lanes {
		for op := range p.lanes[class] {
			l := &p.lanes[class][op]
			for e := l.posted.First(); e != nil; e = l.posted.Next(&e.flight) {
				if e.isOver {
					e.flight.Leave()
					p.count--
					p.pause = pauseLeast
					return e
				}
			}
		}
	}
	return nil
}

// rest lets the worker sleep until it asks again; a slice that may begin ends the sleep. The caller holds mu.
func (x *Executor[L]) rest() {
	p := &x.posting
	p.alarm.set(p.pause)
	p.pause = min(2*p.pause, pauseMost)
	p.resting = true
	x.mu.Unlock()
	p.alarm.wait()
	x.mu.Lock()
	p.resting = false
}

// alarm is a timer of the kernel. Go's timers have milliseconds where the process sleeps, and a thread's own sleeps are
// late by its slack, 50 µs.
type alarm struct{ fd int }

func (a *alarm) open() (err error) {
	if a.fd, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC); err != nil {
		return errs.New(errs.TooManyRequests, "kit.alarm", "no timer for the ends of copies: %v", err)
	}
	return nil
}

// set lets the alarm go off after a time, and not at the time of before.
func (a *alarm) set(after time.Duration) {
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(after))}
	_ = unix.TimerfdSettime(a.fd, 0, &at, nil) // a good descriptor and a good time cannot fail
}

// wait returns when the alarm has gone off.
func (a *alarm) wait() {
	var count [8]byte
	for {
		if _, err := unix.Read(a.fd, count[:]); err != unix.EINTR {
			return
		}
	}
}

// close ends an alarm that was opened; nobody waits for it.
func (a *alarm) close() {
	if a.fd > 0 {
		_ = unix.Close(a.fd)
		a.fd = 0
	}
}
