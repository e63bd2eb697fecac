package engine

import (
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/spin"
)

const (
	spinMost = 100 * time.Microsecond // a wait with its end within this time spins
	spinLast = 50 * time.Microsecond  // behind the last copied piece, see Wait
	spinTry  = 32                     // one wait of as many spins where they last longer
)

// spinner decides for how long a wait polls before it sleeps. Waking a sleeping thread costs 10 to 80 µs, a small
// transfer less than that. A wait spins only while that pays: when the core predicts the end soon, on more than one
// core, and only about as long as such waits have lasted lately. Where they last longer, because the cores are busy or
// the network is far, it parks at once, and one wait in spinTry tries again. So it does where other threads want its
// processor, see spin. With the setting busy_poll_us each wait spins for that long before it parks, those without a
// near end too. Any goroutine may use it.
type spinner struct {
	cores    int
	busyPoll time.Duration // least time that a wait spins
	usual    atomic.Int64  // ns that short waits have lasted lately
	waits    atomic.Uint32
	company  spin.Company  // the threads that want this processor
	vain     atomic.Uint32 // looks of Progress that found nothing
	passes   spin.Passes   // of waiters
}

// limit returns the time that a wait may spin; short is one for a batch that should end soon.
func (s *spinner) limit(short bool) time.Duration {
	if s.cores < 2 {
		return 0
	}
	usual := time.Duration(s.usual.Load())
	if !short || usual > spinMost && s.waits.Add(1)%spinTry != 0 || s.company.Sleeps() {
		return s.busyPoll
	}
	return max(spinMost, s.busyPoll)
}

// learn keeps the usual length of short waits, as an EWMA (exponentially weighted moving average) with weight 1/8.
func (s *spinner) learn(took time.Duration) {
	usual := s.usual.Load()
	s.usual.Store(usual + (min(int64(took), int64(8*spinMost))-usual)/8)
}

// lookedInVain offers the processor to other threads now and then, for callers that poll without a wait.
func (s *spinner) lookedInVain() {
	if s.vain.Add(1)%spin.OfferEvery == 0 && !s.company.Sleeps() {
		s.company.Offer()
	}
}

// passScheduler makes the calling goroutine pass Go's scheduler now and then, where the process has one processor. With
// a second one nobody waits for the monitor's looks, and yielding costs a caller from Python 70 µs.
func (s *spinner) passScheduler(now clock.Time) {
	if s.cores < 2 {
		s.passes.Pass(now)
	}
}
