package control

import (
	"net"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// waiting starts a handshake that asks for a turn, and returns when it waits.
func waiting(s *turnstile, g *guest, answered bool, limit time.Duration) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.enter(g, answered, limit) }()
	synctest.Wait()
	return done
}

func visitor() *guest { return visitorFrom("10.0.0.1") }

func visitorFrom(network string) *guest { return &guest{network: network, left: make(chan struct{})} }

// turnsFor is a turnstile with n turns.
func turnsFor(n int) *turnstile {
	s := newTurnstile(4)
	s.free = n
	return s
}

func TestTheNewestHandshakeHasTheNextTurnAndAnsweredOnesGoBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := turnsFor(1)
		require.NoError(t, s.enter(visitor(), false, time.Second))
		first, second := waiting(s, visitor(), false, time.Hour), waiting(s, visitor(), false, time.Hour)
		older, newer := waiting(s, visitor(), true, time.Hour), waiting(s, visitor(), true, time.Hour)
		for _, next := range []<-chan error{newer, older, second, first} {
			require.Empty(t, next)
			s.leave()
			synctest.Wait()
			require.NoError(t, <-next)
		}
		s.leave()
		require.Equal(t, 1, s.free)
	})
}

// A network that owes much waits already when one comes that owes little, or when it is given back most of its debt.
func TestTheNetworkThatHasPaidFirstIsNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := turnsFor(1)
		const little, much, more = 5 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond
		for network, debt := range map[string]time.Duration{"10.0.0.1": little, "10.0.0.2": much, "10.0.0.3": more} {
			s.charge(network, creditMost+debt)
		}
		begin := time.Now()
		last := waiting(s, visitorFrom("10.0.0.3"), false, time.Hour)
		second := waiting(s, visitorFrom("10.0.0.2"), false, time.Hour)
		first := waiting(s, visitorFrom("10.0.0.1"), false, time.Hour)
		require.NoError(t, <-first)
		require.Equal(t, little*payback, time.Since(begin))
		s.leave()
		s.charge("10.0.0.3", 2*little-more)
		require.NoError(t, <-last)
		require.Equal(t, 2*little*payback, time.Since(begin))
		s.leave()
		require.NoError(t, <-second)
		require.Equal(t, much*payback, time.Since(begin))
	})
}

// A network that owes little comes while the only turn is taken, and one that owes much is awaited already.
func TestANetworkThatComesDuringATurnIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := turnsFor(1)
		const little, much = 5 * time.Millisecond, 100 * time.Millisecond
		s.charge("10.0.0.1", creditMost+little)
		s.charge("10.0.0.2", creditMost+much)
		begin := time.Now()
		second := waiting(s, visitorFrom("10.0.0.2"), false, time.Hour)
		require.NoError(t, <-waiting(s, visitorFrom("10.0.0.9"), false, time.Hour))
		first := waiting(s, visitorFrom("10.0.0.1"), false, time.Hour)
		s.leave()
		require.NoError(t, <-first)
		require.Equal(t, little*payback, time.Since(begin))
		s.leave()
		require.NoError(t, <-second)
		require.Equal(t, much*payback, time.Since(begin))
	})
}

func TestAFloodDelaysItsOwnNetworkMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := turnsFor(1)
		require.NoError(t, s.enter(visitor(), false, time.Second))
		var flood []<-chan error
		for i := range 100 {
			flood = append(flood, waiting(s, visitorFrom("10.0.0.9"), i%2 == 0, time.Hour))
		}
		honest := waiting(s, visitor(), false, time.Hour)
		for range 100 { // more of the flood come, and are newer
			flood = append(flood, waiting(s, visitorFrom("10.0.0.9"), false, time.Hour))
		}
		s.leave()
		s.leave()
		synctest.Wait()
		require.NoError(t, <-honest, "the second turn")
		for range flood {
			s.leave()
		}
		for _, end := range flood {
			require.NoError(t, <-end)
		}
		require.Equal(t, 1, s.free, "nobody waits")
	})
}

func TestAHandshakeWaitsForATurnNoLongerThanItsLimitOrItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := turnsFor(1)
		require.NoError(t, s.enter(visitor(), false, time.Second))
		closed := visitor()
		late, gone := waiting(s, visitor(), false, time.Second), waiting(s, closed, true, time.Hour)
		close(closed.left)
		require.ErrorIs(t, <-gone, net.ErrClosed)
		require.ErrorIs(t, <-late, os.ErrDeadlineExceeded)
		s.leave()
		require.Equal(t, 1, s.free, "nobody waits, and the turn is there for the next one")
		require.NoError(t, s.enter(visitor(), false, time.Second))
	})
}

// A turn that comes at the moment in which its handshake gives up is not lost.
func TestNoTurnIsLost(t *testing.T) {
	s := turnsFor(2)
	const handshakes = 400
	ended := make(chan bool, handshakes)
	for i := range handshakes {
		go func() {
			g := visitor()
			if i%3 == 0 {
				go close(g.left)
			}
			limit := time.Hour
			if i%7 == 0 {
				limit = time.Nanosecond
			}
			err := s.enter(g, i%2 == 0, limit)
			if err == nil {
				s.leave()
			}
			ended <- err == nil
		}()
	}
	passed := 0
	for range handshakes {
		if <-ended {
			passed++
		}
	}
	require.Positive(t, passed)
	require.Equal(t, 2, s.free)
	require.Empty(t, s.networks)
	require.Empty(t, s.rotation)
}

// A handshake that waits for its peer's next word holds no turn.
func TestAHandshakeThatWaitsForItsPeerHoldsNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLobby(Limits{})
		b.turns.free = 1
		here, there := net.Pipe()
		g := b.visit("10.0.0.1", 1)
		g.Conn = here
		one := &shaking{guest: g, limit: time.Second}
		word := make([]byte, 1)
		for range 2 {
			go func() { _, _ = there.Write(word) }()
			_, err := one.Read(word)
			require.NoError(t, err)
			require.Zero(t, b.turns.free, "it computes")
		}
		go func() { _, _ = one.Read(word) }()
		synctest.Wait()
		require.Equal(t, 1, b.turns.free, "it waits for its peer")
		require.NoError(t, there.Close())
		require.NoError(t, here.Close())
	})
}

// A process that stands still during a handshake has not computed for it, and its network owes for a turn alone.
func TestAPauseDuringATurnIsNotPaidFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLobby(Limits{})
		here, there := net.Pipe()
		g := b.visit("10.0.0.1", 1)
		g.Conn = here
		one := &shaking{guest: g, limit: time.Second}
		go func() { _, _ = there.Write(make([]byte, 1)) }()
		_, err := one.Read(make([]byte, 1))
		require.NoError(t, err)
		<-time.After(time.Minute) // in its turn
		one.end()
		require.Zero(t, b.turns.due(g.network), "others of its network have turns at once")
		require.Equal(t, int64(turnMost), g.owes.Load())
		require.NoError(t, there.Close())
		require.NoError(t, here.Close())
	})
}

// A network that owes for too many turns waits until it has paid, and the others do not. One with guests that have
// named themselves owes nothing.
func TestANetworkPaysForTheTurnsOfItsStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := turnsFor(1)
		stranger, honest := visitorFrom("10.0.0.9"), visitor()
		for _, g := range []*guest{stranger, honest} {
			s.charge(g.network, creditMost)
			require.NoError(t, s.enter(g, false, time.Second), "within its credit")
			s.leave()
			s.charge(g.network, time.Second)
		}
		s.charge(honest.network, -time.Second-creditMost)
		begun := time.Now()
		late := waiting(s, stranger, false, time.Hour)
		require.Empty(t, late)
		require.NoError(t, s.enter(honest, false, time.Second), "a turn is free")
		s.leave()
		require.NoError(t, s.enter(visitorFrom("10.0.0.8"), false, time.Second))
		require.Zero(t, time.Since(begun))
		synctest.Wait()
		require.Empty(t, late)
		s.leave()
		require.NoError(t, <-late)
		require.InDelta(t, payback*time.Second, time.Since(begun), float64(time.Second))
		s.leave()
		require.Equal(t, 1, s.free)

		late = waiting(s, stranger, false, time.Hour)
		require.NoError(t, <-late, "it has paid down to its credit")
		s.leave()
	})
}

// Debts of networks are bounded in number, and forgotten when they are paid.
func TestDebtsAreBoundedAndForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := turnsFor(1)
		for i := range 2 * debtsMost {
			s.charge(strconv.Itoa(i), time.Millisecond)
		}
		require.LessOrEqual(t, len(s.debts), debtsMost)
		<-time.After(time.Hour)
		s.charge("another", time.Millisecond)
		require.Len(t, s.debts, 1, "debts that were paid are forgotten")
	})
}
