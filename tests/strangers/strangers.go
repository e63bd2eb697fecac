// Package strangers begins handshakes with an engine without an invitation. The attacks of tests/security use it, and
// the benchmark of their cost.
package strangers

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/security"
)

// patience bounds one handshake.
const patience = 10 * time.Second

// Flood begins handshakes from an address of this host, as fast as it can, until halt. The newest `held` connections
// stay open. It counts the handshakes that it has begun.
type Flood func(from, address string, held int, begun *atomic.Int64, halt <-chan struct{})

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

// Whole is a flood of whole handshakes, many at a time.
func Whole(from, address string, held int, begun *atomic.Int64, halt <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: dialPatience}
	kept := &keeper[net.Conn]{most: held, end: func(c net.Conn) { _ = c.Close() }}
	var dialing sync.WaitGroup
	for range together {
		dialing.Go(func() {
			for ctx.Err() == nil {
				if conn, err := dialer.DialContext(ctx, "tcp", address); err == nil {
					_, _ = Handshake(ctx, conn)
					begun.Add(1)
					kept.add(conn)
				}
			}
		})
	}
	<-halt
	cancel()
	dialing.Wait()
	kept.close()
}

const (
	together     = 64                    // whole handshakes that are under way
	dialPatience = 50 * time.Millisecond // then the flood tries another port
)

// FirstWord returns a flood of strangers that say the first word of TLS and nothing else, always the same one. It costs
// them nothing, and they do not wait: for a connection that is not there at once they begin the next one.
func FirstWord() (Flood, error) {
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		_ = tls.Client(there, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"tent/1"}}).Handshake()
	}()
	word := make([]byte, 4096)
	n, err := here.Read(word)
	return func(from, address string, held int, begun *atomic.Int64, halt <-chan struct{}) {
		say(word[:n], from, address, held, begun, halt)
	}, err
}

// Silent is a flood of connections without a word.
func Silent(from, address string, held int, begun *atomic.Int64, halt <-chan struct{}) {
	say(nil, from, address, held, begun, halt)
}

// say begins connections that say a word each.
func say(word []byte, from, address string, held int, begun *atomic.Int64, halt <-chan struct{}) {
	kept := &keeper[int]{most: held, end: func(fd int) { _ = unix.Close(fd) }}
	defer kept.close()
	own, to := &unix.SockaddrInet4{Addr: netip.MustParseAddr(from).As4()}, netip.MustParseAddrPort(address)
	peer := &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	for {
		select {
		case <-halt:
			return
		default:
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			continue
		}
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // by a reset
		if err = unix.Bind(fd, own); err != nil {
			_ = unix.Close(fd)
			continue
		}
		err = unix.Connect(fd, peer) // on one host it is there when this returns, unless a packet was dropped
		if len(word) > 0 {
			_, err = unix.Write(fd, word)
		}
		if err != nil && (len(word) > 0 || err != unix.EINPROGRESS) {
			_ = unix.Close(fd)
			continue
		}
		begun.Add(1)
		kept.add(fd)
	}
}

// keeper holds the newest of some things, and ends the others.
type keeper[T any] struct {
	most int
	end  func(T)
	mu   sync.Mutex
	list []T
}

func (k *keeper[T]) add(one T) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.list = append(k.list, one); len(k.list) > k.most {
		k.end(k.list[0])
		k.list = k.list[1:]
	}
}

func (k *keeper[T]) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, one := range k.list {
		k.end(one)
	}
	k.list = nil
}
