package rdma

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
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
	_, err = g.begin(limited, 1, 3)
	require.Equal(t, errs.StaleGeneration, err.Code)
	again, err := g.begin(limited, 1, 4)
	require.Nil(t, err)
	require.Same(t, first, again)

	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
	<-again.busy
	_, err = g.begin(limited, 1, 5)
	require.Equal(t, errs.EngineClosed, err.Code)
}
