package rdma

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// A connection may wait seconds for a link address. Neither other rails nor a fence wait with it, and of the calls that
// wait for their turn only the newest goes on.
func TestAConnectionThatWaitsHoldsUpItsRailAlone(t *testing.T) {
	g := &guest{rails: map[uint32]*guestRail{}, unheard: map[uint64]news{}}
	limited, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	first, err := g.begin(limited, 1, 1)
	require.Nil(t, err)
	other, err := g.begin(limited, 2, 1)
	require.Nil(t, err)
	<-other.busy
	g.cut(news{region: 7, closed: true})
	require.True(t, g.unheard[7].closed)

	overtaken := make(chan *errs.Error)
	go func() {
		_, err := g.begin(limited, 1, 2)
		overtaken <- err
	}()
	await(t, "the second call to wait", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return first.turn == 2
	})
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err = g.begin(gone, 1, 3)
	require.Equal(t, errs.Timeout, err.Code, "its peer waits for it no more")
	<-first.busy
	require.Equal(t, errs.StaleGeneration, (<-overtaken).Code)
	_, err = g.begin(limited, 1, 2)
	require.Equal(t, errs.StaleGeneration, err.Code)
	again, err := g.begin(limited, 1, 4)
	require.Nil(t, err)
	require.Same(t, first, again)

	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
	<-again.busy
	_, err = g.begin(limited, 1, 5)
	require.False(t, proof(err), "its queue pairs may be there: %v", err)
}

// TestACallThatGoesTwoWaysIsCarriedOutOnce: both have the same answer, also a refusal. One that is newer is another.
func TestACallThatGoesTwoWaysIsCarriedOutOnce(t *testing.T) {
	g := &guest{rails: map[uint32]*guestRail{}, unheard: map[uint64]news{}}
	limited, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	calls, wait := 0, make(chan struct{})
	ask := func(turn uint64) string {
		answer, err := g.once(limited, 1, turn, func(*guestRail) ([]byte, *errs.Error) {
			if calls++; turn == 1 {
				<-wait
			}
			if turn == 2 {
				return nil, errs.New(errs.RdmaError, "test", "refused %d", calls)
			}
			return []byte{byte(calls)}, nil
		})
		if err != nil {
			return err.Error()
		}
		return string(answer)
	}
	answers := make(chan string)
	for range 2 {
		go func() { answers <- ask(1) }()
	}
	close(wait)
	require.Equal(t, []string{"\x01", "\x01"}, []string{<-answers, <-answers})
	require.Equal(t, "test: refused 2", ask(2))
	require.Equal(t, "test: refused 2", ask(2))
	require.Contains(t, ask(1), "a call of before")
	require.Equal(t, "\x03", ask(3))
	require.Contains(t, ask(0), "a call of before", "no call has this turn")
}

// TestGuestsLeaveQueuePairsToOthers: a device has a number of them, also for other processes of the host.
func TestGuestsLeaveQueuePairsToOthers(t *testing.T) {
	var p guestPairs
	one, two := transport.NumberedID(1), transport.NumberedID(2)
	const most = pairsPerPeer + 1
	for range pairsPerPeer {
		require.True(t, p.take(one, most))
	}
	require.False(t, p.take(one, most))
	require.True(t, p.take(two, most))
	require.False(t, p.take(two, most), "all together")
	p.give(one)
	require.True(t, p.take(two, most))
	for range 2 {
		p.give(two)
	}
	require.NotContains(t, p.ofPeer, two)
}
