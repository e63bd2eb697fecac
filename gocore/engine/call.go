package engine

import (
	"fmt"
	"math/bits"
	"runtime"
	"strconv"
	"sync"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// Every transfer takes the same way into the engine:
//
//	Begin(terms) -> AddRange, AddRanges, AddPages, AddRecords ... -> Commit(note) or CommitTo(batch, note)
//	                  |                                         '-> Discard
//	                  '-- With(terms): other terms for the shapes that follow
//
// Move, Submit, Pages and Ranges are this in one call. A shape becomes tasks when it is added: its bounds, regions and
// permissions are checked then, and its plan is chosen. Nothing moves before the commit, which takes all tasks or none.

// Terms say how the bytes of a request are to travel; see package request.
type Terms = request.Terms

// Remote is a place in a segment: an offset in a region, or, with Region 0, an address. If the segment was opened on a
// region, that is an offset too.
type Remote struct {
	Segment SegmentID
	Region  mem.RegionID
	Offset  uint64
}

// Note is a notification that is sent after the last byte of its batch has arrived.
type Note struct {
	Name, Message []byte
	Trace         string // of a notification alone; a transfer has its own, see Call.Trace
}

// Call is a transfer that is being put together, perhaps to several peers. One goroutine uses it at a time; a commit or
// Discard ends it, and it must not be used afterwards. Its arrays are used again, so a call allocates nothing on its
// way to the core.
type Call struct {
	engine *Engine
	terms  Terms // of the shapes that follow; within their ranges

	specs   []dispatch.TaskSpec
	runs    []run             // of specs that go to one peer, in the order of specs
	total   uint64            // bytes of specs; this and the next ones are known when the call is complete, see sum
	due     clock.Time        // the earliest deadline of specs
	durable bool              // a request asks for durability
	classes transport.Classes // of specs
	streams bool              // a request asks for a stream
	files   []fileUse         // each once
	told    *peer             // the last peer that is an engine: it hears the notification
	peers   int               // how often told changed
	waits   bool              // and one of them is not done
	uses    []*region         // each once
	lists   []*places         // of pages; given to the batch when it takes the specs
	gates   []callGate        // of streams, each once
	note    *note
	trace   string // the caller's name for the transfer

	asksNobody bool // see AskNobody

	slices []*transport.Slice // for transports that carry out the call at once

	// The region that resolve found last, and its peer: neighbours usually lie in one. It need not be that of the plan.
	found   *remoteRegion
	foundAt *peer

	byAddress bool // resolve was asked for an address, and not for a region

	// The last pair of regions and its plan: neighbours usually share it.
	local      *region
	remote     *remoteRegion
	want       wanted
	durability request.Durability
	plan       *plan.Plan
	peer       *peer
}

var calls = sync.Pool{New: func() any { return new(Call) }}

// newCall returns an empty call of the engine.
func (e *Engine) newCall() *Call {
	c := calls.Get().(*Call)
	c.engine = e
	return c
}

// Begin starts a transfer; its shapes have the given terms.
func (e *Engine) Begin(t Terms) (*Call, error) {
	if err := e.usable(); err != nil {
		return nil, err
	}
	if err := t.Check(); err != nil {
		return nil, err
	}
	c := e.newCall()
	c.terms = t
	return c, nil
}

// With gives the shapes that follow other terms.
func (c *Call) With(t Terms) error {
	if err := t.Check(); err != nil {
		return err
	}
	c.terms = t
	return nil
}

// AskNobody makes every Add fail that would have to ask a peer, with an error that wraps Unasked. A caller that cannot
// wait there asks by Ask where it can, and puts the call together again.
func (c *Call) AskNobody() { c.asksNobody = true }

// AddRange adds one range of bytes. A failed Add leaves the call as it was.
func (c *Call) AddRange(source uintptr, to Remote, length uint64) error {
	return c.whole(c.mark(), c.add(&c.terms, source, to, length))
}

// AddRanges adds many ranges of one pair of operands, one task each.
func (c *Call) AddRanges(r *Ranges) error {
	before := c.mark()
	err := c.ranges(r)
	runtime.KeepAlive(r) // and with it the index slices, which are read by address
	return c.whole(before, err)
}

// AddPages adds pages of two grids, one task for each pair of regions.
func (c *Call) AddPages(p *Pages) error {
	before := c.mark()
	err := c.pages(p)
	runtime.KeepAlive(p)
	return c.whole(before, err)
}

// AddRecords adds packed requests. Each has terms of its own; neighbours with the same terms are checked once. An error
// names the index of its record.
func (c *Call) AddRecords(list []request.Record) error {
	if err := c.bounds(len(list), 1); err != nil {
		return err
	}
	before := c.mark()
	var packed request.Packed
	var terms Terms
	for i := range list {
		r := &list[i]
		if i == 0 || r.Packed != packed {
			packed = r.Packed
			terms = packed.Terms()
			if err := terms.Check(); err != nil {
				return c.whole(before, indexed(i, err))
			}
		}
		to := Remote{Segment: SegmentID(r.TargetID), Region: mem.RegionID(r.TargetRegion), Offset: r.TargetOffset}
		if err := c.add(&terms, uintptr(r.Source), to, r.Length); err != nil {
			return c.whole(before, indexed(i, err))
		}
	}
	return nil
}

// bounds refuses more requests than a call may have, before memory is taken for them: n more, each of some rows. A few
// bytes of a caller may name any number of both, and the core counts tasks that have been put together.
func (c *Call) bounds(n int, rows uint64) *errs.Error {
	most := uint64(c.engine.config.Engine.MaxPendingRequests)
	here := uint64(len(c.specs))
	high, all := bits.Mul64(uint64(n), rows)
	if high == 0 && here <= most && all <= most-here {
		return nil
	}
	what := fmt.Sprintf("%d requests", len(c.specs)+n)
	if rows > 1 {
		what = fmt.Sprintf("%d pages of %d rows", n, rows)
	}
	return errs.New(errs.TooManyRequests, "submit", "%s in one call are more than max_pending_requests %d", what, most).
		WithHint("split the call, or raise max_pending_requests")
}

// mark is the size of a call before an Add.
type mark struct{ specs, uses, lists int }

func (c *Call) mark() mark { return mark{len(c.specs), len(c.uses), len(c.lists)} }

// whole takes back an Add that has failed. The next one binds its regions anew: those of the last plan may be gone.
func (c *Call) whole(before mark, err *errs.Error) error {
	if err == nil {
		return nil
	}
	clear(c.specs[before.specs:])
	c.specs = c.specs[:before.specs]
	for n := len(c.runs); n > 0 && c.runs[n-1].first >= before.specs; n-- {
		c.runs[n-1] = run{}
		c.runs = c.runs[:n-1]
	}
	clear(c.uses[before.uses:])
	c.uses = c.uses[:before.uses]
	freePlaces(c.lists[before.lists:])
	c.lists = c.lists[:before.lists]
	c.plan = nil
	return err
}

// indexed adds the index of a request to an error.
func indexed(i int, err *errs.Error) *errs.Error {
	copied := *err
	copied.Op = copied.Op + " [" + strconv.Itoa(i) + "]"
	return &copied
}

// TraceMax bounds the caller's name for a transfer, in bytes.
const TraceMax = control.TraceMax

// Trace gives the transfer the caller's name for it. Its events, log lines and errors bear it. Its notification takes
// it to the peer, else a report does.
func (c *Call) Trace(name string) error {
	if len(name) > TraceMax {
		return errs.New(errs.InvalidArgument, "trace", "the trace has %d bytes, at most %d are allowed", len(name),
			TraceMax)
	}
	c.trace = name
	return nil
}

// Commit submits everything as a new batch, all or nothing. n may be nil. The call is used up, also by an error.
func (c *Call) Commit(n *Note) (dispatch.BatchID, error) {
	defer c.Discard()
	if err := c.complete(n); err != nil {
		return 0, err
	}
	return c.engine.start(c)
}

// CommitTo adds everything to a batch, all or nothing, and returns the index of the first task there.
func (c *Call) CommitTo(id dispatch.BatchID, n *Note) (first int, err error) {
	defer c.Discard()
	if err := c.complete(n); err != nil {
		return 0, err
	}
	return c.engine.submit(id, c)
}

// complete adds the parts of the end, the notification and the syncs of files, and looks at the streams.
func (c *Call) complete(n *Note) *errs.Error {
	if len(c.specs) == 0 {
		return errs.New(errs.InvalidArgument, "submit", "there is nothing to move")
	}
	c.sum()
	if err := c.notify(n); err != nil {
		return err
	}
	if err := c.limitSyncs(); err != nil || !c.streams {
		return err
	}
	return c.gate()
}

// Discard ends the call without a transfer.
func (c *Call) Discard() {
	clear(c.specs)
	clear(c.runs)
	clear(c.uses)
	clear(c.files)
	freePlaces(c.lists)
	if len(c.gates) > 0 {
		c.closeGates()
	}
	specs, runs, uses, lists, files, slices := c.specs[:0], c.runs[:0], c.uses[:0], c.lists[:0], c.files[:0], c.slices
	gates := c.gates
	*c = Call{} // zeroed in place: a literal with the arrays would be built elsewhere and copied
	c.specs, c.runs, c.uses, c.lists, c.files, c.slices = specs, runs, uses, lists, files, slices
	c.gates = gates
	calls.Put(c)
}

// start makes a batch of exactly the call's tasks and submits them.
func (e *Engine) start(c *Call) (dispatch.BatchID, error) {
	if err := c.bounds(0, 1); err != nil { // the largest batch; the core counts pages
		return 0, err
	}
	if by := e.inliner(c); by != nil {
		if id, _, done, err := e.inline(by, 0, c); err != nil {
			return 0, err
		} else if done {
			return id, nil
		}
	}
	quiet := e.quieten(c)
	e.mu.Lock()
	now := clock.Now()
	b, err := e.newBatch(max(1, len(c.specs)))
	id := dispatch.BatchID(0)
	if err == nil {
		id = b.id
		e.page.publish(id, dispatch.Completed, 0, 0, 0)
		if _, err = e.enqueue(b, c, now); err != nil {
			e.release(b)
		}
	}
	e.launch(quiet, now)
	if err != nil {
		return 0, err
	}
	return id, nil
}

// submit adds the call's tasks to a batch: all of them or none.
func (e *Engine) submit(id dispatch.BatchID, c *Call) (first int, err error) {
	if by := e.inliner(c); by != nil && id != 0 { // 0 is no batch, and inline would make one that nobody can free
		if _, first, done, failure := e.inline(by, id, c); failure != nil {
			return 0, failure
		} else if done {
			return first, nil
		}
	}
	quiet := e.quieten(c)
	e.mu.Lock()
	now := clock.Now()
	b, failure := e.lookup(id)
	if failure == nil {
		first, failure = e.enqueue(b, c, now)
	}
	e.launch(quiet, now)
	if failure != nil {
		return 0, failure
	}
	return first, nil
}

// run is a run of a call's tasks that go to one peer; it ends where the next one begins.
type run struct {
	to    *peer
	first int // index in Call.specs
}

// task appends a task to the peer that was bound last, over the plan that was chosen last, for the caller to place.
func (c *Call) task(t *Terms) *dispatch.TaskSpec {
	n := len(c.specs)
	if k := len(c.runs); k == 0 || c.runs[k-1].to != c.peer {
		c.runs = append(c.runs, run{c.peer, n})
	}
	c.specs = append(c.specs, dispatch.TaskSpec{})
	s := &c.specs[n]
	s.Terms, s.Plan, s.ByAddress = *t, c.plan, c.byAddress
	return s
}

// tasksOf returns the tasks of a run.
func (c *Call) tasksOf(i int) []dispatch.TaskSpec {
	end := len(c.specs)
	if i+1 < len(c.runs) {
		end = c.runs[i+1].first
	}
	return c.specs[c.runs[i].first:end]
}

// sum adds up the tasks: their bytes, their earliest deadline, their classes, their peers and files, and whether one
// asks for durability. They begin here: a fence of before has nothing to do with them.
func (c *Call) sum() {
	c.total, c.due, c.durable, c.classes = 0, clock.Never, false, 0
	for i := range c.runs {
		to, tasks := c.runs[i].to, c.tasksOf(i)
		if to.file != nil {
			c.useFile(to, tasks)
		} else if to != c.told {
			c.told = to
			c.peers++
		}
		epoch := to.currentEpoch()
		for k := range tasks {
			s := &tasks[k]
			s.Epoch = epoch
			c.total += s.Length
			c.classes |= 1 << s.Class
			c.due = min(c.due, s.Due())
			c.durable = c.durable || s.Durability == request.DurabilityData
			c.streams = c.streams || s.Stream != 0
		}
	}
}
