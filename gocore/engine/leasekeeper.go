package engine

import (
	"container/heap"
	"context"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// leaseKeeper ends leases when their time is up. Its goroutine is there while some lease has an end. A lease that peers
// do not let go in time is tried again until it has ended: it admits nothing meanwhile. Behind close, leases end with
// their regions.
type leaseKeeper struct {
	engine *Engine
	count  atomic.Int64 // of the ranges of leases that have not ended
	room   chan struct{}
	wake   chan struct{}

	background
	due   leaseHeap
	works bool
}

const (
	leaseEndsMax  = 64 // leases that are ended at the same time
	leaseEndLimit = 5 * time.Second
	leaseEndPause = time.Second // before the next try
)

func newLeaseKeeper(e *Engine) *leaseKeeper {
	k := &leaseKeeper{engine: e, room: make(chan struct{}, leaseEndsMax), wake: make(chan struct{}, 1)}
	k.init()
	return k
}

// admit counts the ranges of one more lease, unless there are too many.
func (k *leaseKeeper) admit(n int) *errs.Error {
	if k.count.Add(int64(n)) <= leasesMax {
		return nil
	}
	k.count.Add(-int64(n))
	return errs.New(errs.TooManyRequests, "share", "the leases that have not ended may have %d ranges", leasesMax).
		WithHint("close those that are not needed, or give them an end with expires=")
}

// keep sets the end of a new lease.
func (k *leaseKeeper) keep(l *region, expires time.Duration) { _ = k.renew(l, expires) }

// renew sets the end of a lease, 0 for none. It returns false if the lease has ended, or its time was up.
func (k *leaseKeeper) renew(l *region, expires time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	at, now := l.lease, clock.Now()
	if k.closed || at.ended || at.until <= now || l.life.state() != regionOpen {
		return false
	}
	at.until = clock.Never
	if expires > 0 {
		at.until = now.Add(expires)
	}
	k.scheduleLocked(l)
	return true
}

// end takes a lease off the schedule, for a caller that ends it.
func (k *leaseKeeper) end(l *region) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l.lease.ended, l.lease.until = true, clock.Never
	k.scheduleLocked(l)
}

// scheduleLocked puts a lease into its place in the heap, or outside where it has no end.
func (k *leaseKeeper) scheduleLocked(l *region) {
	at := l.lease
	switch {
	case at.until == clock.Never && at.place >= 0:
		heap.Remove(&k.due, at.place)
	case at.until == clock.Never:
	case at.place >= 0:
		heap.Fix(&k.due, at.place)
	default:
		heap.Push(&k.due, l)
	}
	if len(k.due) > 0 && !k.works {
		k.works = !k.closed
		if k.works {
			k.running.Go(k.run)
		}
	} else if at.place == 0 {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

func (k *leaseKeeper) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := clock.Now()
		k.mu.Lock()
		if len(k.due) == 0 || k.closed {
			k.works = false
			k.mu.Unlock()
			return
		}
		next := k.due[0]
		wait := next.lease.until.Sub(now)
		if wait <= 0 {
			heap.Pop(&k.due)
			next.lease.ended = true
		}
		k.mu.Unlock()
		if wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-k.wake:
			case <-k.ctx.Done():
			}
			continue
		}
		select {
		case k.room <- struct{}{}:
			k.running.Go(func() { k.finish(next) })
		case <-k.ctx.Done():
		}
	}
}

// finish ends a lease when its time is up. After an error it comes back.
func (k *leaseKeeper) finish(l *region) {
	defer func() { <-k.room }()
	ctx, cancel := context.WithTimeout(k.ctx, leaseEndLimit)
	defer cancel()
	err := k.engine.closeRegion(ctx, l.ID, "expired")
	if err == nil || k.ctx.Err() != nil {
		return
	}
	k.engine.log.Warn("a lease has expired, and a peer may still touch its bytes", "region", l.Name, "err", err)
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed {
		l.lease.until = clock.Now().Add(leaseEndPause)
		k.scheduleLocked(l)
	}
}

// leaseHeap has the leases with an end, the next one first.
type leaseHeap []*region

// Len implements heap.Interface.
func (h leaseHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h leaseHeap) Less(i, j int) bool { return h[i].lease.until < h[j].lease.until }

// Swap implements heap.Interface.
func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].lease.place, h[j].lease.place = i, j
}

// Push implements heap.Interface.
func (h *leaseHeap) Push(x any) {
	l := x.(*region)
	l.lease.place = len(*h)
	*h = append(*h, l)
}

// Pop implements heap.Interface.
func (h *leaseHeap) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	l.lease.place = -1
	return l
}
