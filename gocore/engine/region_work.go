package engine

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// regionWork is the goroutines on which transports register regions and forget them. A driver may hang in either, so
// the wait for them has a limit.
type regionWork struct {
	mu   sync.Mutex
	of   map[*region]int // goroutines
	none broadcast       // with the last one
}

// start calls f for a region on a goroutine.
func (w *regionWork) start(r *region, f func()) {
	w.mu.Lock()
	if w.of == nil {
		w.of = make(map[*region]int)
	}
	w.of[r]++
	w.mu.Unlock()
	go func() {
		defer w.ended(r)
		f()
	}()
}

func (w *regionWork) ended(r *region) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[r]--; w.of[r] == 0 {
		delete(w.of, r)
	}
	if len(w.of) == 0 {
		w.none.wake()
	}
}

// wait returns when no goroutine is left, or when the context ends with the regions of those that are.
func (w *regionWork) wait(ctx context.Context) (left []*region) {
	w.mu.Lock()
	if len(w.of) == 0 {
		w.mu.Unlock()
		return nil
	}
	none := w.none.wait()
	w.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.of))
}
