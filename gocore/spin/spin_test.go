package spin

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

// scene is a company with offers that are counted, and taken for as long as away says.
type scene struct {
	Company
	away   time.Duration
	offers int
}

func newScene(t *testing.T) *scene {
	s, usual := &scene{}, yield
	t.Cleanup(func() { yield = usual })
	yield = func() {
		s.offers++
		for end := clock.Now().Add(s.away); clock.Now() < end; {
		}
	}
	return s
}

// vains looks in vain n times, and returns the numbers of the looks after which the processor was offered.
func (s *scene) vains(l *Looks, n int) (offered []int) {
	for k := 1; k <= n; k++ {
		before := s.offers
		l.Vain()
		if s.offers > before {
			offered = append(offered, k)
		}
	}
	return offered
}

// A peer on the same processor answers behind each offer: then the first look in vain makes one. A peer elsewhere
// answers whenever it likes, and is looked for.
func TestTheProcessorIsOfferedSoonWhereThatBringsBytes(t *testing.T) {
	s := newScene(t)
	l := Looks{Company: &s.Company}
	for range offerEarly {
		require.Equal(t, []int{4, 8}, s.vains(&l, 8))
		l.Found()
	}
	require.Equal(t, []int{1, 4}, s.vains(&l, 4), "bytes have come behind offers alone")
	l.Found()
	l.Found() // at the first look: that says nothing
	require.Equal(t, []int{1}, s.vains(&l, 1))
	l.Found()
	require.Equal(t, []int{1, 4}, s.vains(&l, 6))
	l.Found() // behind a look
	for range offerEarly {
		require.Equal(t, []int{4}, s.vains(&l, 4))
		l.Found()
	}
	require.Equal(t, []int{1}, s.vains(&l, 3))
	l.Found() // behind a look
	require.Equal(t, []int{4, 8, 16, 32, 64}, s.vains(&l, 100), "a long wait offers ever more rarely")
}

// Where offers cost the processor for long, waits sleep at once, and more of them each time. Offers that cost nothing
// undo that one by one.
func TestWaitsSleepAtOnceBesideThreadsThatCompute(t *testing.T) {
	s := newScene(t)
	slept := func() (n int) {
		for s.Sleeps() {
			n++
		}
		return n
	}
	require.False(t, s.Sleeps(), "nobody is known at first")
	s.away = 2 * longAway
	for _, want := range []int{8, 16, 32} {
		l := Looks{Company: &s.Company}
		require.True(t, l.Vain())
		require.True(t, l.Vain())
		require.True(t, l.Vain())
		require.False(t, l.Vain(), "the offer behind the fourth look is taken")
		require.Equal(t, want, slept())
	}
	s.away = 0
	require.True(t, s.Offer())
	require.True(t, s.Offer())
	require.Zero(t, slept(), "a processor that nobody wants is for spinning")
	s.away = 2 * longAway
	require.False(t, s.Offer())
	require.Equal(t, 16, slept(), "two of three losses are forgotten")
	for range 2 * lossesMost {
		s.Offer()
	}
	require.Equal(t, sleepFirst<<lossesMost, slept(), "it tries again at last")
}

// TestAGoroutinePassesTheSchedulerNowAndThen: one that is ready runs then. Go's scheduler prefers the goroutine that
// passes once in 61 times, so not twice in a row.
func TestAGoroutinePassesTheSchedulerNowAndThen(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var p Passes
	var ran atomic.Bool
	done := make(chan struct{})
	go func() { ran.Store(true); close(done) }()
	start := clock.Now()
	require.True(t, p.Pass(start))
	require.False(t, p.Pass(start.Add(PassEvery-1)), "not yet")
	require.True(t, p.Pass(start.Add(PassEvery)))
	require.True(t, ran.Load())
	<-done
}
