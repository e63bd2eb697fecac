package kit

import (
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// A call of a device's library costs more than the rest of a short slice. So short slices are begun in bursts, by one
// call for all, and BurstMost of a class and direction are posted. In bytes that is less than one long slice, so a
// fence and a more urgent slice wait no longer for them.
//
// A lane gets short slices again when half of them have completed. With each that completes it would get one, and each
// burst would be of one slice.

// BurstMost bounds the slices of a burst, and the short slices of a class and direction that are posted.
const BurstMost = 8

// ShortBytes is the most that a short slice has.
const ShortBytes = 64 << 10

func short(s *transport.Slice) bool { return s.Length <= ShortBytes }

// Beginning is a slice to post. Rest is its rest; nil is for a slice that was carried out, or failed with Err.
type Beginning[L any] struct {
	Slice *transport.Slice
	Link  *L
	Rest  Posted
	Err   *errs.Error
}

// burst is slices that one thread begins together.
type burst[L any] struct {
	entries [BurstMost]*accepted[L]
	list    [BurstMost]Beginning[L]
}

// admits reports whether a short slice may begin a burst.
func (l *lane[L]) admits(s *transport.Slice) bool {
	return l.long == 0 && l.begun <= BurstMost/2 && short(s)
}

// goesOn returns the slice that goes with a burst that it follows. A long slice is a burst of its own: more urgent ones
// that come meanwhile wait for no second one. The caller holds mu.
func (x *Executor[L]) goesOn(class int) *accepted[L] {
	e := x.queue.List(class).First()
	if e == nil || !short(e.slice) {
		return nil
	}
	if l := x.laneOf(e.slice); l.long > 0 || l.begun >= BurstMost {
		return nil
	}
	return e
}

// beginBurst posts a slice, and those behind it that go with it. Slices that end at once are listed as ended. The
// caller holds mu, which is released meanwhile.
func (x *Executor[L]) beginBurst(e *accepted[L]) {
	b, n, class := x.posting.takeBurst(), 0, ClassOf(e.slice.Class)
	for goesOn := short(e.slice); e != nil; {
		x.leaveQueue(e)
		b.entries[n], b.list[n] = e, Beginning[L]{Slice: e.slice, Link: e.link}
		n++
		if e = nil; goesOn && n < BurstMost {
			e = x.goesOn(class)
		}
	}
	x.mu.Unlock()
	x.begin(b.list[:n])
	x.mu.Lock()
	for i, e := range b.entries[:n] {
		e.rest, e.err, e.isOver = b.list[i].Rest, b.list[i].Err, b.list[i].Rest == nil
		x.laneOf(e.slice).posted.PushBack(e, &e.flight)
		b.entries[i], b.list[i] = nil, Beginning[L]{}
	}
	x.posting.count += n
	x.posting.pause = pauseLeast
	x.posting.idle = append(x.posting.idle, b)
	x.rouse()
}

func (p *posting[L]) takeBurst() *burst[L] {
	n := len(p.idle)
	if n == 0 {
		return &burst[L]{}
	}
	b := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return b
}

// finish returns the end of a slice that was seen to have ended.
func (e *accepted[L]) finish() *errs.Error {
	if e.rest == nil {
		return e.err
	}
	return e.rest.Finish()
}
