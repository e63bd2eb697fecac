package engine

import (
	"sync"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// Terms are what a caller asks of a request besides the bytes and where they lie; see package request.
type Terms = request.Terms

// Remote is a place in a segment: an offset in a region, or, with Region 0, an address (an offset if the segment was
// opened on a region).
type Remote struct {
	Segment SegmentID
	Region  mem.RegionID
	Offset  uint64
}

// Request is one READ or WRITE between local memory and a place in a segment.
type Request struct {
	Terms
	Source uintptr
	Remote Remote
	Length uint64

	Durable bool // Move: the transfer ends when the file that it writes is on stable storage
}

// Note is a notification that is sent after the last byte of its batch has arrived.
type Note struct{ Name, Message []byte }

// call collects what one submit needs, in arrays that are used again: nothing is allocated on the way to the core.
type call struct {
	specs []dispatch.TaskSpec
	total uint64    // bytes of specs
	uses  []*region // each once
	lists []*places // of pages; given to the batch when it takes the specs
	files []fileUse // each once
	note  *note

	slices []*transport.Slice // for transports that carry out the call at once

	// The last pair of regions and its plan: neighbours usually share it.
	local  *region
	remote *remoteRegion
	want   wanted
	plan   *plan.Plan
	peer   *peer
	told   *peer // the last one that is an engine: who hears the notification
	peers  int   // how often that changed
}

var calls = sync.Pool{New: func() any { return new(call) }}

func newCall() *call { return calls.Get().(*call) }

func (c *call) free() {
	clear(c.specs)
	clear(c.uses)
	clear(c.files)
	freePlaces(c.lists)
	*c = call{specs: c.specs[:0], uses: c.uses[:0], lists: c.lists[:0], files: c.files[:0], slices: c.slices}
	calls.Put(c)
}

// add validates one piece and appends its task. The terms were checked.
func (c *call) add(e *Engine, t *Terms, source uintptr, at Remote, length uint64) *errs.Error {
	if length == 0 {
		return errs.New(errs.InvalidArgument, "submit", "the length is 0").WithHint("leave empty requests out")
	}
	local := c.local
	if local == nil || source < local.Addr || !mem.Contains(local.Size, uint64(source-local.Addr), length) {
		if local = e.regions.find(source, length); local == nil {
			return e.notRegistered(source, length)
		}
	}
	p, remote, offset, err := c.resolve(e, t.Due(), at, length)
	if err != nil {
		return err
	}
	if err := c.bind(t, p, local, remote, length); err != nil {
		return err
	}
	c.specs = append(c.specs, dispatch.TaskSpec{Terms: *t, Plan: c.plan, Local: source, Remote: offset,
		Length: length})
	return nil
}

func (e *Engine) notRegistered(source uintptr, length uint64) *errs.Error {
	if uint64(source)+length < length {
		return errs.New(errs.InvalidArgument, "submit", "%d bytes at %#x wrap around 2^64", length, source)
	}
	if r := e.regions.find(source, 1); r != nil {
		return errs.New(errs.AddressNotRegistered, "submit", "%d bytes at %#x leave the region %s of %d bytes at %#x",
			length, source, r.label(), r.Size, r.Addr)
	}
	return errs.New(errs.AddressNotRegistered, "submit", "no registered region holds %d bytes at %#x", length, source).
		WithHint("register the buffer first")
}

// resolve finds the remote region and the offset in it. A peer that was never spoken to is asked, until the deadline of the
// request at most.
func (c *call) resolve(e *Engine, deadline clock.Time, at Remote, length uint64) (*peer, *remoteRegion, uint64, *errs.Error) {
	h, err := e.segments.get(at.Segment)
	if err != nil {
		return nil, nil, 0, err
	}
	p := h.peer
	if cause := p.gone.Load(); cause != nil {
		return nil, nil, 0, cause
	}
	if !p.ready.Load() {
		if err := p.joinBy(deadline); err != nil {
			return nil, nil, 0, errs.From("submit", err)
		}
	}
	id := at.Region
	if id == 0 {
		id = h.base
	}
	if id == 0 { // by address
		remote := c.remote
		if remote == nil || c.peer != p || at.Offset < remote.Addr || !mem.Contains(remote.Size, at.Offset-remote.Addr, length) {
			if remote, err = p.at(at.Offset, length); err != nil {
				return nil, nil, 0, err
			}
		}
		return p, remote, at.Offset - remote.Addr, nil
	}
	remote := c.remote
	if remote == nil || c.peer != p || remote.ID != id {
		if remote, err = p.region(id); err != nil {
			return nil, nil, 0, err
		}
	}
	if !mem.Contains(remote.Size, at.Offset, length) {
		return nil, nil, 0, errs.New(errs.InvalidArgument, "submit", "%d bytes at offset %d leave the remote region %q of %d bytes",
			length, at.Offset, remote.Name, remote.Size).WithPeer(p.identity.Address, "", "")
	}
	return p, remote, at.Offset, nil
}

// bind makes c.plan the plan for a request of length bytes between the two regions, and checks what both of them allow.
func (c *call) bind(t *Terms, p *peer, local *region, remote *remoteRegion, length uint64) *errs.Error {
	want, err := p.wants(t, local, remote, length)
	if err != nil {
		return err
	}
	if c.plan != nil && c.local == local && c.remote == remote && c.want == want {
		return nil
	}
	if p.file != nil {
		if err := c.touch(p, t); err != nil {
			return err
		}
	}
	if t.Op == transport.Read && local.ReadOnly {
		return errs.New(errs.PermissionDenied, "submit", "a READ would write to the read-only buffer of region %s", local.label())
	}
	if remote.ReadOnly && t.Op == transport.Write || !p.identity.Self && !remote.Permission.Allows(t.Op == transport.Write) {
		return errs.New(errs.PermissionDenied, "submit", "%s of the remote region %q is not allowed: its permission is %s",
			t.Op, remote.Name, remote.Permission).WithPeer(p.identity.Address, "", "")
	}
	made, err := p.planFor(local, remote, want)
	if err != nil {
		return err
	}
	if p.file == nil && p != c.told {
		c.told = p
		c.peers++
	}
	c.local, c.remote, c.want, c.plan, c.peer = local, remote, want, made, p
	for _, r := range c.uses {
		if r == local {
			return nil
		}
	}
	c.uses = append(c.uses, local)
	return nil
}

// Submit adds requests to a batch: all of them or none. It returns the index of the first task. n may be nil.
func (e *Engine) Submit(id dispatch.BatchID, requests []Request, n *Note) (int, error) {
	return e.SubmitEach(id, len(requests), func(i int, r *Request) error { *r = requests[i]; return nil }, n)
}

// SubmitEach is Submit of count requests that fill makes one after the other, for callers who have them in another form.
func (e *Engine) SubmitEach(id dispatch.BatchID, count int, fill func(i int, r *Request) error, n *Note) (int, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	c := newCall()
	defer c.free()
	var r Request
	var checked Terms
	for i := range count {
		if err := fill(i, &r); err != nil {
			return 0, at(i, errs.From("submit", err))
		}
		if i == 0 || r.Terms != checked {
			if err := r.Terms.Check(); err != nil {
				return 0, at(i, err)
			}
			checked = r.Terms
		}
		if err := c.add(e, &r.Terms, r.Source, r.Remote, r.Length); err != nil {
			return 0, at(i, err)
		}
	}
	if err := c.notify(e, n); err != nil {
		return 0, err
	}
	if err := c.settle(false); err != nil {
		return 0, err
	}
	return e.submit(id, c)
}

// at adds the index of the request to an error.
func at(i int, err *errs.Error) *errs.Error {
	copied := *err
	copied.Op = copied.Op + " [" + itoa(i) + "]"
	return &copied
}

// Move starts a transfer of one request and returns its batch.
func (e *Engine) Move(r *Request) (dispatch.BatchID, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	c := newCall()
	defer c.free()
	if err := r.Terms.Check(); err != nil {
		return 0, err
	}
	if err := c.add(e, &r.Terms, r.Source, r.Remote, r.Length); err != nil {
		return 0, err
	}
	if err := c.settle(r.Durable); err != nil {
		return 0, err
	}
	return e.start(c)
}

// start makes a batch of exactly the call's tasks and submits them.
func (e *Engine) start(c *call) (dispatch.BatchID, error) {
	if most := e.config.Engine.MaxPendingRequests; len(c.specs) > most { // the largest batch; the core counts pages
		return 0, errs.New(errs.TooManyRequests, "submit", "%d requests in one call are more than max_pending_requests %d", len(c.specs), most)
	}
	c.sum()
	if by := e.inliner(c); by != nil {
		if id, _, done, err := e.inline(by, 0, c); err != nil {
			return 0, err
		} else if done {
			return id, nil
		}
	}
	quiet := e.quieten(c)
	e.mu.Lock()
	id, err := e.newBatch(max(1, len(c.specs)))
	if err == nil {
		if _, err = e.enqueue(id, c); err != nil {
			b, _ := e.lookup(id)
			e.release(b)
		}
	}
	e.launch(quiet)
	if err != nil {
		return 0, err
	}
	return id, nil
}
