package control

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/security/synfilter"
	"github.com/tent-engine/tent/gocore/transport"
)

// filter is a kernel that notes its filters. The timer of crowds calls it, too.
type filter struct {
	mu    sync.Mutex
	noted noted
}

type noted struct {
	networks []netip.Prefix
	passes   uint32
	changes  int
}

func (f *filter) attach(networks []netip.Prefix, passes uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noted = noted{networks, passes, f.noted.changes + 1}
}

func (f *filter) seen() noted {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.noted
}

func (f *filter) list() string { return fmt.Sprint(f.seen().networks) }

func crowding(t *testing.T) (*crowds, *filter) {
	c, f := newCrowds(), &filter{}
	c.attach = f.attach
	t.Cleanup(c.close)
	return &c, f
}

// push has strangers of a network leave at once. It returns how often the network was listed.
func push(c *crowds, network string, n int) (listed int) {
	for range n {
		if c.pushed(network, time.Now()) {
			listed++
		}
	}
	return listed
}

// A network is listed with the last of 512 in a second, and leaves the list when it has been quiet for five.
func TestACrowdIsListedUntilItIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := crowding(t)
		for range 3 { // many, and never enough within a second
			require.Zero(t, push(c, "10.0.0.9", crowdLeast-1))
			<-time.After(crowdSpan + 1)
		}
		require.Zero(t, f.seen().changes)
		require.Equal(t, 1, push(c, "10.0.0.9", crowdLeast+9))
		require.Equal(t, 1, push(c, "2001:db8::/64", crowdLeast))
		require.Equal(t, "[10.0.0.9/32 2001:db8::/64]", f.list())
		require.EqualValues(t, passesMost, f.seen().passes)
		for range 3 {
			push(c, "10.0.0.9", crowdStill)
			<-time.After(crowdSpan)
			synctest.Wait()
		}
		<-time.After(crowdRest - crowdSpan)
		synctest.Wait()
		require.Equal(t, "[10.0.0.9/32]", f.list(), "the other one is quiet for five seconds")
		<-time.After(2 * crowdSpan)
		synctest.Wait()
		require.Empty(t, f.seen().networks)
		changes := f.seen().changes
		<-time.After(time.Minute)
		require.Equal(t, changes, f.seen().changes, "nobody looks at an empty list")
		require.Equal(t, 1, push(c, "10.0.0.9", crowdLeast), "it may come again")
	})
}

// The lottery follows the crowd: it lets fewer pass while too many do, and more when it has become quiet.
func TestTheLotteryFollowsTheCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := crowding(t)
		push(c, "10.0.0.9", crowdLeast)
		second := func(n int) uint32 {
			push(c, "10.0.0.9", n)
			<-time.After(crowdSpan)
			synctest.Wait()
			return f.seen().passes
		}
		for _, passes := range []uint32{64, 256, 1024, 4096, 4096} {
			require.Equal(t, passes, second(crowdLeast))
		}
		require.EqualValues(t, 4096, second(crowdLeast-1))
		require.EqualValues(t, 4096, second(crowdStill))
		require.EqualValues(t, 2048, second(crowdStill-1))
		require.EqualValues(t, 1024, second(0))
	})
}

// A flood of networks is bounded, and those that were counted first stay.
func TestCountsOfCrowdsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := crowding(t)
		push(c, "10.0.0.9", crowdLeast)
		for i := range 1000 {
			push(c, fmt.Sprintf("10.1.%d.%d", i/256, i%256), 1)
		}
		require.Len(t, c.at, synfilter.NetworksMost)
		require.Zero(t, push(c, "10.2.0.1", crowdLeast), "there is no room for it")
		<-time.After(crowdSpan + time.Millisecond)
		require.Equal(t, 1, push(c, "10.2.0.1", crowdLeast))
		require.Equal(t, "[10.0.0.9/32 10.2.0.1/32]", f.list())
		c.close()
		require.Zero(t, push(c, "10.2.0.2", crowdLeast), "the server is closed")
	})
}

// Strangers that leave for their own network make a crowd, whether they were heard or not. One event names it. Peers,
// and strangers that leave for others, make none.
func TestStrangersThatLeaveForTheirOwnNetworkAreACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, speaks := range []bool{false, true} {
			b, f := newLobby(Limits{Strangers: 8, SilentPerHost: 4}), &filter{}
			b.crowds.attach = f.attach
			for port := range 8 + crowdLeast {
				if g := b.visit("10.0.0.9", port); speaks {
					b.speaks(g)
				}
			}
			require.Equal(t, "[10.0.0.9/32]", f.list(), "speaks %t", speaks)
			left := b.refusals[transport.RefusedLimit]
			b.visit("10.0.0.1", 1)
			require.LessOrEqual(t, b.refusals[transport.RefusedLimit], left+1)
			b.guests.close(true)
		}
		b, f := newLobby(Limits{Strangers: 8}), &filter{}
		b.crowds.attach = f.attach
		for i := range 4 * crowdLeast { // of as many networks
			b.speaks(b.visit(fmt.Sprintf("10.0.%d.%d", i/256, i%256), i))
		}
		require.Zero(t, f.seen().changes)
		b.guests.close(true)
	})
}
