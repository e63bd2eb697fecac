package control

import (
	"context"
	"fmt"
	"maps"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/ports"
)

// at is a peer known by an address that is not its own.
func at(address string, of *node) transport.Peer {
	peer := of.self
	peer.Address = address
	return peer
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
			err := a.client.Probe(ctx, p)
			cancel()
			require.Error(t, err)
		}
	}
	require.LessOrEqual(t, int(knocks.Load()), wayTries)
}

func TestAnyAddressOfThePeerWillDo(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0")
	for name, cut := range map[string]string{"silent": stranger(t, func(net.Conn) {}), "refusing": ports.Address(t)} {
		b := start(t, elsewhere(t, cut))
		peer := at(cut, b)
		err := a.client.Probe(within(t), peer)
		require.Error(t, err, name)
		a.client.Know(peer, []string{"0.0.0.0:1", "not an address", b.self.Address, b.self.Address})
		require.Equal(t, []string{cut, b.self.Address}, a.client.ways.of(peer))
		begin := time.Now()
		err = a.client.Probe(within(t), peer)
		require.NoError(t, err, name)
		require.Less(t, time.Since(begin), a.client.options.HandshakeTimeout,
			"%s: the other address is tried beside the first", name)
		require.Equal(t, []string{b.self.Address, cut}, a.client.ways.of(peer),
			"the address that answered is asked first from now on")
		a.client.Know(peer, []string{b.self.Address})
		require.Equal(t, []string{b.self.Address, cut}, a.client.ways.of(peer), "the same news again change nothing")
		answer, err := a.client.Call(within(t), peer, "tcp", []byte("hello"))
		require.NoError(t, err)
		require.Contains(t, string(answer), "tcp hello")
	}
}

func TestLoopbackAddressesOfAnotherMachineAreNoWay(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	_, port, err := net.SplitHostPort(b.self.Address)
	require.NoError(t, err)
	peer := at("10.1.2.3:"+port, b)
	for network, want := range map[string][]string{a.self.Network: {"10.1.2.4:" + port, b.self.Address},
		"elsewhere": {"10.1.2.4:" + port}} {
		peer.Network = network
		peer.ID[0]++ // another engine
		a.client.Know(peer, []string{"10.1.2.4:" + port, b.self.Address})
		require.Equal(t, append([]string{peer.Address}, want...), a.client.ways.of(peer))
	}
}

func TestAnotherIncarnationAtThePeersOwnAddressIsFinal(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, ports.Address(t))
	c := start(t, elsewhere(t, b.self.Address))
	peer := open(t, a, b)
	gone := peer
	gone.ID[0]++
	a.client.Know(gone, []string{c.self.Address})
	err := a.client.Probe(within(t), gone)
	require.Equal(t, errs.PeerRestarted, errs.CodeOf(err))
	require.ErrorContains(t, err, b.self.Address)

	moved := at(ports.Address(t), b) // another engine at another address proves nothing
	c = start(t, elsewhere(t, moved.Address))
	a.client.Know(moved, []string{c.self.Address})
	err = a.client.Probe(within(t), moved)
	require.Equal(t, errs.PeerUnreachable, errs.CodeOf(err))
	require.ErrorContains(t, err, moved.Address)
}

// knownBy gives a client an engine with a further address at the same port, and returns the two.
func (n *node) knownBy(number int) (transport.Peer, string) {
	peer := transport.Peer{Address: fmt.Sprintf("10.0.%d.%d:7000", number>>8, number&255),
		ID: transport.NumberedID(uint64(number))}
	further := fmt.Sprintf("10.1.%d.%d:7000", number>>8, number&255)
	n.client.Know(peer, []string{further})
	return peer, further
}

// An address that has not answered is tried a few times a minute, and one that has at any time.
func TestAnAddressIsTriedAgainAMinuteLater(t *testing.T) {
	a := start(t, "127.0.0.1:0")
	peer, further := a.knownBy(1)
	w, now := &a.client.ways, time.Now()
	for minute := range 3 {
		for try := range 2 * wayTries {
			at := now.Add(time.Duration(minute)*wayEvery + time.Duration(try)*time.Second)
			require.Equal(t, try < wayTries, w.may(peer, further, at), "minute %d, try %d", minute, try)
			require.True(t, w.may(peer, peer.Address, at), "its own address is the user's word")
		}
	}
	w.prefer(peer, further)
	for range 2 * wayTries {
		require.True(t, w.may(peer, further, now))
	}
}

// Peers name address after address. The notes of them are bounded, and the newest one is kept.
func TestTheNotesOfAddressesAreBounded(t *testing.T) {
	a := start(t, "127.0.0.1:0")
	w, now := &a.client.ways, time.Now()
	var last transport.Peer
	var further string
	for number := range waysMax + 100 {
		last, further = a.knownBy(number)
		_ = w.may(last, further, now)
	}
	require.Len(t, w.peers, waysMax)
	require.Len(t, w.knocks, waysMax)
	require.Equal(t, []string{last.Address, further}, w.of(last), "the newest is known")
	require.False(t, w.may(last, further, now), "nothing is tried that cannot be counted")
	require.True(t, w.may(last, further, now.Add(wayEvery)))
	require.Len(t, w.knocks, 1)

	known := maps.Clone(w.peers)
	a.client.Know(transport.Peer{Address: "10.3.0.1:7000", ID: transport.NumberedID(1)}, []string{"10.3.0.1:7000"})
	require.Equal(t, known, w.peers, "an engine with one address needs no note")
	many := make([]string, 3*wayMax)
	for i := range many {
		many[i] = fmt.Sprintf("10.2.0.%d:7000", i)
	}
	a.client.Know(last, many)
	require.Len(t, w.of(last), wayMax)
	for key := range known {
		require.NotNil(t, w.peers[key], "news of a known engine forget no other one")
	}
}
