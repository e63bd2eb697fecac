package control

import (
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/control/intake"
	"github.com/tent-engine/tent/gocore/transport"
)

// parked has guests of one host come after its network has spent its credit.
func parked(t *testing.T, b *lobby, n int) (list []*guest) {
	t.Helper()
	b.turns.charge("10.0.0.9", creditMost+time.Second)
	for port := range n {
		g := b.visit("10.0.0.9", port)
		require.True(t, b.park(g))
		list = append(list, g)
	}
	return list
}

func TestANetworkThatOwesIsParkedUntilItHasPaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLobby(Limits{Connections: 8, SilentPerHost: 2})
		b.turns.free = 1
		begun := time.Now()
		list := parked(t, b, 4)
		require.Len(t, b.there(), 4, "nobody listens to them, so none is silent")
		require.False(t, b.park(b.visit("10.0.0.1", 9)), "another network does not wait")
		require.NoError(t, list[2].Close())
		way := exit{b.turns.room, nil, time.Hour}
		for _, i := range []int{3, 1, 0} { // the newest first; 2 has gone
			next, err := way.Accept()
			require.NoError(t, err)
			require.Same(t, list[i], next)
			one := &shaking{guest: list[i], limit: time.Hour}
			one.begin()
			require.True(t, one.holds && one.answered, "it has waited for this turn")
			require.Zero(t, b.turns.free)
			require.Equal(t, 1, b.silent.at["10.0.0.9"], "from now on it is")
			b.speaks(list[i])
			one.end()
		}
		require.InDelta(t, payback*time.Second, time.Since(begun), float64(time.Second))
		require.Equal(t, 1, b.turns.free)
		require.Empty(t, b.turns.networks)
	})
}

// The turn of a parked guest that leaves on its way to gRPC goes to the next one.
func TestTheTurnOfAParkedGuestIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLobby(Limits{Connections: 8})
		b.turns.free = 1
		list := parked(t, b, 2)
		<-time.After(payback * 2 * time.Second)
		synctest.Wait()
		require.Zero(t, b.turns.free)
		require.NoError(t, list[1].Close())
		require.True(t, list[0].holds.Load(), "it is the next one")
		require.NoError(t, list[0].Close())
		require.NoError(t, list[0].Close())
		require.Equal(t, 1, b.turns.free)
	})
}

// A guest for which there is no room on the way to gRPC is closed, and one that was parked for too long.
func TestTheWaitingRoomIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLobby(Limits{Connections: 1})
		b.turns.free = 2
		require.True(t, b.turns.room.enter(visitor()))
		list := parked(t, b, 1)
		<-time.After(payback * 2 * time.Second)
		synctest.Wait()
		require.True(t, list[0].gone)
		require.Equal(t, 2, b.turns.free)
		require.Equal(t, 1, b.refusals[transport.RefusedLimit], "it is counted")

		b = newLobby(Limits{})
		list = parked(t, b, 1)
		ended := make(chan error)
		go func() {
			_, err := exit{b.turns.room, nil, time.Second}.Accept()
			ended <- err
		}()
		<-time.After(payback * 2 * time.Second)
		synctest.Wait()
		require.True(t, list[0].gone)
		require.False(t, b.park(list[0]), "nobody waits for one that has gone")
		require.Equal(t, 1, b.refusals[transport.RefusedLimit], "it is counted")
		require.NoError(t, b.turns.room.Close())
		require.ErrorIs(t, <-ended, net.ErrClosed)
	})
}

func listening(t *testing.T) *intake.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n, err := intake.Open(listener)
	require.NoError(t, err)
	t.Cleanup(func() {
		n.Forget()
		_ = n.Close()
	})
	return n
}

// speaking is a connection that has said a word, for which the kernel waits.
func speaking(t *testing.T, n *intake.Listener) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", n.Addr().String(), patience)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte{1})
	require.NoError(t, err)
	return conn
}

// The connections of a flood take each other's places without another word: the newest ones stay, and their turns.
func TestTheNewestConnectionsOfAFloodStay(t *testing.T) {
	const flood, stay = 12, 3
	n := listening(t)
	b := newLobby(Limits{Strangers: stay})
	b.turns.charge("127.0.0.1", creditMost+time.Hour)
	var list []net.Conn
	for range flood {
		list = append(list, speaking(t, n))
	}
	for i := range list {
		s, err := n.Next(false)
		require.NoError(t, err)
		require.Equal(t, i >= stay, b.replace(s))
		if i < stay {
			require.True(t, b.park(b.admit(s)))
		}
	}
	require.Equal(t, flood-stay, b.refusals[transport.RefusedLimit], "each is counted")
	for i, conn := range list[:flood-stay] {
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err := conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET, i)
	}
	require.Len(t, b.there(), stay)
	b.turns.charge("127.0.0.1", -2*time.Hour)
	way := exit{b.turns.room, nil, patience}
	for i := flood - 1; i >= flood-stay; i-- { // the network pays, and the newest has the first turn
		conn, err := way.Accept()
		require.NoError(t, err)
		require.Equal(t, list[i].LocalAddr().String(), conn.(*guest).Conn.RemoteAddr().String())
		require.NoError(t, conn.Close())
	}
	require.Empty(t, b.turns.networks)
}

// A guest that is open, one of another host, and one of a network that is no crowd keep their places.
func TestOnlyAParkedConnectionOfTheSameHostIsReplaced(t *testing.T) {
	n := listening(t)
	next := func() *intake.Conn {
		speaking(t, n)
		s, err := n.Next(false)
		require.NoError(t, err)
		return s
	}
	b := newLobby(Limits{Strangers: 3})
	b.turns.charge("127.0.0.1", creditMost+time.Hour)
	one := b.admit(next())
	require.Nil(t, b.turns.replace("127.0.0.1", "127.0.0.1", next()), "it is not parked")
	require.True(t, b.park(one))
	b.visit("10.0.0.1", 1)
	b.visit("10.0.0.1", 2)
	late := next()
	require.False(t, b.replace(late), "another network crowds")
	require.Nil(t, b.turns.replace("127.0.0.1", "127.0.0.2", late), "another host")
	require.NotNil(t, b.turns.replace("127.0.0.1", "127.0.0.1", late))
	require.True(t, one.open())
	require.Nil(t, b.turns.replace("127.0.0.1", "127.0.0.1", next()), "it is open")
	require.NoError(t, one.Close())
}

// A connection that has a turn costs its network time, also without a word, until its guest names itself. So those that
// go again at once are parked soon.
func TestAnOpenConnectionCostsItsNetworkUntilItIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLobby(Limits{SilentPerHost: 1 << 20, Strangers: 1 << 20, Connections: 1 << 20})
		const most = int(creditMost/openCost) + 1
		var list []*guest
		for port := range most + 1 {
			g := b.visit("10.0.0.9", port)
			require.Equal(t, port == most, b.park(g), port)
			if port < most {
				require.True(t, g.open())
			}
			list = append(list, g)
		}
		b.identify(t, list[0], 1)
		b.identify(t, list[1], 2)
		require.False(t, b.park(b.visit("10.0.0.9", most+1)))
	})
}
