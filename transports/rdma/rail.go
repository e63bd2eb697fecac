package rdma

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// rail is a path from a device here to one of the peer, with its lanes.
//
//	                 ┌───────────────all lanes work: a new generation───────────────┐
//	                 │                                                              ▼
//	down ──mend: lanes reset here, connected anew ──▶ announced ──RailUp returned──▶ up
//	  ▲                                                  │                           │
//	  └──── a path's error, an event, Fence, end ────────┴───────────────────────────┘
//
// A lane that failed by the fault of one slice is connected anew while its rail stays up. A rail that was never used,
// or that made room for others, is up without lanes: they are connected when the first slice comes (store.go). Once a
// rail has failed, it is connected and proved before it is announced.
//
// # A slice on its way out
//
//	waiting ──pump──▶ out ──completion──────────────────────────────▶ ended
//	   │               └──its lane failed──▶ READ: ended as soon as our queue pair is reset
//	   │                                 └──▶ WRITE: in limbo ──the peer has reset its end──▶ ended
//	   └──Withdraw, Fence, news──▶ ended
//
// One mutex guards all of it. It is held while work requests are posted, and never while the sink is called.
type rail struct {
	link       *link
	index      uint16
	device     *device
	far        int // index of the peer's device
	alternate  bool
	remoteName string

	work       sync.Mutex // of queue pairs: reset, connect, close
	addressing addressing // of its goroutine

	used    atomic.Bool   // since the hand of the store last came by
	granted chan struct{} // has something when the store gave it a place
	seat    seat          // guarded by store.mu

	mu         sync.Mutex
	state      state
	generation uint32
	fenced     bool        // while announced
	mending    bool        // its goroutine is at work
	proving    bool        // its lanes work, and slices wait until its address is proved to lead to the peer
	from       verbs.GID   // address here of its lanes
	wanted     bool        // its lanes are to be connected: it was used, or has failed and is to be proved
	leaving    bool        // its place goes to another rail once nothing is out (store.go)
	ended      bool        // for good
	cause      *errs.Error // why it is down
	starved    bool        // Ready is owed
	lanes      []*lane
	slab       []op     // nil until it is first used
	free       []uint16 // of the slab, a stack
	asks       []ask    // probes that wait for the lanes
	queue      kit.ClassQueue[op]
	clock      *time.Timer // of slices that were asked back while they were out
	ticking    bool
	posted     bool   // work requests since the mutex was taken: somebody has to look for their completions
	parts      *batch // completions that are handed over once the mutex is free
	inside     *inside
	spare      uses // given back before that
	run        run  // over before that
}

type state uint8

const (
	down state = iota
	announced
	up
)

// slicesMax are accepted and not ended on a rail.
const slicesMax = 256

// op is an accepted slice, or a probe.
type op struct {
	index uint16 // in the slab
	place kit.Element[op]
	carried
}

// carried is an op's own from acceptance to the end.
type carried struct {
	slice  *transport.Slice // nil: free, or a probe
	id     uint64
	owner  *region
	remote *remote
	lane   *lane
	part   uint64      // piece that is posted next
	at     uint64      // byte of it
	out    int         // work requests that are posted and have not come back
	whole  bool        // all of it was posted
	asked  bool        // Withdraw came while it was out
	limbo  bool        // its lane has failed: it waits for the peer
	end    *errs.Error // that it ends with once nothing is out; nil: none yet
	begun  clock.Time  // of a withdrawal
	probed func(*errs.Error)
}

func newRail(l *link, index int, d *device, far int, name string) *rail {
	r := &rail{link: l, index: uint16(index), device: d, far: far, remoteName: name, granted: make(chan struct{}, 1)}
	plan := l.t.plan.lanes
	r.lanes = make([]*lane, len(plan)*d.sets(len(plan)))
	for i := range r.lanes {
		r.lanes[i] = &lane{rail: r, index: i, device: d, marks: plan[i%len(plan)]}
	}
	r.clock = time.AfterFunc(time.Hour, r.tick)
	r.clock.Stop()
	return r
}

func (r *rail) name() string { return r.device.name + ">" + r.remoteName }

func (r *rail) railLocked() transport.Rail {
	return transport.Rail{Link: r.link.number, Index: r.index, Generation: r.generation}
}

// unlock hands the completions over that came up under the mutex.
func (r *rail) unlock() {
	b, posted, spare := r.parts, r.posted, r.spare
	r.parts, r.posted, r.spare, r.run = nil, false, uses{}, run{}
	ready, rail := false, transport.Rail{}
	if r.starved && r.state == up && (r.slab == nil || len(r.free) > 0) {
		r.starved, ready, rail = false, true, r.railLocked()
	}
	r.mu.Unlock()
	if posted {
		r.device.expect()
	}
	if b != nil {
		b.deliver(r.link.t.sink)
		r.link.t.recycle(b)
		r.link.ended()
	}
	if ready {
		r.link.t.sink.Ready(rail)
	}
	spare.end()
}

// partsLocked is the news that unlock hands over.
func (r *rail) partsLocked() *batch {
	if r.parts == nil {
		r.parts = r.link.t.batch()
	}
	return r.parts
}

// answerLocked ends a probe.
func (r *rail) answerLocked(done func(*errs.Error), err *errs.Error) {
	b := r.partsLocked()
	b.probes = append(b.probes, probeEnd{done, err})
}

// finishLocked ends an op; nil is success.
func (r *rail) finishLocked(o *op, err *errs.Error) {
	if o.place.Queued() {
		r.queue.Leave(kit.ClassOf(o.slice.Class), &o.place)
	}
	if o.probed != nil {
		r.answerLocked(o.probed, err)
	} else {
		c := transport.Completion{Slice: o.slice, Id: o.id, Err: err}
		if err == nil {
			c.Bytes = o.slice.Length
		}
		b := r.partsLocked()
		if c.Slice.Op == transport.Read && o.lane != nil && o.owner.Landing != nil { // something of it may have come
			b.landed = append(b.landed, landed{len(b.list), o.owner.Landing})
		}
		b.list = append(b.list, c)
		if o.owner != nil {
			r.spare.put(o.owner)
		}
	}
	o.carried = carried{}
	if o.index < slicesMax {
		r.free = append(r.free, o.index)
	}
}

// vacantLocked takes an op that is free, nil if there is none.
func (r *rail) vacantLocked() *op {
	last := len(r.free) - 1
	if last < 0 {
		return nil
	}
	o := &r.slab[r.free[last]]
	r.free = r.free[:last]
	return o
}

// mendLocked starts the rail's goroutine if lanes are to be connected.
func (r *rail) mendLocked() {
	if !r.mending && !r.ended {
		r.mending = r.link.t.life.Go(r.mend)
	}
}

// down takes the rail down: all of its lanes are lost.
func (r *rail) down(cause *errs.Error) {
	r.mu.Lock()
	was := r.downLocked(cause)
	r.unlock()
	r.link.lack(was, cause)
}

func (r *rail) failLanesLocked(cause *errs.Error) {
	for _, l := range r.lanes {
		l.failLocked(cause)
	}
}

// downLocked returns the rail if the core has to hear that it is down.
func (r *rail) downLocked(cause *errs.Error) (was transport.Rail) {
	if r.state == up {
		was = r.railLocked()
	}
	r.state, r.cause, r.wanted = down, cause, true
	r.failLanesLocked(cause)
	r.dropLocked(cause)
	r.mendLocked()
	return was
}

// dropLocked ends the slices and probes that wait.
func (r *rail) dropLocked(cause *errs.Error) {
	for _, a := range r.asks {
		r.answerLocked(a.done, cause)
	}
	r.asks = nil
	for i := range r.slab {
		if o := &r.slab[i]; o.place.Queued() && o.slice != nil {
			r.endLocked(o, cause)
		}
	}
}

// endLocked ends a slice as soon as nothing of it is out.
func (r *rail) endLocked(o *op, cause *errs.Error) {
	if o.place.Queued() {
		r.queue.Leave(kit.ClassOf(o.slice.Class), &o.place)
	}
	if o.end == nil {
		o.end = cause
	}
	if o.out == 0 && !o.limbo {
		r.finishLocked(o, o.end)
	}
}

// end takes the rail down for good. Slices that are out end in quieten and bury.
func (r *rail) end(cause *errs.Error) {
	r.mu.Lock()
	r.ended = true
	r.state, r.cause = down, cause
	r.failLanesLocked(cause)
	r.dropLocked(cause)
	if !r.mending { // else the goroutine goes on to quieten
		r.mending = r.link.t.life.Go(r.mend)
	}
	r.unlock()
}

// Fence implements transport.Transport.
func (t *Transport) Fence(which transport.Rail) {
	r := t.links.Lookup(which.Link).rail(which.Index)
	if r == nil {
		return
	}
	r.mu.Lock()
	switch {
	case r.generation != which.Generation || r.generation == 0 || r.state == down:
	case r.state == announced:
		r.fenced = true
	default:
		cause := errs.New(errs.Withdrawn, Name, "the rail was fenced").WithScope(errs.ScopeRail, errs.SideUnknown)
		r.state, r.cause = down, nil
		for _, l := range r.lanes {
			if l.tail != l.head {
				l.failLocked(cause)
			}
		}
		r.dropLocked(cause)
		r.mendLocked()
	}
	r.unlock()
}

// Withdraw implements transport.Transport. Work requests that a device has cannot be taken back: they are waited for,
// and after a while the lane is given up.
func (t *Transport) Withdraw(list []*transport.Slice) {
	for _, s := range list {
		r := t.links.Lookup(s.Rail.Link).rail(s.Rail.Index)
		if r == nil {
			continue
		}
		r.mu.Lock()
		if o := r.opOf(s); o != nil {
			cause := errs.New(errs.Withdrawn, Name, "asked back").WithScope(errs.ScopeSlice, errs.SideUnknown)
			if !o.whole {
				r.endLocked(o, cause)
			} else if !o.asked && !o.limbo {
				o.asked, o.begun = true, clock.Now()
				o.lane.movesLocked(o.begun)
				r.tickLocked()
			}
		}
		r.unlock()
	}
}

// opOf finds the op of a slice, nil if it has ended.
func (r *rail) opOf(s *transport.Slice) *op {
	if i := s.Scratch[0]; i < uint64(len(r.slab)) && r.slab[i].slice == s && r.slab[i].id == s.Id {
		return &r.slab[i]
	}
	return nil
}

func (r *rail) tickLocked() {
	if !r.ticking {
		r.ticking = true
		r.clock.Reset(r.link.t.settings.Clock)
	}
}

// tick gives up lanes that hold a slice which was asked back, where nothing has come back for a while.
func (r *rail) tick() {
	r.device.take() // completions that are there count, however late its goroutine is
	r.device.expect()
	r.mu.Lock()
	r.ticking = false
	limit, now := r.link.t.settings.Clock, clock.Now()
	for i := range r.slab {
		o := &r.slab[i]
		switch {
		case o.slice == nil || !o.asked || o.out == 0:
		case now < max(o.begun, o.lane.movesLocked(now)).Add(limit):
			r.tickLocked()
		default:
			withdrawn := errs.New(errs.Withdrawn, Name, "asked back, and nothing came").
				WithScope(errs.ScopeSlice, errs.SideUnknown)
			r.endLocked(o, withdrawn)
			lost := errs.New(errs.Lost, Name, "a neighbour was asked back, and its lane said nothing").
				WithScope(errs.ScopeSlice, errs.SideUnknown)
			lost.Collateral = true
			o.lane.failLocked(lost)
			r.mendLocked()
		}
	}
	r.unlock()
}

// evict ends the slices that news of a region forbid, and returns the number of slices that are still out.
func (r *rail) evict(region uint64) (left int) {
	r.mu.Lock()
	for i := range r.slab {
		o := &r.slab[i]
		if o.slice == nil || o.remote == nil || o.remote.region != region {
			continue
		}
		refusal := o.remote.refuses(o.slice.Epoch)
		switch {
		case refusal == nil:
		case o.out == 0 && !o.limbo:
			r.endLocked(o, refusal)
		default:
			if !o.whole {
				r.endLocked(o, refusal)
			}
			left++
		}
	}
	r.unlock()
	return left
}
