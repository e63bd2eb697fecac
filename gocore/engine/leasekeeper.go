package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// leaseKeeper ends leases when their time is up. Its goroutine is there while some lease has an end. A lease that peers
// do not let go in time is tried again until it has ended: it admits nothing meanwhile. These tries have a room of
// their own. So leases that are held up, by a host that has lost its power for example, delay the end of no other one.
// Behind close, leases end with their regions.
type leaseKeeper struct {
	engine *Engine
	count  atomic.Int64  // of the ranges of leases that have not ended
	room   chan struct{} // of first tries
	again  chan struct{} // of those behind them
	wake   chan struct{}

	background
	due   schedule[*region] // leases with an end
	works bool
}

const (
	leaseEndsMax  = 1024 // leases that are ended at the same time: an end is late where as many are held up at once
	leaseAgainMax = 64   // and those that are tried again
	leaseEndLimit = 5 * time.Second
	leaseEndPause = time.Second // before the next try
)

func newLeaseKeeper(e *Engine) *leaseKeeper {
	k := &leaseKeeper{engine: e, room: make(chan struct{}, leaseEndsMax), again: make(chan struct{}, leaseAgainMax),
		wake: make(chan struct{}, 1)}
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

// scheduleLocked gives a lease its place in the schedule, which has a goroutine and a timer.
func (k *leaseKeeper) scheduleLocked(l *region) {
	k.due.set(l)
	switch {
	case len(k.due) > 0 && !k.works && !k.closed:
		k.works = true
		k.running.Go(k.run)
	case l.lease.place == 0:
		wake(k.wake)
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
			k.due.remove(next)
			next.lease.ended = true
		}
		held := next.lease.held
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
		k.try(next, held)
	}
}

// try ends a lease when its time is up, as soon as there is room. One that was held up before comes back where there is
// none.
func (k *leaseKeeper) try(l *region, held bool) {
	if held {
		select {
		case k.again <- struct{}{}:
			k.running.Go(func() { k.finish(l, k.again) })
		default:
			k.tryLater(l)
		}
		return
	}
	select {
	case k.room <- struct{}{}:
		k.running.Go(func() { k.finish(l, k.room) })
	case <-k.ctx.Done():
	}
}

// finish ends a lease when its time is up. After an error it comes back.
func (k *leaseKeeper) finish(l *region, room <-chan struct{}) {
	defer func() { <-room }()
	ctx, cancel := context.WithTimeout(k.ctx, leaseEndLimit)
	defer cancel()
	err := k.engine.closeRegion(ctx, l.ID, "expired")
	if err == nil || k.ctx.Err() != nil {
		return
	}
	k.engine.log.Warn("a lease has expired, and a peer may still touch its bytes", "region", l.Name, "err", err)
	k.tryLater(l)
}

// tryLater gives a lease that is held up its next turn.
func (k *leaseKeeper) tryLater(l *region) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed {
		l.lease.held, l.lease.until = true, clock.Now().Add(leaseEndPause)
		k.scheduleLocked(l)
	}
}

func (r *region) due() clock.Time { return r.lease.until }
func (r *region) seat() *int      { return &r.lease.place }
