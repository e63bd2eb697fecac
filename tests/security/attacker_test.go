package security

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/strangers"
)

// admittance is the time in which an honest engine opens another one while that one is attacked.
const admittance = 2 * time.Second

// opensInTime opens the victim as an engine that has never called it, several times.
func opensInTime(t *testing.T, e *engine.Engine) {
	t.Helper()
	for range 3 {
		honest, err := open(nil)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), admittance)
		_, err = honest.OpenSegment(ctx, e.Address())
		cancel()
		require.Empty(t, honest.Close(patience, true))
		require.NoError(t, honest.Forget())
		require.NoError(t, err)
	}
}

// attacker speaks the control plane without being an engine.
type attacker struct {
	t      *testing.T
	claims transport.Peer
	*control.Client
}

func newAttacker(t *testing.T, claims transport.Peer) *attacker {
	t.Helper()
	a := &attacker{t: t, claims: claims}
	credentials, err := security.Open(security.Settings{})
	require.NoError(t, err)
	a.Client = control.NewClient(control.Options{Self: func() transport.Peer { return a.claims },
		Credentials: credentials})
	t.Cleanup(a.Close)
	return a
}

// preface is how a client of HTTP/2 begins, with an empty frame of settings.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// wire is a connection to the control plane that has come as far as HTTP/2.
func wire(t *testing.T, address string) net.Conn {
	t.Helper()
	raw := silent(t, address)
	conn, err := strangers.Handshake(context.Background(), raw)
	if err != nil {
		return raw // it was closed already
	}
	_, _ = io.WriteString(conn, preface) // likewise
	return conn
}

// silent is a connection to the control plane that says nothing.
func silent(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, patience)
	require.NoError(t, err)
	return conn
}

// conns closes many connections.
type conns struct {
	mu   sync.Mutex
	list []net.Conn
}

func (c *conns) add(conn net.Conn) {
	c.mu.Lock()
	c.list = append(c.list, conn)
	c.mu.Unlock()
}

func (c *conns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.list {
		conn.Close()
	}
	c.list = nil
}

// unfinished is the body of a call of which the last byte never comes. Halt ends it.
type unfinished struct {
	head []byte
	left int
	halt <-chan struct{}
	fed  func(n int) // hears of the bytes that were sent
}

func (u *unfinished) Read(p []byte) (int, error) {
	if len(u.head) > 0 {
		n := copy(p, u.head)
		u.head = u.head[n:]
		return n, nil
	}
	if u.left == 0 {
		<-u.halt
		return 0, io.ErrUnexpectedEOF
	}
	n := min(len(p), u.left)
	clear(p[:n])
	u.left -= n
	u.fed(n)
	return n, nil
}

// flood opens a connection and begins calls on it, each of a message that lacks its last byte.
func flood(t *testing.T, address string, calls, bytes int, halt chan struct{}, fed func(int)) *sync.WaitGroup {
	t.Helper()
	cc := &http.Transport{Protocols: new(http.Protocols), MaxConnsPerHost: 1,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) { // TLS, and HTTP/2 above it
			raw, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return strangers.Handshake(ctx, raw)
		}}
	cc.Protocols.SetUnencryptedHTTP2(true)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for range calls {
		running.Go(func() {
			head := []byte{0, byte(bytes >> 24), byte(bytes >> 16), byte(bytes >> 8), byte(bytes)}
			request, err := http.NewRequestWithContext(ctx, http.MethodPost,
				"http://"+address+"/tent.control.Control/Notify",
				io.NopCloser(&unfinished{head: head, left: bytes - 1, halt: halt, fed: fed}))
			if err != nil {
				return
			}
			request.Header.Set("Content-Type", "application/grpc")
			request.Header.Set("TE", "trailers")
			answer, err := cc.RoundTrip(request)
			if err == nil {
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
			}
		})
	}
	var all sync.WaitGroup
	all.Go(func() {
		<-halt
		cancel()
		running.Wait()
		cc.CloseIdleConnections()
	})
	return &all
}
