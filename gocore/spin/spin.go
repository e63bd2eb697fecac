// Package spin decides whether a thread that looks in vain looks again, offers its processor to others, or sleeps
// (adaptive spinning).
//
// Sleeping and being woken takes 40 to 100 µs where the processor falls idle meanwhile, and many answers come sooner.
// So threads look for a while. Where the peer shares the processor, nothing can come before it is offered
// (sched_yield). Where a thread that computes shares it, an offer is taken for a time slice of some milliseconds: on
// Linux 6.18 a thread that yields gives up its place in the run queue, and one that sleeps has its place when it wakes.
// So a thread that has met such company sleeps at once, and tries again after twice as many waits each time.
package spin

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
)

// OfferEvery is the number of looks in vain before an offer. In one wait each further offer comes after twice as many
// (exponential backoff): one that nobody takes costs 0.5 µs, and an answer that comes meanwhile waits for its end.
const OfferEvery = 4

const (
	offerEarly = 3 // answers behind an offer in a row, from which on the first look in vain makes one
	sleepFirst = 8 // waits that sleep after the first loss
	lossesMost = 9
)

// longAway is an absence that no peer needs to answer, and that a thread which computes takes.
const longAway = 200 * time.Microsecond

// Company is the memory of the waits of an engine or of one of its threads. It knows whether others want their
// processors. Any goroutine may use it; the zero value knows nobody.
type Company struct {
	streak atomic.Uint32 // answers that came right behind an offer, in a row
	losses atomic.Uint32 // offers that lost the processor for long, less those that did not
	sleeps atomic.Uint32 // waits that are to sleep at once
}

// Sleeps reports, as a wait begins, that it should sleep at once.
func (c *Company) Sleeps() bool {
	n := c.sleeps.Load()
	if n > 0 {
		c.sleeps.Store(n - 1)
	}
	return n > 0
}

// Offer offers the processor to others. It reports false when it was lost for long.
func (c *Company) Offer() bool {
	before := clock.Now()
	yield()
	return c.Note(clock.Now().Sub(before))
}

// Note learns from an offer after which the thread was away for so long. It reports false when that is long.
func (c *Company) Note(away time.Duration) bool {
	losses := c.losses.Load()
	if away < longAway {
		if losses > 0 {
			c.losses.Store(losses - 1)
		}
		return true
	}
	if losses < lossesMost {
		c.losses.Store(losses + 1)
	}
	c.sleeps.Store(sleepFirst << losses)
	return false
}

// PassEvery is the time after which a thread passes Go's scheduler. Go's monitor preempts a thread that has not done it
// for twice as long (forcePreemptNS).
const PassEvery = 5 * time.Millisecond

// Passes is the memory of when a goroutine, or several, passed Go's scheduler. Any goroutine may use it.
type Passes struct{ last atomic.Int64 }

// Pass makes the calling goroutine pass Go's scheduler if the last time was PassEvery ago, and reports whether it did.
// One that makes nothing but system calls never passes it. The runtime's monitor (sysmon) then takes its P away in the
// next call, every 10 ms, and looks every 20 µs for a while afterwards. Each look interrupts a thread that works.
func (p *Passes) Pass(now clock.Time) bool {
	last := p.last.Load()
	if now.Sub(clock.Time(last)) < PassEvery || !p.last.CompareAndSwap(last, int64(now)) {
		return false
	}
	runtime.Gosched()
	return true
}

// Looks are those of one wait.
type Looks struct {
	Company *Company
	vain    int
	offered bool // after the last look
}

// Vain notes a look that found nothing, and offers the processor after some of them. It reports false when the wait
// should look once more and sleep then.
func (l *Looks) Vain() bool {
	l.vain++
	l.offered = l.vain >= OfferEvery && l.vain&(l.vain-1) == 0 || l.vain == 1 && l.Company.streak.Load() >= offerEarly
	return !l.offered || l.Company.Offer()
}

// Found notes a look that found an answer. Its first look says nothing about company.
func (l *Looks) Found() {
	streak := l.Company.streak.Load()
	switch {
	case l.offered && streak < offerEarly:
		l.Company.streak.Store(streak + 1)
	case !l.offered && l.vain > 0 && streak > 0:
		l.Company.streak.Store(0)
	}
	l.vain, l.offered = 0, false
}

// yield lets the other threads run that wait for this processor.
var yield = func() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
