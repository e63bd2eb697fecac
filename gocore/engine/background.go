package engine

import (
	"context"
	"sync"
	"sync/atomic"
)

// background is the goroutines of a part of the engine, which embeds it above the fields that mu guards. None begins
// behind close.
type background struct {
	ctx     context.Context // ends with close
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

func (b *background) init() { b.ctx, b.stop = context.WithCancel(context.Background()) }

// start calls work on a goroutine. Behind close it does nothing and returns false.
func (b *background) start(work func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.running.Go(work)
	}
	return !b.closed
}

// close ends the work under way, and returns when every goroutine has ended.
func (b *background) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.stop()
	b.running.Wait()
}

// sideBySide works on all items side by side, at most a number of them at once, and returns when all are done.
func sideBySide[T any](list []T, most int, work func(T)) {
	room := make(chan struct{}, most)
	var working sync.WaitGroup
	for _, item := range list {
		room <- struct{}{}
		working.Go(func() {
			defer func() { <-room }()
			work(item)
		})
	}
	working.Wait()
}

// eachAtOnce bounds the leases of a region, or the peers, that are worked on at the same time.
const eachAtOnce = 16

// each calls a function for every item, several at once, and returns the first error. A peer that is slow delays all of
// them once.
func each[T any](list []T, do func(T) error) error {
	var first atomic.Pointer[error]
	sideBySide(list, eachAtOnce, func(item T) {
		if err := do(item); err != nil {
			first.CompareAndSwap(nil, &err)
		}
	})
	if err := first.Load(); err != nil {
		return *err
	}
	return nil
}

// broadcast wakes all goroutines that wait for a change, as sync.Cond does, and is waited for beside a timer or a
// context. Its owner guards it.
type broadcast struct{ next chan struct{} } // nil while nobody waits

// wait returns a channel that is closed by the next wake.
func (b *broadcast) wait() <-chan struct{} {
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

// wake ends the waits so far.
func (b *broadcast) wake() {
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}

// wake leaves a token in a channel with room for one, unless one is there.
func wake(token chan<- struct{}) {
	select {
	case token <- struct{}{}:
	default:
	}
}
