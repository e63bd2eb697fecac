package ascend

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/ascend/hixl"
	"github.com/tent-engine/tent/transports/kit"
)

// The carrier is one thread that has the context of the device. It posts the slices of all links, the most urgent of
// each first, and asks for the ends of those that are out, by one call for all. It rests between two questions, for a
// pause that doubles while nothing ends; a slice that comes ends the rest.
//
// An end is asked for once: the request is forgotten with its answer, here as in HIXL.

// turnMost bounds the requests of one turn.
const turnMost = 256

// Pauses of the carrier between two questions.
const (
	pauseLeast = 8 * time.Microsecond
	pauseMost  = 256 * time.Microsecond
)

// carrier is the state of the thread. All but running is its own.
type carrier struct {
	running sync.WaitGroup

	post   []posting
	ranges []hixl.Range
	asks   []hixl.Ask
	asked  []*entry
	ends   []transport.Completion
	first  int // the link that has its turn first
}

// posting is a slice that is being posted.
type posting struct {
	entry   *entry
	request uint64
	status  hixl.Status
	report  string
}

// startCarrier starts the carrier's goroutine.
func (t *ascend) startCarrier() error {
	ready := make(chan error)
	t.carrier.running.Go(func() {
		failed := t.onThread()
		ready <- failed
		if failed == nil {
			t.carry()
		}
	})
	return <-ready
}

// carry posts and asks until the transport ends.
func (t *ascend) carry() {
	pause := pauseLeast
	for {
		t.mu.Lock()
		if t.stopped {
			t.mu.Unlock()
			return
		}
		waits := t.gatherLocked()
		t.mu.Unlock()
		moved := t.turn()
		switch {
		case moved:
			pause = pauseLeast
		case waits:
			t.bell.wait(pause)
			pause = min(2*pause, pauseMost)
		default:
			t.bell.wait(-1)
			pause = pauseLeast
		}
	}
}

// gatherLocked lists the slices to post and to ask about, and the ends of those that are fenced. It reports whether any
// is out.
func (t *ascend) gatherLocked() (waits bool) {
	c, now := &t.carrier, clock.Now()
	c.post, c.asks, c.asked = c.post[:0], c.asks[:0], c.asked[:0]
	t.active = slices.DeleteFunc(t.active, func(l *link) bool {
		l.listed = l.queue.Len() > 0 || l.posted.Len() > 0
		return !l.listed
	})
	if c.first++; c.first >= len(t.active) {
		c.first = 0
	}
	for i := range t.active {
		l := t.active[(c.first+i)%len(t.active)]
		if l.connection != open || l.cause != nil {
			continue
		}
		waits = waits || l.posted.Len() > 0
		for e := l.posted.First(); e != nil && len(c.asks) < turnMost; e = l.posted.Next(&e.place) {
			c.askLocked(e, now)
		}
		for !l.partsLocked() && l.posted.Len() < postedMost && len(c.post) < turnMost {
			e := l.popLocked()
			if e == nil {
				break
			}
			waits = true
			c.post = append(c.post, posting{entry: e})
			l.calls++
		}
		if l.partsLocked() && l.posted.Len() == 0 {
			l.wake()
		}
	}
	return waits
}

// askLocked lists a posted slice to ask about, and ends its link where it is late.
func (c *carrier) askLocked(e *entry, now clock.Time) {
	l := e.link
	if now >= e.due && l.cause == nil {
		e.guilty = errs.New(errs.Lost, Name, "a slice of %d bytes has not ended within %v", e.slice.Length,
			l.t.settings.TransferTimeout).WithScope(errs.ScopeRail, errs.SidePath).
			WithHint("transports/ascend_direct/transfer_timeout_ns")
		l.cause = e.guilty
		l.wake()
		return
	}
	if e.request != 0 {
		c.asks = append(c.asks, hixl.Ask{Request: e.request})
		c.asked = append(c.asked, e)
		l.calls++
	}
}

// popLocked takes the most urgent slice of a link that it can carry out, and lists it as posted. Slices that the owner
// has fenced end here: a fence finds none that HIXL has no room for a moment later, and none that waits for a hello.
func (l *link) popLocked() *entry {
	for class := l.queue.Urgent(); class != kit.Classes; class = l.queue.Urgent() {
		e := l.queue.List(class).First()
		l.queue.Leave(class, &e.place)
		if fence := e.far.refuses(e.slice.Epoch); fence != nil {
			l.t.carrier.ends = l.endLocked(l.t.carrier.ends, e, fence)
			continue
		}
		l.posted.PushBack(e, &e.place)
		l.used = clock.Now()
		if e.due == 0 {
			e.due = l.used.Add(l.t.settings.TransferTimeout)
		}
		return e
	}
	return nil
}

// turn posts and asks, and handles the answers. It reports whether anything was posted or has ended.
func (t *ascend) turn() bool {
	c := &t.carrier
	if len(c.post) == 0 && len(c.asks) == 0 && len(c.ends) == 0 {
		return false
	}
	i := &t.instance
	i.gate.RLock()
	for n := range c.post {
		p := &c.post[n]
		p.status = hixl.NotConnected // with an engine of before
		if l := p.entry.link; i.engine != nil && l.life == i.life {
			write := p.entry.slice.Op == transport.Write
			p.status = i.engine.Transfer(l.name, write, c.partsOf(p.entry), &p.request)
			if p.status == hixl.Threw {
				p.report = hixl.Report()
			}
		}
	}
	if i.engine != nil && len(c.asks) > 0 && c.asked[0].link.life == i.life {
		i.engine.Ask(c.asks)
	}
	i.gate.RUnlock()
	t.mu.Lock()
	moved := len(c.ends) > 0
	for n := range c.post {
		moved = t.postedLocked(&c.post[n]) || moved
	}
	for n := range c.asks {
		moved = t.answeredLocked(c.asked[n], &c.asks[n]) || moved
	}
	ends := c.ends
	t.changed.Broadcast()
	t.mu.Unlock()
	t.complete(ends)
	c.ends = c.ends[:0]
	return moved
}

// partsOf lists the ranges of a slice.
func (c *carrier) partsOf(e *entry) []hixl.Range {
	c.ranges = c.ranges[:0]
	kit.EachPart(e.slice, func(local uintptr, offset, bytes uint64) {
		c.ranges = append(c.ranges, hixl.Range{Local: uint64(local), Remote: e.far.base + offset, Bytes: bytes})
	})
	return c.ranges
}

// postedLocked notes the answer to a posting. Where HIXL has no room, the slice waits for its turn again.
func (t *ascend) postedLocked(p *posting) bool {
	e, l := p.entry, p.entry.link
	l.calls--
	switch p.status {
	case hixl.Success:
		e.request = p.request
		return true
	case hixl.ResourceExhausted:
		if l.cause == nil && clock.Now() < e.due {
			e.place.Leave()
			l.queue.PushFront(kit.ClassOf(e.slice.Class), e, &e.place)
			return false
		}
	}
	err := p.status.Error("ascend.transfer", p.report).WithPeer(l.peer.Address, Name, "")
	if err.Scope == errs.ScopeSlice {
		e.place.Leave()
		t.carrier.ends = l.endLocked(t.carrier.ends, e, err)
		return true
	}
	l.breakLocked(e, err)
	return true
}

// answeredLocked notes the state of a request.
func (t *ascend) answeredLocked(e *entry, a *hixl.Ask) bool {
	l := e.link
	l.calls--
	if a.Code == hixl.Success && a.State == hixl.Waiting {
		return false
	}
	e.request = 0
	if a.Code == hixl.Success && a.State == hixl.Completed {
		e.place.Leave()
		t.carrier.ends = l.endLocked(t.carrier.ends, e, nil)
		if l.partsLocked() || l.cause != nil {
			l.wake()
		}
		return true
	}
	status := a.Code
	if status == hixl.Success {
		status = a.State.Status()
	}
	l.breakLocked(e, status.Error("ascend.transfer", "").WithPeer(l.peer.Address, Name, ""))
	return true
}

// breakLocked ends a link by the failure of a slice. The slice ends when the link has: HIXL's word that it failed does
// not say that none of its bytes move.
func (l *link) breakLocked(e *entry, err *errs.Error) {
	err.Scope = max(err.Scope, errs.ScopeRail)
	e.guilty, l.trouble = err, err
	if l.cause == nil {
		l.cause = err
	}
	l.wake()
}

// bell wakes the carrier.
type bell struct {
	fd   int
	list [1]unix.PollFd
	rung atomic.Bool // somebody has written since the last wait
}

func (b *bell) open() (err error) {
	if b.fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return errs.New(errs.TooManyRequests, "ascend.open", "no descriptor to wake its thread: %v", err)
	}
	return nil
}

var one = binary.NativeEndian.AppendUint64(nil, 1)

// ring ends the rest, or keeps the next one from beginning. Most calls find it rung.
func (b *bell) ring() {
	if !b.rung.Swap(true) {
		_, _ = unix.Write(b.fd, one)
	}
}

// wait rests for a time, without end for -1.
func (b *bell) wait(pause time.Duration) {
	var limit *unix.Timespec
	if pause >= 0 {
		ts := unix.NsecToTimespec(int64(pause))
		limit = &ts
	}
	b.list[0] = unix.PollFd{Fd: int32(b.fd), Events: unix.POLLIN}
	if n, _ := unix.Ppoll(b.list[:], limit, nil); n > 0 {
		var count [8]byte
		_, _ = unix.Read(b.fd, count[:])
		b.rung.Store(false) // behind the read: a ring that comes now writes again
	}
}

func (b *bell) close() { _ = unix.Close(b.fd) }
