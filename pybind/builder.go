package pybind

import (
	"sync"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
)

// builders are the calls of one engine that grow over several calls from Python, by number. Each is used by one thread
// at a time. Calls hold nothing of the engine, so an engine may close while some are left.
type builders struct {
	mu   sync.Mutex
	byID map[int64]*engine.Call
	last int64
}

var errUsedUp = errs.New(errs.InvalidEntry, "batch", "it was submitted or discarded")

func newBuilders() *builders { return &builders{byID: map[int64]*engine.Call{}} }

func (b *builders) add(c *engine.Call) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	b.byID[b.last] = c
	return b.last
}

func (b *builders) get(id int64) (*engine.Call, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.byID[id]; c != nil {
		return c, nil
	}
	return nil, errUsedUp
}

func (b *builders) remove(id int64) (*engine.Call, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.byID[id]
	if c == nil {
		return nil, errUsedUp
	}
	delete(b.byID, id)
	return c, nil
}
