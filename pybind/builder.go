package pybind

import (
	"sync"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
)

// builders are the calls of one engine that grow over several calls from Python, by number. They hold nothing of the
// engine, so an engine may close while some are left.
type builders struct {
	mu   sync.Mutex
	byID map[int64]*builder
	last int64
}

// builder is one of them. A Call is for one thread at a time and comes back for other transfers, so a second thread is
// refused: it would put its ranges into somebody else's.
type builder struct {
	call *engine.Call
	busy bool
	gone bool // ended while it was busy: its user discards the call
}

var (
	errUsedUp = errs.New(errs.InvalidEntry, "batch", "it was submitted or discarded")
	errBusy   = errs.New(errs.InvalidArgument, "batch", "another thread is using it").
			WithHint("a batch is for one thread at a time: give each thread its own, or hold a lock")
)

func newBuilders() *builders { return &builders{byID: map[int64]*builder{}} }

func (b *builders) add(c *engine.Call) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	b.byID[b.last] = &builder{call: c}
	return b.last
}

// use lets f add to a call.
func (b *builders) use(id int64, f func(*engine.Call) error) (err error) {
	of, err := b.borrow(id)
	if err != nil {
		return err
	}
	defer func() {
		if b.giveBack(of) {
			of.call.Discard()
			err = errUsedUp
		}
	}()
	return f(of.call)
}

func (b *builders) borrow(id int64) (*builder, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	of, err := b.freeLocked(id)
	if err == nil {
		of.busy = true
	}
	return of, err
}

func (b *builders) giveBack(of *builder) (gone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	of.busy = false
	return of.gone
}

// remove ends a builder, also where another thread is using it, and returns its call.
func (b *builders) remove(id int64) (*engine.Call, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	of, err := b.freeLocked(id)
	delete(b.byID, id)
	if of != nil {
		of.gone = true
	}
	if err != nil {
		return nil, err
	}
	return of.call, nil
}

func (b *builders) freeLocked(id int64) (*builder, error) {
	of := b.byID[id]
	switch {
	case of == nil:
		return nil, errUsedUp
	case of.busy:
		return of, errBusy
	}
	return of, nil
}
