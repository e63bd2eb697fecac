// Package strangers begins handshakes with an engine without an invitation. The attacks of tests/security use it, and
// the benchmark of their cost.
package strangers

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/security"
)

// patience bounds one handshake.
const patience = 10 * time.Second

// Act is the behaviour of a stranger on its connection.
type Act func(net.Conn)

// Handshake makes a connection one of TLS with a key that no engine has seen before.
func Handshake(ctx context.Context, raw net.Conn) (net.Conn, error) {
	key, err := stranger()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, _, err := key.Connect(ctx, raw)
	return conn, err
}

// stranger is the key of all connections of this process.
var stranger = sync.OnceValues(func() (*security.Credentials, error) {
	return security.Open(security.Settings{Insecure: true})
})

// Whole is a stranger that makes whole handshakes.
func Whole(conn net.Conn) { _, _ = Handshake(context.Background(), conn) }

// FirstWord returns a stranger that says the first word of TLS and nothing else, always the same one: it costs nothing.
func FirstWord() (Act, error) {
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		_ = tls.Client(there, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"tent/1"}}).Handshake()
	}()
	word := make([]byte, 4096)
	n, err := here.Read(word)
	return func(conn net.Conn) { _, _ = conn.Write(word[:n]) }, err
}

// Flood dials until halt, one connection after the other, from an address of this host. The newest `held` connections
// stay open.
func Flood(from, address string, act Act, held int, begun *atomic.Int64, halt <-chan struct{}) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			conn.Close()
		}
	}()
	for {
		select {
		case <-halt:
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
