package names

import (
	"context"
	"time"

	"github.com/tent-engine/tent/gocore/meta"
)

// hinted runs a watch, and returns its channel. The goroutine is the watch's own: it ends with ctx.
func hinted(ctx context.Context, watch func(ctx context.Context, hint func())) <-chan struct{} {
	hints := make(chan struct{}, 1)
	go func() {
		defer close(hints)
		watch(ctx, func() {
			select {
			case hints <- struct{}{}:
			default: // one is there already
			}
		})
	}()
	return hints
}

// rewatch is the pause before a broken watch begins again.
const rewatch = 100 * time.Millisecond

// Changed implements meta.Store: it watches the name, and asks after each hint. A watch is begun anew for each lease. A
// service that came back with an older state counts its changes again, and an old watch would wait for later ones.
func (n *Names) Changed(ctx context.Context, name string, from meta.Target) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.closing, cancel)()
	key, is := keyOf(name)
	if !is {
		<-ctx.Done()
		return
	}
	for ctx.Err() == nil {
		if n.changedWithinLease(ctx, key, name, from) {
			return
		}
		select {
		case <-time.After(rewatch):
		case <-ctx.Done():
		}
	}
}

// changedWithinLease is one watch of Changed.
func (n *Names) changedWithinLease(ctx context.Context, key, name string, from meta.Target) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, n.options.Lease)
	hints := n.options.Service.Watch(ctx, key)
	for range hints {
		target, err := n.Resolve(ctx, name)
		if changed = err == nil && target != from; changed {
			break
		}
	}
	cancel()
	for range hints { // until the watch has ended
	}
	return changed
}
