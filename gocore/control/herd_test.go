package control

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
)

// Of many peers that are opened side by side, some have their handshake while the others wait. So each handshake has
// the processor for long enough, and its time does not end while it waits.
func TestHandshakesOfAHerdTakeTurns(t *testing.T) {
	checkLeaks(t)
	const peers = 2*handshakesMax + 5
	var now talkers
	a := start(t, "127.0.0.1:0", func(o *Options) {
		o.HandshakeTimeout, o.Dial = 300*time.Millisecond, now.dial
	})
	a.client.quiet = patience
	var group sync.WaitGroup
	for range peers { // another address each: callers of one share its dial
		address := stranger(t, func(net.Conn) {})
		group.Go(func() {
			_, err := a.client.Open(within(t), address)
			assert.Error(t, err)
		})
	}
	group.Wait()
	require.Equal(t, peers, now.all)
	require.Equal(t, handshakesMax, now.most)
}

// Peers that hang have taken every turn, and more of them wait. A healthy one is opened all the same, long
// before the time of the others is up.
func TestPeersThatHangHoldUpNoOther(t *testing.T) {
	checkLeaks(t)
	var now talkers
	a := start(t, "127.0.0.1:0", func(o *Options) { o.HandshakeTimeout, o.Dial = time.Hour, now.dial })
	b := start(t, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for i := range 4 * handshakesMax {
		address := stranger(t, func(c net.Conn) {
			if i%2 == 0 { // it hangs later
				_, _ = c.Write([]byte{22, 3, 3, 4, 186, 2, 0, 4, 182, 3, 3})
			}
		})
		group.Go(func() {
			_, err := a.client.Open(ctx, address)
			assert.Error(t, err)
		})
	}
	require.Eventually(t, func() bool { return now.count() >= handshakesMax }, patience, time.Millisecond)
	open(t, a, b)
	cancel()
	group.Wait()
}

// talkers counts the connections that have said something and are not closed.
type talkers struct {
	mu              sync.Mutex
	here, most, all int
}

// dial is Options.Dial.
func (t *talkers) dial(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, network, address)
	return &talker{Conn: raw, of: t}, err
}

func (t *talkers) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all
}

type talker struct {
	net.Conn
	of    *talkers
	spoke bool // guarded by of.mu
}

func (c *talker) Write(b []byte) (int, error) {
	c.of.mu.Lock()
	if !c.spoke {
		c.spoke = true
		c.of.all++
		c.of.here++
		c.of.most = max(c.of.most, c.of.here)
	}
	c.of.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *talker) Close() error {
	c.of.mu.Lock()
	if c.spoke {
		c.spoke = false
		c.of.here--
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// An engine that began to answer and did not end in time is slow or stopped. It is nothing else that listens there.
func TestASlowEngineIsNotTakenForAStranger(t *testing.T) {
	checkLeaks(t)
	for name, words := range map[string][]byte{
		"TLS":    {22, 3, 3, 4, 186, 2, 0, 4, 182, 3, 3},
		"HTTP/2": {0, 0, 18, 4, 0, 0, 0, 0, 0, 0, 5},
	} {
		require.True(t, begun(words), name)
	}
	for _, words := range []string{"", "SSH-2.0-OpenSSH_9.2p1\r\n", "HTTP/1.1 400 Bad Request\r\n",
		"\x15\x03\x01\x00\x02\x02\x46"} {
		require.False(t, begun([]byte(words)), words)
	}
	address := stranger(t, func(c net.Conn) { _, _ = c.Write([]byte{22, 3, 3, 4, 186, 2, 0, 4, 182, 3, 3}) })
	message := refusal(t, address, errs.PeerUnreachable)
	require.Contains(t, message, "stopped or overloaded")
	require.NotContains(t, message, "something else")
}

// An engine that hangs up in the midst of its answer is asked again. It does so behind a pause of one of the two, and
// is nothing else that listens there.
func TestAnEngineThatHangsUpInItsAnswerIsAskedAgain(t *testing.T) {
	checkLeaks(t)
	var dials atomic.Int32
	address := stranger(t, func(c net.Conn) {
		dials.Add(1)
		_, _ = io.ReadFull(c, make([]byte, 24))
		_, _ = c.Write([]byte{22, 3, 3, 4, 186, 2, 0, 4, 182, 3, 3})
		_ = c.(*net.TCPConn).CloseWrite()
	})
	message := refusal(t, address, errs.PeerUnreachable)
	require.Contains(t, message, "began to answer and hung up")
	require.NotContains(t, message, "something else")
	require.EqualValues(t, dialTries, dials.Load())
}

// A caller that gives up while its dial waits for a turn gets its own error at once.
func TestACallerLeavesADialThatWaitsForItsTurn(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0")
	for range handshakesMax {
		a.client.handshakes <- struct{}{}
	}
	b := start(t, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := a.client.Open(ctx, b.self.Address)
	require.Error(t, err)
	for range handshakesMax {
		<-a.client.handshakes
	}
	peer, err := a.client.Open(within(t), b.self.Address)
	require.NoError(t, err)
	require.Equal(t, b.self.ID, peer.ID)
}
