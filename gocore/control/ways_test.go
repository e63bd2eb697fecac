package control

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// at is a peer known by an address that is not its own.
func at(address string, of *node) transport.Peer {
	peer := of.self
	peer.Address = address
	return peer
}

// refusing is an address where nobody listens any more.
func refusing(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// elsewhere is another address of this machine with the same port.
func elsewhere(t *testing.T, address string) string {
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	return net.JoinHostPort("127.0.0.2", port)
}

// A peer names addresses of others, to make us call there. Only its own port of a plain address is tried, and that a
// few times a minute as long as it does not answer.
func TestAPeerCannotMakeUsKnockEverywhere(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0")
	var knocks atomic.Int32
	victim := stranger(t, func(net.Conn) { knocks.Add(1) })
	peer := transport.Peer{Address: elsewhere(t, victim), ID: transport.NumberedID(1), Network: a.self.Network}
	other := peer
	other.ID = transport.NumberedID(2)
	_, port, err := net.SplitHostPort(victim)
	require.NoError(t, err)
	a.client.Know(peer, []string{"127.0.0.1:1", "localhost:" + port, "0.0.0.0:" + port, "169.254.169.254:" + port,
		"[ff02::1]:" + port, victim})
	require.Equal(t, []string{peer.Address, victim}, a.client.ways.of(peer))
	a.client.Know(other, []string{victim})
	for range wayTries {
		for _, p := range []transport.Peer{peer, other} {
			ctx, cancel := context.WithTimeout(context.Background(), 10*headStart)
			_, err := a.client.Probe(ctx, p)
			cancel()
			require.Error(t, err)
		}
	}
	require.LessOrEqual(t, int(knocks.Load()), wayTries)
}

func TestAnyAddressOfThePeerWillDo(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0")
	for name, cut := range map[string]string{"silent": stranger(t, func(net.Conn) {}), "refusing": refusing(t)} {
		b := start(t, elsewhere(t, cut))
		peer := at(cut, b)
		_, err := a.client.Probe(within(t), peer)
		require.Error(t, err, name)
		a.client.Know(peer, []string{"0.0.0.0:1", "not an address", b.self.Address, b.self.Address})
		require.Equal(t, []string{cut, b.self.Address}, a.client.ways.of(peer))
		begin := time.Now()
		_, err = a.client.Probe(within(t), peer)
		require.NoError(t, err, name)
		require.Less(t, time.Since(begin), a.client.options.HandshakeTimeout,
			"%s: the other address is tried beside the first", name)
		require.Equal(t, []string{b.self.Address, cut}, a.client.ways.of(peer),
			"the address that answered is asked first from now on")
		answer, err := a.client.Call(within(t), peer, "tcp", []byte("hello"))
		require.NoError(t, err)
		require.Contains(t, string(answer), "tcp hello")
	}
}

func TestLoopbackAddressesOfAnotherMachineAreNoWay(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	peer := at("10.1.2.3:4", b)
	peer.Network = "elsewhere"
	a.client.Know(peer, []string{b.self.Address})
	require.Equal(t, []string{"10.1.2.3:4"}, a.client.ways.of(peer))
}

func TestAnotherIncarnationAtThePeersOwnAddressIsFinal(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	c := start(t, elsewhere(t, b.self.Address))
	peer := open(t, a, b)
	gone := peer
	gone.ID[0]++
	a.client.Know(gone, []string{c.self.Address})
	_, err := a.client.Probe(within(t), gone)
	require.Equal(t, errs.PeerRestarted, errs.CodeOf(err))
	require.ErrorContains(t, err, b.self.Address)

	moved := at(refusing(t), b) // another engine at another address proves nothing
	c = start(t, elsewhere(t, moved.Address))
	a.client.Know(moved, []string{c.self.Address})
	_, err = a.client.Probe(within(t), moved)
	require.Equal(t, errs.PeerUnreachable, errs.CodeOf(err))
	require.ErrorContains(t, err, moved.Address)
}
