package kit

import (
	"sync"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Executor carries out accepted slices, the most urgent class first: on its worker, or on the threads of waiters that
// poll. It serves transports that have carried a slice out when a call returns, and those that hand it to an engine of
// a device and ask for its end (posting.go). L is the transport's link.
//
//	free ──Accept──▶ waiting ──the worker, Poll──▶ carried ────────────────────────▶ completed, free
//	                 waiting ──the same──▶ posted ──asked──▶ ended ──Finish────────▶ completed, free
//	                 waiting ──Drop, Evict─────────────────────────────────────────▶ completed, free
//
// Its mutex is held neither while a slice is carried out nor while the sink is called. Nothing is allocated for a
// slice.
type Executor[L any] struct {
	sink  transport.Sink
	up    func(*L, transport.Rail) bool
	carry func(*transport.Slice, *L) *errs.Error // or, with devices, these two
	begin func([]Beginning[L])
	ended func(list []Posted, ends []bool)

	mu      sync.Mutex
	changed sync.Cond // an entry was freed
	roused  sync.Cond // the worker has work, or stops
	slab    []accepted[L]
	free    List[accepted[L]]
	queue   ClassQueue[accepted[L]]
	posting posting[L]
	starved []starving[L]
	polling bool // a waiter works: the worker sleeps until Arm
	asleep  bool // the worker waits to be roused
	stop    bool
	running sync.WaitGroup
}

type accepted[L any] struct {
	slice  *transport.Slice // nil: free, or being completed
	id     uint64           // of the slice
	link   *L
	life   uint64 // of the entry: grows when a slice completes
	place  Element[accepted[L]]
	flight Element[accepted[L]] // in its lane
	rest   Posted
	err    *errs.Error // of a slice without a rest
	isOver bool        // rest has ended, or there is none
	end    [1]transport.Completion
}

// starving is a rail that is owed Ready.
type starving[L any] struct {
	link *L
	rail transport.Rail
}

// Start makes room for n slices and starts the worker. up reports whether a rail is up in just this generation: it is
// called under the Executor's mutex. carry carries a slice out; nil is success.
func (x *Executor[L]) Start(n int, sink transport.Sink, up func(*L, transport.Rail) bool,
	carry func(*transport.Slice, *L) *errs.Error) {
	x.carry = carry
	x.start(n, sink, up)
}

func (x *Executor[L]) start(n int, sink transport.Sink, up func(*L, transport.Rail) bool) {
	x.sink, x.up, x.slab, x.changed.L, x.roused.L = sink, up, make([]accepted[L], n), &x.mu, &x.mu
	for i := range x.slab {
		x.free.PushBack(&x.slab[i], &x.slab[i].place)
	}
	x.running.Go(x.work)
}

// Stop waits until every slice has completed, and ends the worker. Nothing is accepted any more: all rails are down.
func (x *Executor[L]) Stop() {
	x.mu.Lock()
	for x.free.Len() < len(x.slab) {
		x.changed.Wait()
	}
	x.stop = true
	x.roused.Signal()
	x.mu.Unlock()
	x.running.Wait()
	x.posting.alarm.close()
}

// Begun is a slice that is being carried out.
type Begun[L any] struct {
	Op     transport.Op
	Length uint64
	Link   *L
}

// Begun returns the slices that are being carried out, for errors that name them.
func (x *Executor[L]) Begun() (list []Begun[L]) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range x.slab {
		if e := &x.slab[i]; e.slice != nil && !e.place.Queued() {
			list = append(list, Begun[L]{e.slice.Op, e.slice.Length, e.link})
		}
	}
	return list
}

// Accept takes a prefix of slices of one rail of a link, which lookup finds; up is asked about nil, too.
func (x *Executor[L]) Accept(slices []*transport.Slice, lookup func(transport.Link) *L) (n int) {
	if len(slices) == 0 {
		return 0
	}
	link := lookup(slices[0].Rail.Link)
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.up(link, slices[0].Rail) {
		return 0
	}
	for _, s := range slices {
		e := x.free.PopFront()
		if e == nil {
			x.starved = append(x.starved, starving[L]{link, s.Rail})
			break
		}
		e.slice, e.id, e.link = s, s.Id, link
		x.queue.PushBack(ClassOf(s.Class), e, &e.place)
		n++
	}
	x.rouse()
	return n
}

// Drop completes the slices that are meant and wait. Those that are carried out now complete by themselves.
func (x *Executor[L]) Drop(cause *errs.Error, meant func(*transport.Slice, *L) bool) {
	for i := range x.slab {
		e := &x.slab[i]
		x.mu.Lock()
		drops := e.slice != nil && meant(e.slice, e.link) && x.queue.Leave(ClassOf(e.slice.Class), &e.place)
		x.mu.Unlock()
		if drops {
			x.complete(e, false, cause)
		}
	}
}

// Evict is Drop, and returns when those of the meant that were being carried out are not any more.
func (x *Executor[L]) Evict(cause *errs.Error, meant func(*transport.Slice, *L) bool) {
	x.Drop(cause, meant)
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range x.slab {
		e := &x.slab[i]
		for life := e.life; e.slice != nil && !e.place.Queued() && e.life == life && meant(e.slice, e.link); {
			x.changed.Wait()
		}
	}
}

// Poll implements transport.Poller.
func (x *Executor[L]) Poll(budget int, _ transport.Classes) (done int) {
	x.setPolling(true)
	for done < budget && x.carryNext() {
		done++
	}
	return done
}

// Arm implements transport.Poller.
func (x *Executor[L]) Arm() { x.setPolling(false) }

func (x *Executor[L]) setPolling(polling bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.polling = polling; polling {
		return
	}
	x.rouse()
	if x.posting.resting && x.posting.pause == pauseLeast { // something has moved since: it would rest for too long
		x.posting.alarm.set(pauseLeast)
	}
}

// busy reports whether there is work for the worker. The caller holds mu.
func (x *Executor[L]) busy() bool { return !x.polling && (x.posting.count > 0 || x.next() != nil) }

// rouse wakes the worker if there is work. To wake it for nothing would cost a waiter more than a slice does. The
// caller holds mu.
func (x *Executor[L]) rouse() {
	switch {
	case x.asleep && x.busy():
		x.asleep = false
		x.roused.Signal()
	case x.posting.resting && !x.polling && x.next() != nil:
		x.posting.alarm.set(1)
	}
}

func (x *Executor[L]) work() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for !x.stop {
		if !x.busy() {
			x.asleep = true
			x.roused.Wait()
			x.asleep = false
			continue
		}
		x.mu.Unlock()
		did := x.carryNext()
		x.mu.Lock()
		if !did && !x.polling && x.posting.count > 0 && x.next() == nil {
			x.rest()
		}
	}
}

// next is the most urgent slice that may begin, nil if none waits or its lane is full. The caller holds mu.
func (x *Executor[L]) next() *accepted[L] {
	class := x.queue.Urgent()
	if class == Classes {
		return nil
	}
	e := x.queue.List(class).First()
	if l := x.laneOf(e.slice); l.begun < postedMost || x.begin != nil && l.admits(e.slice) {
		return e
	}
	return nil
}

// leaveQueue takes a slice out that begins. The caller holds mu.
func (x *Executor[L]) leaveQueue(e *accepted[L]) {
	x.laneOf(e.slice).enter(e.slice)
	x.queue.Leave(ClassOf(e.slice.Class), &e.place)
}

// carryNext carries a slice out. Those of devices it begins until none may begin, and completes the most urgent one
// that has ended. It returns false when it has completed nothing.
func (x *Executor[L]) carryNext() bool {
	x.mu.Lock()
	for e := x.next(); e != nil; e = x.next() {
		if x.carry != nil {
			x.leaveQueue(e)
			x.mu.Unlock()
			x.complete(e, true, x.carry(e.slice, e.link))
			return true
		}
		x.beginBurst(e)
	}
	e := x.takeEnded()
	x.mu.Unlock()
	if e == nil {
		return false
	}
	x.complete(e, true, e.finish())
	return true
}

// complete hands over a slice's end and frees its entry. A rail that found none free hears of it. begun is false
// for a slice that never began.
func (x *Executor[L]) complete(e *accepted[L], begun bool, err *errs.Error) {
	x.mu.Lock()
	if begun {
		x.laneOf(e.slice).leave(e.slice)
		x.rouse()
	}
	e.end[0] = transport.Completion{Slice: e.slice, Id: e.id, Err: err}
	if err == nil {
		e.end[0].Bytes = e.slice.Length
	}
	e.slice, e.rest, e.err, e.isOver = nil, nil, nil, false
	e.life++
	x.changed.Broadcast() // Evict
	x.mu.Unlock()
	x.sink.Complete(e.end[:])
	x.mu.Lock()
	x.free.PushFront(e, &e.place)
	starved := x.starved
	x.starved = nil
	x.changed.Broadcast() // Stop
	x.mu.Unlock()
	for _, s := range starved {
		if x.up(s.link, s.rail) {
			x.sink.Ready(s.rail)
		}
	}
}
