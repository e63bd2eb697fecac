package kit

import (
	"sync"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Executor carries out accepted slices one after the other, the most urgent class first: on its worker, or on the
// threads of waiters that poll. It serves transports that have carried a slice out when a call returns. L is the
// transport's link.
//
//	free ──Accept──▶ waiting ──the worker, Poll──▶ carried ──▶ completed, free
//	                 waiting ──Drop, Evict───────────────────▶ completed, free
//
// Its mutex is held neither while a slice is carried out nor while the sink is called. Nothing is allocated for a
// slice.
type Executor[L any] struct {
	sink  transport.Sink
	up    func(*L, transport.Rail) bool
	carry func(*transport.Slice, *L) *errs.Error

	mu      sync.Mutex
	changed sync.Cond // something waits, an entry was freed, polling or stop has changed
	slab    []accepted[L]
	free    List[accepted[L]]
	queue   ClassQueue[accepted[L]]
	starved []starving[L]
	polling bool // a waiter works: the worker sleeps until Arm
	stop    bool
	running sync.WaitGroup
}

type accepted[L any] struct {
	slice *transport.Slice // nil: free, or being completed
	id    uint64           // of the slice
	link  *L
	life  uint64 // of the entry: grows when a slice completes
	place Element[accepted[L]]
	end   [1]transport.Completion
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
	x.sink, x.up, x.carry, x.slab, x.changed.L = sink, up, carry, make([]accepted[L], n), &x.mu
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
	x.changed.Broadcast()
	x.mu.Unlock()
	x.running.Wait()
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
	x.changed.Broadcast()
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
			x.complete(e, cause)
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
func (x *Executor[L]) Poll(budget int) (done int) {
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
	if x.polling = polling; !polling {
		x.changed.Broadcast()
	}
}

func (x *Executor[L]) work() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for !x.stop {
		if x.polling || x.queue.Waiting() == 0 {
			x.changed.Wait()
			continue
		}
		x.mu.Unlock()
		x.carryNext()
		x.mu.Lock()
	}
}

// carryNext carries out the most urgent slice. It returns false when none waits.
func (x *Executor[L]) carryNext() bool {
	x.mu.Lock()
	class := x.queue.Urgent()
	if class == Classes {
		x.mu.Unlock()
		return false
	}
	e := x.queue.List(class).First()
	x.queue.Leave(class, &e.place)
	x.mu.Unlock()
	x.complete(e, x.carry(e.slice, e.link))
	return true
}

// complete hands over a slice's end and frees its entry. A rail that found none free hears of it.
func (x *Executor[L]) complete(e *accepted[L], err *errs.Error) {
	x.mu.Lock()
	e.end[0] = transport.Completion{Slice: e.slice, Id: e.id, Err: err}
	if err == nil {
		e.end[0].Bytes = e.slice.Length
	}
	e.slice = nil
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
