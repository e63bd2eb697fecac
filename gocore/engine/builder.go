package engine

import (
	"sync"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
)

// BuilderID names a transfer that is being put together.
type BuilderID int64

// builders are calls that grow until they are committed as a whole or discarded. One builder is used by one thread at a
// time; tasks of several peers may be in it.
type builders struct {
	mu   sync.Mutex
	byID map[BuilderID]*call
	last BuilderID
}

// NewBuilder begins a transfer; Commit submits it all or nothing, Discard forgets it.
func (e *Engine) NewBuilder() (BuilderID, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	e.builders.mu.Lock()
	defer e.builders.mu.Unlock()
	e.builders.last++
	e.builders.byID[e.builders.last] = newCall()
	return e.builders.last, nil
}

func (e *Engine) builder(id BuilderID, remove bool) (*call, *errs.Error) {
	e.builders.mu.Lock()
	defer e.builders.mu.Unlock()
	c := e.builders.byID[id]
	if c == nil {
		return nil, errs.New(errs.InvalidEntry, "batch", "it was submitted or discarded")
	}
	if remove {
		delete(e.builders.byID, id)
	}
	return c, nil
}

// extend runs add on a builder's call and takes back what a failed add left behind. It returns the first task's index.
func (e *Engine) extend(id BuilderID, add func(*call) *errs.Error) (int, error) {
	c, err := e.builder(id, false)
	if err != nil {
		return 0, err
	}
	first := len(c.specs)
	if err := add(c); err != nil {
		c.specs = c.specs[:first] // what it used is given back with the builder
		return 0, err
	}
	return first, nil
}

// AddMove appends one request to a builder; Durable is ignored.
func (e *Engine) AddMove(id BuilderID, r *Request) (int, error) {
	return e.extend(id, func(c *call) *errs.Error {
		if err := r.Terms.Check(); err != nil {
			return err
		}
		return c.add(e, &r.Terms, r.Source, r.Remote, r.Length)
	})
}

// AddPages appends page moves to a builder; Note and Durable are ignored.
func (e *Engine) AddPages(id BuilderID, r *PagesRequest) (int, error) {
	return e.extend(id, func(c *call) *errs.Error { return c.pages(e, r) })
}

// AddRanges appends ranges to a builder; Note and Durable are ignored.
func (e *Engine) AddRanges(id BuilderID, r *RangesRequest) (int, error) {
	return e.extend(id, func(c *call) *errs.Error { return c.ranges(e, r) })
}

// Commit submits what was put together, all or nothing, and returns its batch. n may be nil. With durable it ends when all
// files that it writes are on stable storage.
func (e *Engine) Commit(id BuilderID, n *Note, durable bool) (dispatch.BatchID, error) {
	c, err := e.builder(id, true)
	if err != nil {
		return 0, err
	}
	defer c.free()
	if len(c.specs) == 0 {
		return 0, errs.New(errs.InvalidArgument, "batch", "it is empty")
	}
	if err := c.notify(e, n); err != nil {
		return 0, err
	}
	if err := c.settle(durable); err != nil {
		return 0, err
	}
	return e.start(c)
}

// Discard forgets a builder.
func (e *Engine) Discard(id BuilderID) {
	if c, err := e.builder(id, true); err == nil {
		c.free()
	}
}
