package kit

import (
	"context"
	"sync"
	"sync/atomic"
)

// Lifecycle is the frame of a transport's life. The zero value is open.
//
//	open ──Close──▶ closed: Begin refuses, goroutines of Go end, then end runs ──end returns──▶ ended
type Lifecycle struct {
	mu      sync.RWMutex // Begin reads, Close writes: once Close has it, nothing begins any more
	closed  atomic.Bool
	once    sync.Once
	running sync.WaitGroup // of Go
	ended   chan struct{}
	err     error // of end; read after ended
}

// Closed reports whether Close was called. It costs one load.
func (l *Lifecycle) Closed() bool { return l.closed.Load() }

// Begin runs f unless the transport is closed, and reports which. Entries that f makes in tables, and goroutines that
// it starts, Close's end finds there. f must neither block nor call Close.
func (l *Lifecycle) Begin(f func()) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed.Load() {
		return false
	}
	f()
	return true
}

// Go runs f on a goroutine that ends before Close's end begins, unless the transport is closed. It reports which.
func (l *Lifecycle) Go(f func()) bool {
	return l.Begin(func() { l.running.Go(f) })
}

// Close closes the transport and runs end, which gives everything back, once. Each call returns when end has, with its
// error, or when ctx ends, with that error: end then goes on.
func (l *Lifecycle) Close(ctx context.Context, end func() error) error {
	l.once.Do(func() {
		l.mu.Lock()
		l.closed.Store(true)
		l.ended = make(chan struct{})
		l.mu.Unlock()
		go func() {
			l.running.Wait()
			l.err = end()
			close(l.ended)
		}()
	})
	select {
	case <-l.ended: // also when ctx has ended, too
		return l.err
	default:
	}
	select {
	case <-l.ended:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
}
