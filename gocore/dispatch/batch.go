package dispatch

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// batch is a set of tasks that the user submitted and awaits together. Its counts follow every change of a task, so
// that a summary never looks at the tasks.
type batch struct {
	slot       uint32
	generation uint32
	alive      bool
	freed      bool // by the user; goes when its last task ends
	noted      bool // in Effects.Changed of the step under way
	dirty      bool
	remains    *Remains // of its tasks that ended dirty; nil: none
	capacity   int
	tasks      []*task
	pending    int
	reserved   int // tasks that are being carried out by a caller
	ends       [Failed + 1]int
	bytes      uint64
	total      uint64
	attempts   uint32
	failovers  uint32
	transports uint32
	worst      State       // of those that have ended, COMPLETED apart
	failure    *errs.Error // of the first in that state
	trace      string      // the caller's name for it, in its events
	moved      *errs.Error // why the latest failover was made
}

// keepTasks bounds the table of tasks that a free slot keeps for its next batch.
const keepTasks = 4096

var (
	errStale    = errs.New(errs.Stale, "batch", "no such batch: it was freed, or it is somebody else's")
	errCanceled = errs.New(errs.Canceled, "transfer", "canceled by the user")
)

func (b *batch) id() BatchID { return BatchID(b.generation)<<32 | BatchID(b.slot) }

// Trace gives a batch the caller's name for it, which the events of its tasks bear, and returns the name before. Of
// several names the last counts.
func (c *Core) Trace(id BatchID, name string) (before string) {
	if b, err := c.findBatch(id); err == nil {
		before, b.trace = b.trace, name
	}
	return before
}

// NewBatch makes an empty batch for at most capacity tasks. Errors: InvalidArgument, TooManyRequests.
func (c *Core) NewBatch(capacity int) (BatchID, *errs.Error) {
	if invariants {
		defer c.checkInvariants()
	}
	if capacity <= 0 || capacity > c.options.Pending {
		return 0, errs.New(errs.InvalidArgument, "batch", "capacity %d is not between 1 and %d", capacity,
			c.options.Pending).
			WithHint("max_pending_requests is the largest batch")
	}
	if err := c.CheckRoom(); err != nil {
		return 0, err
	}
	if len(c.vacant) == 0 {
		c.batches = append(c.batches, &batch{slot: uint32(len(c.batches))})
		c.vacant = append(c.vacant, uint32(len(c.batches)-1))
	}
	last := len(c.vacant) - 1
	b := c.batches[c.vacant[last]]
	c.vacant = c.vacant[:last]
	slot, generation, tasks := b.slot, b.generation+1, b.tasks[:0]
	*b = batch{} // zeroed in place: a literal with the table would be built elsewhere and copied
	b.slot, b.generation, b.tasks, b.alive, b.capacity = slot, generation, tasks, true, capacity
	if b.generation == 0 { // after 4 billion batches in this slot; an id is never 0
		b.generation = 1
	}
	return b.id(), nil
}

// CheckRoom returns the error of NewBatch if no more batches may be alive. Errors: TooManyRequests.
func (c *Core) CheckRoom() *errs.Error {
	if len(c.vacant) > 0 || len(c.batches) < c.options.Batches {
		return nil
	}
	return errs.New(errs.TooManyRequests, "batch", "%d batches are alive", len(c.batches)).
		WithHint("free batches, or drop transfers, that have ended, or raise max_batches")
}

// findBatch returns a batch that the user has not freed.
func (c *Core) findBatch(id BatchID) (*batch, *errs.Error) {
	if slot := int(id.Slot()); slot < len(c.batches) {
		if b := c.batches[slot]; b.alive && !b.freed && b.id() == id {
			return b, nil
		}
	}
	return nil, errStale
}

func (c *Core) findTask(id BatchID, i int) (*task, *errs.Error) {
	b, err := c.findBatch(id)
	if err != nil {
		return nil, err
	}
	if i < 0 || i >= len(b.tasks) {
		return nil, errs.New(errs.InvalidEntry, "batch", "task %d of a batch with %d", i, len(b.tasks))
	}
	return b.tasks[i], nil
}

// Submit adds tasks to a batch, all or none, and returns the index of the first. They begin to move in the next step.
// Errors: Stale, TooManyRequests, InvalidArgument.
func (c *Core) Submit(id BatchID, specs []TaskSpec, now clock.Time) (int, *errs.Error) {
	if invariants {
		defer c.checkInvariants()
	}
	b, err := c.findBatch(id)
	if err != nil {
		return 0, err
	}
	if len(b.tasks)+b.reserved+len(specs) > b.capacity {
		return 0, errs.New(errs.TooManyRequests, "submit", "%d tasks do not fit: the batch holds %d of %d",
			len(specs), len(b.tasks)+b.reserved, b.capacity).WithHint("allocate a larger batch")
	}
	switch n := requests(specs); {
	case n > c.options.Pending:
		return 0, errs.New(errs.TooManyRequests, "submit",
			"%d requests in one call, each page counted, are more than max_pending_requests %d", n, c.options.Pending)
	case c.pending+n > c.options.Pending:
		return 0, errs.New(errs.TooManyRequests, "submit", "%d requests are pending", c.pending).
			WithHint("wait for some to end, or raise max_pending_requests")
	}
	for i := range specs {
		if err := check(&specs[i]); err != nil {
			return 0, err
		}
	}
	first := len(b.tasks)
	b.pending += len(specs) // at first: a task may end at once, and the batch does not with each
	var r *run
	var before *task // the last one that began on its first route, which was healthy
	for i := range specs {
		t := c.tasks.Get()
		t.spec, t.batch, t.index = specs[i], b, uint32(first+i)
		t.state, t.submitted = Pending, now
		r = c.joinRun(t, r)
		b.tasks = append(b.tasks, t)
		b.total += t.spec.Length
		c.pending += t.spec.requests()
		if g := c.findGate(t.spec.Gate); g != nil {
			c.holdTask(t, g)
		} else if before == nil || !c.queueBehind(t, before, now) {
			before = c.startTask(t, now)
		}
	}
	c.noteChange(b)
	return first, nil
}

// check refuses requests that no route could carry.
func check(s *TaskSpec) *errs.Error {
	switch {
	case s.Plan == nil || len(s.Plan.Routes) == 0:
		return errs.New(errs.InvalidArgument, "submit", "a request without a route")
	case s.Length == 0:
		return errs.New(errs.InvalidArgument, "submit", "a request of no bytes")
	case s.Parts != nil && !s.whole():
		return errs.New(errs.InvalidArgument, "submit", "%d bytes are not those of the request's parts", s.Length)
	}
	for i := range s.Plan.Routes {
		if fits(s, i) {
			return nil
		}
	}
	return errs.New(errs.InvalidArgument, "submit", "no route takes this alignment: local %#x, remote %#x, length %d",
		s.Local, s.Remote, s.Length)
}

// fits reports whether a request meets the alignment of a route.
func fits(s *TaskSpec, route int) bool {
	a := s.Plan.Routes[route].Alignment
	switch {
	case a <= 1:
		return true
	case s.Parts != nil:
		return s.partsFit(a)
	}
	return uint64(s.Local)%a == 0 && s.Remote%a == 0 && s.Length%a == 0
}

// joinRun puts a task under the timer of its neighbour if they share a deadline, else under one of its own.
func (c *Core) joinRun(t *task, r *run) *run {
	due := t.spec.Due()
	if due == clock.Never {
		return nil
	}
	if r == nil || r.alive == 0 || r.timer.At() != due {
		r = c.runs.Get()
		r.batch, r.first, r.timer.Owner.run = t.batch, int(t.index), r
		c.timers.Set(&r.timer, due)
	}
	r.n++
	r.alive++
	t.run = r
	return r
}

// noteChange lists a batch in the effects of this step.
func (c *Core) noteChange(b *batch) {
	if !b.noted {
		b.noted = true
		c.out.Changed = append(c.out.Changed, b.id())
	}
}

// Cancel asks the tasks [first, first+n) to end and returns how many had not ended. Errors: Stale, InvalidEntry.
func (c *Core) Cancel(id BatchID, first, n int, now clock.Time) (int, *errs.Error) {
	if invariants {
		defer c.checkInvariants()
	}
	b, err := c.findBatch(id)
	if err != nil {
		return 0, err
	}
	if first < 0 || n < 0 || first > len(b.tasks) || n > len(b.tasks)-first {
		return 0, errs.New(errs.InvalidEntry, "cancel", "tasks %d to %d of a batch with %d", first, first+n,
			len(b.tasks))
	}
	asked := 0
	for _, t := range b.tasks[first : first+n] {
		if t.state == Pending {
			asked++
			c.endTask(t, Canceled, errCanceled, now)
		}
	}
	return asked, nil
}

// FreeBatch gives a batch back. Its id is stale from now on; pending tasks go on, and the batch goes when the last one
// ends. Errors: Stale.
func (c *Core) FreeBatch(id BatchID) *errs.Error {
	if invariants {
		defer c.checkInvariants()
	}
	b, err := c.findBatch(id)
	if err != nil {
		return err
	}
	b.freed = true
	if b.pending == 0 && b.reserved == 0 {
		c.recycle(b)
	}
	return nil
}

// recycle gives the records of a batch back when none of its tasks is pending.
func (c *Core) recycle(b *batch) {
	for i, t := range b.tasks {
		b.tasks[i] = nil
		c.tasks.Put(t)
	}
	if cap(b.tasks) > keepTasks {
		b.tasks = nil
	}
	b.alive, b.tasks, b.failure, b.moved, b.remains = false, b.tasks[:0], nil, nil, nil
	c.vacant = append(c.vacant, b.slot)
}

// Status returns the state of one task. Errors: Stale, InvalidEntry.
func (c *Core) Status(id BatchID, i int) (Status, *errs.Error) {
	t, err := c.findTask(id, i)
	if err != nil {
		return Status{}, err
	}
	return Status{State: t.state, Dirty: t.dirty, Transport: t.path().Transport, Attempts: t.attempts,
		Failovers: t.failovers, Bytes: t.acked, Err: t.visibleFailure()}, nil
}

// visibleFailure is why a task ended; a verdict that is not carried out yet may still become COMPLETED.
func (t *task) visibleFailure() *errs.Error {
	if t.state == Pending || t.state == Completed {
		return nil
	}
	return t.failure
}

// Task returns the request as it was submitted. Errors: Stale, InvalidEntry.
func (c *Core) Task(id BatchID, i int) (TaskSpec, *errs.Error) {
	t, err := c.findTask(id, i)
	if err != nil {
		return TaskSpec{}, err
	}
	return t.submittedSpec(), nil
}

// Summary returns the state of a whole batch without a look at its tasks. Errors: Stale.
func (c *Core) Summary(id BatchID) (Summary, *errs.Error) {
	b, err := c.findBatch(id)
	if err != nil {
		return Summary{}, err
	}
	s := Summary{Trace: b.trace, Moved: b.moved, State: Completed, Dirty: b.dirty, Tasks: len(b.tasks),
		Pending: b.pending + b.reserved, Bytes: b.bytes, Total: b.total,
		Attempts: b.attempts, Failovers: b.failovers, Transports: b.transports, Err: b.failure}
	if s.Pending > 0 {
		s.State = Pending
		return s, nil
	}
	for _, state := range [...]State{Invalid, Canceled, TimedOut, Failed} { // the worst comes last
		if b.ends[state] > 0 {
			s.State = state
		}
	}
	return s, nil
}
