package dispatch

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch/internal/intrusive"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/rail"
	"github.com/tent-engine/tent/gocore/transport"
)

// Bounds on the work of one step; the rest follows in the next one, which is due at once.
const (
	expireMost = 4096 // tasks ended by their deadline
	eventsMost = 256  // events; the rest is dropped, the counters have them all
	cutsMost   = 64   // slices: the first of many are on their way while the next are cut
)

// clockStallMin is the delay of a step, beyond the time it was due, from which the difference is taken out of rails'
// silence. Less is the usual lateness of a timer.
const clockStallMin = time.Millisecond

// retryRungs is the number of different pauses before a retry; each has a list of its own, in order of time by itself.
const retryRungs = 8

// Core is the state machine. Its methods are called by one goroutine at a time and return at once; nothing inside reads
// a clock. Every method that takes now may only be given a now that is not before the last one.
//
// The cost of a step is that of the work it does: queues, timers and lists are intrusive, so a million waiting tasks
// make neither a slice nor a step dearer. A slice costs some 170 to 350 ns from cut to completion on a 2-core virtual
// machine, hence one CPU carries 3 million slices a second, or 190 GB/s of 64 KiB each, through here; BenchmarkSlice
// measures it.
type Core struct {
	options  Options
	railed   []RailOptions // by transport
	standard RailOptions   // of transports beyond
	last     clock.Time    // of the last step or news
	promised clock.Time    // when the next step was due; 0 if nobody asked
	lost     clock.Time    // time in which a step was due and did not come: silence then proves nothing, see awake

	linkTable
	peers     map[uint32]*peer
	engines   map[transport.ID]*remoteEngine
	stages    []*stage // by StageID; 0 is none
	slotWaits uint64   // for slots of stages

	batches     []*batch
	vacant      []uint32 // slots of batches that are free
	gates       []*gate
	vacantGates []uint32
	pending     int // requests that have not ended, see TaskSpec.requests

	tasks    intrusive.Slab[task]
	pieces   intrusive.Slab[piece]
	attempts intrusive.Slab[attempt]
	runs     intrusive.Slab[run]
	ids      uint64 // of the last slice

	timers timers
	served intrusive.List[task]              // have been cut and not ended, by last progress: the stall limit
	ending [bounds]intrusive.List[task]      // wait for completions, by when that began: a list each fence bound
	parked [retryRungs]intrusive.List[piece] // wait for their retry
	active intrusive.List[link]              // may have something to cut; in turn, see Step

	devices map[deviceKey]*device
	auction auction
	entries [ClassCount]int // of entriesOf

	outstanding int
	cuts        int    // slices cut in this step
	hedged      uint64 // slices taken over from rails that would have ended last
	out, spare  *Effects
	step        uint64
	scratch     []*task
	gathering   uint32 // the number of the latest list in scratch, see gather
	fated       fated
	overdue     bool    // tasks past their deadline are left for the next step
	tellers     []*peer // have an event about missed deadlines to come
	arrivals    int64   // of tasks in queues by deadline, ever

	counters  [][ClassCount]Counters // by transport
	failovers [][]uint64             // by transport, from and to
	totals    []railTotals           // by transport

	sightings []rail.Sighting // of blameEnds
	ends      endTable
}

// New makes a core without links.
func New(options Options) *Core {
	c := &Core{
		options:   options.withDefaults(),
		linkTable: linkTable{links: make([]*link, 1), generations: make([]uint32, 1)},
		stages:    make([]*stage, 1),
		gates:     []*gate{{}}, // 0 is none
		peers:     map[uint32]*peer{},
		engines:   map[transport.ID]*remoteEngine{},
		devices:   map[deviceKey]*device{},
		ends:      endTable{byName: map[string]*end{}},
		tasks:     intrusive.Slab[task]{Chunk: 64},
		pieces:    intrusive.Slab[piece]{Chunk: 64},
		attempts:  intrusive.Slab[attempt]{Chunk: 1}, // one by one, see attempt
		runs:      intrusive.Slab[run]{Chunk: 64},
		out:       &Effects{},
		spare:     &Effects{},
		step:      1,
		counters:  make([][ClassCount]Counters, max(len(options.Transports), 1)),
		failovers: make([][]uint64, max(len(options.Transports), 1)),
	}
	for i := range c.failovers {
		c.failovers[i] = make([]uint64, len(c.failovers))
	}
	for _, o := range c.options.Rails {
		c.railed = append(c.railed, o.withDefaults(&c.options))
	}
	c.standard = RailOptions{Settings: c.options.Rail}.withDefaults(&c.options)
	return c
}

// optionsOf are the options of a transport with rails. They stay where they are.
func (c *Core) optionsOf(transport uint8) *RailOptions {
	if int(transport) < len(c.railed) {
		return &c.railed[transport]
	}
	return &c.standard
}

// Step runs the timers that are due, cuts slices for the rails that have room, and returns all orders to the engine.
// Those of calls since the last step are among them. The result is valid until the next call of any method.
func (c *Core) Step(now clock.Time) *Effects {
	if invariants {
		defer c.checkInvariants()
	}
	c.wakeUp(now)
	c.last, c.promised = now, 0
	c.runTimers(now)
	c.wakeParked(now)
	c.wakeStages(now)
	c.endStalled(now)
	c.fenceBounds(now)
	c.cuts = 0
	// Cutting may fail a task over, which makes another link active. One that uses up the step goes behind the others.
	for l := c.active.First(); l != nil && c.cuts < cutsMost; l = c.active.First() {
		l.turn.Unlink()
		c.pump(l, now)
	}
	return c.flip()
}

// flip hands out the effects that were gathered and begins to gather anew in the other half.
func (c *Core) flip() *Effects {
	c.emitMisses(c.last)
	done := c.out
	for _, b := range done.Changed {
		if slot := c.batches[b.Slot()]; slot.id() == b {
			slot.noted = false
		}
	}
	c.out, c.spare = c.spare, done
	c.out.Submit, c.out.Withdraw, c.out.Fence = c.out.Submit[:0], c.out.Withdraw[:0], c.out.Fence[:0]
	c.out.AskLiveness, c.out.Probe = c.out.AskLiveness[:0], c.out.Probe[:0]
	c.out.Stale, c.out.Retired, c.out.Astray = c.out.Stale[:0], c.out.Retired[:0], c.out.Astray[:0]
	c.out.Changed, c.out.Ended, c.out.Events = c.out.Changed[:0], c.out.Ended[:0], c.out.Events[:0]
	c.out.Deserted = c.out.Deserted[:0]
	c.step++
	return done
}

// runTimers runs the timers that are due.
func (c *Core) runTimers(now clock.Time) {
	budget := expireMost
	c.overdue = false
	for t := c.timers.PopDue(now); t != nil; t = c.timers.PopDue(now) {
		switch {
		case t.Owner.link != nil:
			c.tendLink(t.Owner.link, now)
		case t.Owner.rail != nil:
			c.watchRail(t.Owner.rail, now)
		case t.Owner.held != nil:
			c.activate(t.Owner.held)
		case t.Owner.device != nil:
			c.publish(t.Owner.device, now)
		case t.Owner.peer != nil:
			c.watchPeer(t.Owner.peer, now)
		case !c.expireRun(t.Owner.run, &budget, now):
			c.timers.Set(t, now)
			c.overdue = true
			return
		}
	}
}

// Deadline is when Step must be called again at the latest, clock.Never if nothing but events can change anything.
func (c *Core) Deadline() clock.Time {
	c.promised = c.deadline()
	return c.promised
}

func (c *Core) deadline() clock.Time {
	if c.active.Len() > 0 {
		return c.last
	}
	next := c.timers.Next()
	for _, p := range c.tellers {
		next = min(next, p.tellAt())
	}
	for _, s := range c.stages[1:] {
		if s.turnEnds > c.last { // others may have the slot that is kept until then
			next = min(next, s.turnEnds)
		}
	}
	if t := c.served.First(); t != nil {
		next = min(next, c.wall(t.progress.Add(c.options.Stall)))
	}
	for i := range c.ending {
		if t := c.ending[i].First(); t != nil {
			next = min(next, c.wall(t.progress.Add(c.fenceBound(i))))
		}
	}
	for i := range c.parked {
		if p := c.parked[i].First(); p != nil {
			next = min(next, p.due)
		}
	}
	return next
}

// Outstanding is the number of slices that were handed out and have neither completed nor been refused, and of tasks
// that callers are carrying out.
func (c *Core) Outstanding() int { return c.outstanding }

// Pending is the number of requests that have not ended; each part of a task is one.
func (c *Core) Pending() int { return c.pending }

// mark finds a rail's posting among those of the current step.
type mark struct {
	step  uint64
	index int
}

// posting returns the rail's entry in a list of effects, making it at its first use in a step.
func (c *Core) posting(list *[]Posting, m *mark, r *railState) *Posting {
	if m.step == c.step {
		return &(*list)[m.index]
	}
	n := len(*list)
	if n == cap(*list) {
		*list = append(*list, Posting{})
	} else {
		*list = (*list)[:n+1] // with the array that its entry had before
	}
	*m = mark{c.step, n}
	p := &(*list)[n]
	*p = Posting{Transport: r.link.spec.Transport, Link: r.link.id, Rail: r.id, Slices: p.Slices[:0]}
	return p
}

// emit adds an event.
func (c *Core) emit(e event.Event) {
	if len(c.out.Events) < eventsMost {
		c.out.Events = append(c.out.Events, e)
	}
}

// transportName of a transport, for events and errors.
func (c *Core) transportName(i uint8) string {
	if int(i) < len(c.options.Transports) {
		return c.options.Transports[i]
	}
	return ""
}

// activate marks a link for the next step, which then looks whether its rails can take something.
func (c *Core) activate(l *link) {
	if !l.turn.Linked() {
		c.active.PushBack(&l.turn, l)
	}
}
