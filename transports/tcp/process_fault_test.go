package tcp

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

func TestBytesArriveInAnotherProcess(t *testing.T) {
	c := newCouple(t, Settings{Addresses: []string{"127.0.0.1", "::1"}}, 8<<20)
	var list []*transport.Slice
	for i := range 8 {
		list = append(list, c.slice(transport.Write, i%2, i<<20, 1<<20))
	}
	for _, s := range list {
		require.Equal(t, 1, c.tr.Submit([]*transport.Slice{s}))
	}
	c.awaitEnds(t, 5*time.Second, list...)
	for _, s := range list {
		require.Nil(t, c.ends[s].Err)
	}
	require.Equal(t, sum(c.memory), c.child.sum(t, 0, len(c.memory)))
}

// TestKilledPeerEndsEverythingWithinASecond also looks at a second peer, which must not notice.
func TestKilledPeerEndsEverythingWithinASecond(t *testing.T) {
	c := newCouple(t, Settings{}, 16<<20)
	other := newCouple(t, Settings{}, 1<<20)
	require.NoError(t, c.child.Stop()) // so that much is outstanding when it dies
	var list []*transport.Slice
	for i := range 16 {
		s := c.slice(transport.Op(i%2), 0, i<<20, 1<<20)
		if c.tr.Submit([]*transport.Slice{s}) == 1 {
			list = append(list, s)
		}
	}
	require.Greater(t, len(list), 4)
	begin := time.Now()
	require.NoError(t, c.child.Signal(unix.SIGKILL))
	c.awaitEnds(t, 5*time.Second, list...)
	require.Less(t, time.Since(begin), time.Second)
	c.await(t, "LinkDown", time.Second, func() bool { return c.dead != nil })
	require.Equal(t, errs.PeerUnreachable, c.dead.Code)
	require.Equal(t, errs.SideRemote, c.dead.Side)
	require.Equal(t, c.child.Peer.Address, c.dead.Peer)
	for _, s := range list {
		require.NotNil(t, c.ends[s].Err)
	}
	s := other.slice(transport.Write, 0, 0, 1<<20)
	require.Equal(t, 1, other.tr.Submit([]*transport.Slice{s}))
	other.awaitEnds(t, 5*time.Second, s)
	require.Nil(t, other.ends[s].Err)
	require.Zero(t, other.downs)
}

// TestStoppedPeerWritesNothingThatWasWithdrawn stops a process with bytes in its sockets, which their sender gives
// up. They do not land when the process goes on, although the withdrawal lies behind them in the stream.
func TestStoppedPeerWritesNothingThatWasWithdrawn(t *testing.T) {
	for _, c := range []struct {
		name  string
		lease time.Duration
		bytes int  // of a slice
		asks  bool // slept for longer than its lease, so it asks before it reads
	}{
		{"shorter than the lease", time.Minute, 256 << 10, false},
		{"longer than the lease", 50 * time.Millisecond, 256 << 10, true},
		// the kernel joins the questions that follow to these packets, which then look as new as the last question
		{"longer than the lease, short slices", 400 * time.Millisecond, 512, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newCouple(t, Settings{Lease: c.lease, UserTimeout: time.Minute}, 4<<20)
			before := p.child.sum(t, 0, len(p.memory))
			require.NoError(t, p.child.Stop())
			var list []*transport.Slice
			for i := range 4 {
				list = append(list, p.slice(transport.Write, 0, i<<20, c.bytes))
			}
			require.Equal(t, 4, p.tr.Submit(list))
			p.tr.Withdraw(list)
			if c.asks { // the bytes must have waited for longer than the lease
				timer := time.NewTimer(3 * c.lease)
				<-timer.C
			}
			require.NoError(t, p.child.Signal(unix.SIGCONT))
			p.awaitEnds(t, 5*time.Second, list...)
			landed := 0
			for _, s := range list {
				if p.ends[s].Err == nil {
					landed++
				} else {
					require.Equal(t, errs.Withdrawn, p.ends[s].Err.Code)
				}
			}
			if c.asks {
				require.Zero(t, landed, "the sender was not asked")
				require.Equal(t, before, p.child.sum(t, 0, len(p.memory)))
			}
			again := p.slice(transport.Write, 0, 0, 1<<20)
			p.await(t, "a rail", 5*time.Second, func() bool { return len(p.rails) > 0 })
			again.Rail = p.rails[0].Rail
			require.Equal(t, 1, p.tr.Submit([]*transport.Slice{again}))
			p.awaitEnds(t, 5*time.Second, again)
			require.Nil(t, p.ends[again].Err)
		})
	}
}

// TestDetachFromAStoppedPeerEndsWithItsAnswer: nothing of a READ is delivered any more, and a WRITE may still land.
func TestDetachFromAStoppedPeerEndsWithItsAnswer(t *testing.T) {
	c := newCouple(t, Settings{}, 4<<20)
	require.NoError(t, c.child.Stop())
	list := []*transport.Slice{c.slice(transport.Write, 0, 0, 1<<20), c.slice(transport.Read, 0, 1<<20, 1<<20)}
	require.Equal(t, 2, c.tr.Submit(list))
	c.tr.Detach(c.link)
	c.awaitEnds(t, 5*time.Second, list[1])
	require.Equal(t, errs.Withdrawn, c.ends[list[1]].Err.Code)
	require.Nil(t, c.end(list[0]).Slice)
	require.NoError(t, c.child.Signal(unix.SIGCONT))
	c.awaitEnds(t, 5*time.Second, list[0])
}

func TestIdleTransportUsesNoProcessorTime(t *testing.T) {
	c := newCouple(t, Settings{}, 1<<20)
	s := c.slice(transport.Write, 0, 0, 4096)
	require.Equal(t, 1, c.tr.Submit([]*transport.Slice{s}))
	c.awaitEnds(t, 5*time.Second, s)
	begin := cpuSeconds(t)
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	<-ctx.Done()
	require.Less(t, cpuSeconds(t)-begin, 0.02)
}
