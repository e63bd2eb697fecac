package control

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/ports"
)

func TestRestartedPeerGetsItsPortAndIsFoundAtOnce(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0")
	address := ports.Address(t)
	b := start(t, address)
	for range 10 {
		old := open(t, a, b)
		b.close()
		b = start(t, address)
		require.Equal(t, address, b.self.Address)
		_, err := a.client.Call(within(t), old, "tcp", nil)
		require.Equal(t, errs.PeerRestarted, errs.CodeOf(err),
			"the call recovers the connection and meets the successor: %v", err)
		require.NotEqual(t, old, open(t, a, b))
	}
	b.close()
	_, err := a.client.Open(within(t), address)
	require.ErrorContains(t, err, "connection refused")
}

func TestOpenWorksInTheSameCallAfterARestart(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, ports.Address(t))
	for range 10 {
		open(t, a, b)
		b.close()
		b = start(t, b.self.Address)
		require.Equal(t, b.self.ID, open(t, a, b).ID)
	}
}

// cutter passes bytes on to target and can cut all connections, without either end having closed them.
func cutter(t *testing.T, target string) (address string, cut func()) {
	var pairs [][2]net.Conn
	arrived := make(chan [2]net.Conn, 100)
	address = stranger(t, func(in net.Conn) {
		out, err := net.Dial("tcp", target)
		if err != nil {
			in.Close()
			return
		}
		arrived <- [2]net.Conn{in, out}
		go func() { pass(in, out) }()
		pass(out, in)
	})
	cut = func() {
		for len(arrived) > 0 {
			pairs = append(pairs, <-arrived)
		}
		for _, pair := range pairs {
			pair[0].(*net.TCPConn).SetLinger(0)
			pair[0].Close()
			pair[1].Close()
		}
	}
	t.Cleanup(func() { cut() })
	return address, cut
}

func pass(to, from net.Conn) {
	buffer := make([]byte, 4096)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			to.Close()
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			from.Close()
			return
		}
	}
}

func TestNotificationsArriveExactlyOnceOverBrokenConnections(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	address, cut := cutter(t, b.self.Address)
	var mu sync.Mutex // a repetition may run beside the call that was cut off
	last := map[transport.ID]uint64{}
	var taken []string
	b.notified = func(_ context.Context, from transport.Peer, seq uint64, message []byte) error {
		mu.Lock()
		defer mu.Unlock()
		if seq%5 == 0 && seq > last[from.ID] {
			cut() // before the answer: the sender cannot know, and repeats
		}
		if seq == last[from.ID]+1 {
			last[from.ID] = seq
			taken = append(taken, string(message))
		}
		return nil
	}
	peer := transport.Peer{Address: address, ID: b.self.ID}
	var want []string
	for seq := uint64(1); seq <= 50; seq++ {
		want = append(want, fmt.Sprint(seq))
		require.NoError(t, a.client.Notify(within(t), peer, seq, fmt.Append(nil, seq)))
	}
	require.Equal(t, want, taken)
}

func TestCloseIsBoundedAndCancelsHandlers(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	peer := open(t, a, b)
	entered, left := make(chan struct{}), make(chan struct{})
	b.serve = func(ctx context.Context, _ transport.Peer, _ string, _ []byte) ([]byte, error) {
		close(entered)
		<-ctx.Done()
		close(left)
		return nil, ctx.Err()
	}
	failed := make(chan error, 1)
	go func() {
		_, err := a.client.Call(context.Background(), peer, "tcp", nil)
		failed <- err
	}()
	<-entered
	silent, err := net.Dial("tcp", b.self.Address) // a silent visitor holds no call up
	require.NoError(t, err)
	defer silent.Close()
	begin := time.Now()
	require.NoError(t, b.server.Close(context.Background()))
	require.Less(t, time.Since(begin), 5*time.Second)
	<-left
	require.Equal(t, errs.PeerUnreachable, errs.CodeOf(<-failed))
}

func TestCloseWaitsForCallsUnderWay(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	peer := open(t, a, b)
	entered, proceed := make(chan struct{}), make(chan struct{})
	b.serve = func(context.Context, transport.Peer, string, []byte) ([]byte, error) {
		close(entered)
		<-proceed
		return []byte("done"), nil
	}
	answered := make(chan string, 1)
	go func() {
		answer, _ := a.client.Call(context.Background(), peer, "tcp", nil)
		answered <- string(answer)
	}()
	<-entered
	closed := make(chan error, 1)
	go func() { closed <- b.server.Close(context.Background()) }()
	require.Eventually(t, func() bool { // the listener goes first
		conn, err := net.Dial("tcp", b.self.Address)
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, patience, time.Millisecond)
	close(proceed)
	require.Equal(t, "done", <-answered)
	require.NoError(t, <-closed)
}

func TestClosedClientSaysSo(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	peer := open(t, a, b)
	entered := make(chan struct{}, 2)
	b.serve = func(ctx context.Context, _ transport.Peer, _ string, _ []byte) ([]byte, error) {
		entered <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	failed := make(chan error, 2)
	go func() { _, err := a.client.Call(context.Background(), peer, "tcp", nil); failed <- err }()
	<-entered
	a.client.Forget(peer.Address) // its connection is in use, and stays until it is not
	go func() { _, err := a.client.Call(context.Background(), peer, "tcp", nil); failed <- err }()
	<-entered
	a.client.Close()
	a.client.Close()
	require.Equal(t, errs.EngineClosed, errs.CodeOf(<-failed))
	require.Equal(t, errs.EngineClosed, errs.CodeOf(<-failed))
	_, err := a.client.Open(within(t), b.self.Address)
	require.Equal(t, errs.EngineClosed, errs.CodeOf(err))
}

func TestCloseEndsADialUnderWay(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0")
	accepted := make(chan struct{})
	address := stranger(t, func(net.Conn) { close(accepted) })
	failed := make(chan error, 1)
	go func() { _, err := a.client.Open(context.Background(), address); failed <- err }()
	<-accepted
	a.client.Close()
	require.Equal(t, errs.EngineClosed, errs.CodeOf(<-failed))
}

func TestUnusedConnectionsAreClosed(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0", func(o *Options) { o.IdleTimeout = 20 * time.Millisecond }), start(t, "127.0.0.1:0")
	for range 3 {
		open(t, a, b)
		require.Eventually(t, func() bool { return b.server.guests.count() == 0 }, patience, time.Millisecond)
	}
	c := start(t, "127.0.0.1:0")
	open(t, a, c) // unused a little longer than the other: the sweep comes again for it
	open(t, a, b)
	require.Eventually(t, func() bool { return b.server.guests.count()+c.server.guests.count() == 0 }, patience,
		time.Millisecond)
	open(t, a, b)
	a.client.Forget(b.self.Address)
	require.Eventually(t, func() bool { return b.server.guests.count() == 0 }, patience, time.Millisecond)
}

func TestConnectionsAreBounded(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0", func(o *Options) { o.ConnectionsMax = 2 })
	b, c, d := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	open(t, a, b)
	open(t, a, c)
	open(t, a, d) // makes room by closing the oldest
	require.Eventually(t, func() bool { return b.server.guests.count() == 0 }, patience, time.Millisecond)
	require.Equal(t, 1, c.server.guests.count())

	entered, proceed := make(chan struct{}, 2), make(chan struct{})
	hold := func(context.Context, transport.Peer, string, []byte) ([]byte, error) {
		entered <- struct{}{}
		<-proceed
		return nil, nil
	}
	c.serve, d.serve = hold, hold
	held := make(chan error, 2)
	for _, n := range []*node{c, d} {
		go func() { _, err := a.client.Call(context.Background(), n.self, "tcp", nil); held <- err }()
		<-entered
	}
	_, err := a.client.Open(within(t), b.self.Address)
	require.Equal(t, errs.TooManyRequests, errs.CodeOf(err))
	close(proceed)
	require.NoError(t, <-held)
	require.NoError(t, <-held)
	open(t, a, b)
}

// A certificate may end while its connection is there. The next call makes another connection, by which the peer shows
// the certificate that it has then.
func TestAConnectionEndsWithThePeersCertificate(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	peer := open(t, a, b)
	at := func() *conn {
		a.client.mu.Lock()
		defer a.client.mu.Unlock()
		return a.client.conns[peer.Address]
	}
	before := at()
	err := a.client.Probe(within(t), peer)
	require.NoError(t, err)
	require.Same(t, before, at())
	before.shown.Until = time.Now().Add(-time.Second)
	err = a.client.Probe(within(t), peer)
	require.NoError(t, err)
	require.NotSame(t, before, at())
}
