package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// regionWork is the goroutines on which transports register regions and forget them. A driver may hang in either, so
// each wait for them has a limit.
type regionWork struct {
	most time.Duration // that a transport may take to forget a region; 0: undoLimit. Tests shorten it

	mu   sync.Mutex
	of   map[*region]*errands
	none broadcast // with the last one
}

// limit is the time that transports may take to forget a region.
func (w *regionWork) limit(r *region) time.Duration {
	return cmp.Or(w.most, undoLimit) + time.Duration(r.Size>>30)*registerPerGiB
}

// errands are the goroutines of a region.
type errands struct {
	n    int
	over chan struct{} // closed with the last
}

// start calls f for a region on a goroutine.
func (w *regionWork) start(r *region, f func()) {
	w.mu.Lock()
	if w.of == nil {
		w.of = make(map[*region]*errands)
	}
	if w.of[r] == nil {
		w.of[r] = &errands{over: make(chan struct{})}
	}
	w.of[r].n++
	w.mu.Unlock()
	go func() {
		defer w.ended(r)
		f()
	}()
}

func (w *regionWork) ended(r *region) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.of[r]
	if at.n--; at.n == 0 {
		delete(w.of, r)
		close(at.over)
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

// waitLeast is how long waitFor waits at least: a driver that does not hang needs some time, too.
const waitLeast = 100 * time.Millisecond

// waitFor returns when a region has no goroutine, true, or when the context ends.
func (w *regionWork) waitFor(ctx context.Context, r *region) bool {
	w.mu.Lock()
	at := w.of[r]
	w.mu.Unlock()
	if at == nil {
		return true
	}
	least := time.NewTimer(waitLeast)
	defer least.Stop()
	select {
	case <-at.over:
		return true
	case <-ctx.Done():
	}
	select {
	case <-at.over:
		return true
	case <-least.C:
		return false
	}
}

// find returns a region with a goroutine that is meant, or nil.
func (w *regionWork) find(meant func(*region) bool) *region {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range w.of {
		if meant(r) {
			return r
		}
	}
	return nil
}
