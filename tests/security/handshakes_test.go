package security

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// floodTime is how long strangers begin handshakes: TENT_FLOOD_SECONDS, or two seconds.
func floodTime(t *testing.T) time.Duration {
	t.Helper()
	seconds, err := strconv.Atoi(os.Getenv("TENT_FLOOD_SECONDS"))
	if err != nil {
		seconds = 2
	}
	return time.Duration(seconds) * time.Second
}

// Strangers of another host that begin handshakes as fast as one processor can keep nobody out, and take little memory.
// They may delay those that come from their own host: before the handshake these look the same.
func TestHandshakesBegunInALoopKeepNobodyOut(t *testing.T) {
	const held = 300 // more than an engine takes
	for name, each := range map[string]struct {
		act  func(conn net.Conn)
		held int // connections that stay open, the newest ones
	}{
		"first word only":      {begins(t), held},
		"first word, and gone": {begins(t), 0},
		"whole handshakes":     {func(conn net.Conn) { _, _ = secured(context.Background(), conn) }, held},
	} {
		t.Run(name, func(t *testing.T) {
			e := victim(t)
			before := heap()
			var begun atomic.Int64
			halt := make(chan struct{})
			var attack sync.WaitGroup
			attack.Go(func() { strangers("127.0.0.2", e.Address(), each.act, each.held, &begun, halt) })
			for until := time.Now().Add(floodTime(t)); time.Now().Before(until); {
				opensInTime(t, e)
			}
			grown := heap() - before
			close(halt)
			attack.Wait()
			t.Logf("%d handshakes were begun, %d KiB", begun.Load(), grown>>10)
			require.Positive(t, begun.Load())
			require.Less(t, grown, int64(64<<20))
		})
	}
}

// begins returns a stranger that says the first word of TLS and nothing else, always the same one: it costs nothing.
func begins(t *testing.T) func(net.Conn) {
	t.Helper()
	here, there := net.Pipe()
	go func() {
		_ = tls.Client(there, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"tent/1"}}).Handshake()
	}()
	word := make([]byte, 4096)
	n, err := here.Read(word)
	require.NoError(t, err)
	here.Close()
	return func(conn net.Conn) { _, _ = conn.Write(word[:n]) }
}

// strangers dial until halt, one after the other.
func strangers(from, address string, act func(net.Conn), held int, begun *atomic.Int64, halt <-chan struct{}) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	var open []net.Conn
	for {
		select {
		case <-halt:
			for _, conn := range open {
				conn.Close()
			}
			return
		default:
		}
		conn, err := dialer.Dial("tcp", address)
		if err != nil {
			continue
		}
		act(conn)
		begun.Add(1)
		if open = append(open, conn); len(open) > held {
			open[0].Close()
			open = open[1:]
		}
	}
}
