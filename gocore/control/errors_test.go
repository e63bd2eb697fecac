package control

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/ports"
)

// stranger listens on loopback and treats each connection as serve says, until the test ends.
func stranger(t *testing.T, serve func(net.Conn)) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	conns := make(chan net.Conn, 100)
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns <- conn
			go serve(conn)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-done
		close(conns)
		for conn := range conns {
			conn.Close()
		}
	})
	return listener.Addr().String()
}

// refusal opens address and returns the error, which must come within two seconds (and some for a busy machine).
func refusal(t *testing.T, address string, code errs.Code) string {
	t.Helper()
	a := start(t, "127.0.0.1:0")
	begin := time.Now()
	_, err := a.client.Open(within(t), address)
	require.Less(t, time.Since(begin), 4*time.Second)
	require.Equal(t, code, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, address)
	t.Log(err)
	return err.Error()
}

func TestNobodyListens(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0")
	nobody, begin := ports.Address(t), time.Now()
	for range 50 { // no backoff: each is refused afresh
		_, err := a.client.Open(within(t), nobody)
		require.Equal(t, errs.PeerUnreachable, errs.CodeOf(err))
		require.ErrorContains(t, err, "connection refused")
		require.ErrorContains(t, err, "rpc_server_hostname")
	}
	require.Less(t, time.Since(begin), patience)
}

func TestWrongNames(t *testing.T) {
	checkLeaks(t)
	require.Contains(t, refusal(t, "no-such-host.invalid:1", errs.PeerUnreachable), "cannot be resolved")
	for _, address := range []string{"127.0.0.1", "::1:80", "http://x:80", "host:0"} {
		require.Contains(t, refusal(t, address, errs.InvalidArgument), "127.0.0.1:41233", "an example")
	}
}

func TestSomethingElseListens(t *testing.T) {
	checkLeaks(t)
	const text = "something else listens"
	t.Run("silent", func(t *testing.T) {
		require.Contains(t, refusal(t, stranger(t, func(net.Conn) {}), errs.PeerUnreachable), text)
	})
	t.Run("echo", func(t *testing.T) {
		require.Contains(t, refusal(t, stranger(t, func(c net.Conn) { io.Copy(c, c) }), errs.Protocol), text)
	})
	t.Run("banner", func(t *testing.T) {
		message := refusal(t, stranger(t, func(c net.Conn) { io.WriteString(c, "SSH-2.0-OpenSSH_9.2p1\r\n") }),
			errs.Protocol)
		require.Contains(t, message, "SSH-2.0")
	})
	t.Run("TLS", func(t *testing.T) { // an alert, as OpenSSL answers bytes that are no handshake
		message := refusal(t, stranger(t, func(c net.Conn) { c.Write([]byte{0x15, 3, 1, 0, 2, 2, 70}) }), errs.Protocol)
		require.Contains(t, message, "TLS that is not tent's")
	})
	t.Run("HTTPS", func(t *testing.T) { // a server that takes clients of any protocol
		web := httptest.NewTLSServer(http.NotFoundHandler())
		defer web.Close()
		config := &tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS13}
		message := refusal(t, stranger(t, func(c net.Conn) { tls.Server(c, config).Handshake() }), errs.Protocol)
		require.Contains(t, message, "TLS that is not tent's")
	})
	t.Run("closes", func(t *testing.T) {
		require.Contains(t, refusal(t, stranger(t,
			func(c net.Conn) { io.ReadFull(c, make([]byte, 24)); c.(*net.TCPConn).CloseWrite() }),
			errs.PeerUnreachable), text)
	})
	t.Run("http", func(t *testing.T) {
		server := &http.Server{Handler: http.NotFoundHandler()}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		go server.Serve(listener)
		defer server.Close()
		require.Contains(t, refusal(t, listener.Addr().String(), errs.Protocol), "HTTP")
	})
	t.Run("other gRPC", func(t *testing.T) {
		server := grpc.NewServer()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		go server.Serve(listener)
		defer server.Stop()
		require.Contains(t, refusal(t, listener.Addr().String(), errs.Protocol), text)
	})
}

func TestOtherMajorVersion(t *testing.T) {
	checkLeaks(t)
	b := start(t, "127.0.0.1:0", func(o *Options) { o.Version = "2.3" })
	require.Contains(t, refusal(t, b.self.Address, errs.Protocol), `speaks version "2.3", this is "1.0"`)
}

func TestLoopbackOfAnotherMachine(t *testing.T) {
	checkLeaks(t)
	b := start(t, "127.0.0.1:0")
	b.self.Network = "elsewhere"
	message := refusal(t, b.self.Address, errs.PeerUnreachable)
	require.Contains(t, message, "loopback address")
	require.Contains(t, message, "another machine")
}

// A container's port is often forwarded from a loopback address of its host, and its engine has addresses of its own.
func TestLoopbackMayLeadToAContainer(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "0.0.0.0:0")
	b.self.Network = "elsewhere"
	_, port, err := net.SplitHostPort(b.server.Addresses()[0])
	require.NoError(t, err)
	_, err = a.client.Hello(within(t), "127.0.0.1:"+port)
	require.NoError(t, err)
}

func TestOtherIncarnationIsToldAtOnce(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	peer := open(t, a, b)
	peer.ID[0]++
	_, err := a.client.Describe(within(t), peer, nil)
	require.Equal(t, errs.PeerRestarted, errs.CodeOf(err))
	_, err = a.client.Call(within(t), peer, "tcp", nil)
	require.Equal(t, errs.PeerRestarted, errs.CodeOf(err))
	require.Equal(t, errs.PeerRestarted, errs.CodeOf(a.client.Notify(within(t), peer, 1, nil)))
	err = a.client.Probe(within(t), peer)
	require.Equal(t, errs.PeerRestarted, errs.CodeOf(err))
	require.ErrorContains(t, err, b.self.Address)
	require.Equal(t, errs.SideRemote, errs.From("", err).Side)
}

func TestPeerThatStoppedAnswering(t *testing.T) {
	checkLeaks(t)
	a := start(t, "127.0.0.1:0", func(o *Options) { o.HandshakeTimeout = 50 * time.Millisecond })
	silent := stranger(t, func(net.Conn) {})
	err := a.client.Probe(within(t), transport.Peer{Address: silent, ID: transport.NumberedID(5)})
	require.Equal(t, errs.PeerUnreachable, errs.CodeOf(err),
		"an engine was there: it is the peer that is silent, not a stranger")
	require.ErrorContains(t, err, "stopped or overloaded")
}

func TestCallsEndWithTheirContext(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0", func(o *Options) { o.CallTimeout = 50 * time.Millisecond }), start(t, "127.0.0.1:0")
	peer := open(t, a, b)
	entered := make(chan struct{}, 10)
	b.serve = func(ctx context.Context, _ transport.Peer, _ string, _ []byte) ([]byte, error) {
		entered <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	_, err := a.client.Call(context.Background(), peer, "tcp", nil)
	require.Equal(t, errs.Timeout, errs.CodeOf(err), "a call without a deadline has one")
	<-entered
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-entered; cancel() }()
	_, err = a.client.Call(ctx, peer, "tcp", nil)
	require.Equal(t, errs.Canceled, errs.CodeOf(err))
	ctx, cancel = context.WithCancel(context.Background())
	cancel()
	_, err = a.client.Open(ctx, stranger(t, func(net.Conn) {}))
	require.Equal(t, errs.Canceled, errs.CodeOf(err), "a caller leaves a dial under way")
}

func TestNamesOfCallersAreBounded(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	peer := open(t, a, b)
	a.self.Name = strings.Repeat("n", 256)
	_, err := a.client.Call(within(t), peer, "tcp", nil)
	require.Equal(t, errs.Protocol, errs.CodeOf(err))
	require.ErrorContains(t, err, "more than 255")
	require.Equal(t, errs.SideLocal, errs.From("", err).Side, "the peer's remote side is us")
}

func TestMessagesAreBounded(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0", func(o *Options) { o.MessageMax = 100_000 }),
		start(t, "127.0.0.1:0", func(o *Options) { o.MessageMax = 1000 })
	peer := open(t, a, b)
	_, err := a.client.Call(within(t), peer, "tcp", make([]byte, 100_001))
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	_, err = a.client.Call(within(t), peer, "tcp", make([]byte, 50_000))
	require.Equal(t, errs.RpcServiceError, errs.CodeOf(err), "the receiver has a bound of its own")
	_, err = a.client.Call(within(t), peer, strings.Repeat("t", 10), make([]byte, 1000))
	require.NoError(t, err)
}

// Texts of a peer reach logs and programs without the characters that move a cursor or begin a line.
func TestTextsOfPeersAreHarmless(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	const evil = "\x1b[2J\nWARNING fine"
	peer := open(t, a, b)
	b.self.Name = evil
	require.Equal(t, "\uFFFD[2J\uFFFDWARNING fine", open(t, a, b).Name)
	a.self.Name = evil
	b.serve = func(_ context.Context, from transport.Peer, _ string, _ []byte) ([]byte, error) {
		require.NotContains(t, from.Name, "\n")
		return nil, errs.New(errs.Internal, evil, "%s", evil).WithHint(evil).WithPeer(evil, evil, evil)
	}
	_, err := a.client.Call(within(t), peer, "tcp", nil)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "\x1b")
	require.NotContains(t, err.Error(), "\n")
}

// A peer's errors beside its faults, and the first line of another server, are as harmless.
func TestErrorsOfForeignServersAreHarmless(t *testing.T) {
	checkLeaks(t)
	const evil = "\x1b[2J\nWARNING fine"
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	for _, text := range []string{evil, strings.Repeat("x", 4*faultTextMax)} {
		err := a.client.explain(within(t), "test", b.self.Address, status.Error(codes.Unavailable, text))
		require.NotContains(t, err.Error(), "\x1b")
		require.NotContains(t, err.Error(), "\n")
		require.Less(t, len(err.Error()), 2*faultTextMax)
	}
	web := refusal(t, stranger(t, func(c net.Conn) { io.WriteString(c, "HTTP/1.1 \x1b[2J 200\r\n\r\n") }),
		errs.Protocol)
	require.Contains(t, web, "an HTTP server (HTTP/1.1 \uFFFD[2J 200)")
}

// A peer that answers a call with more than any answer of ours has does not make its caller hold it.
func TestAnswersAreBounded(t *testing.T) {
	checkLeaks(t)
	a, b := start(t, "127.0.0.1:0"), start(t, "127.0.0.1:0")
	size := answerMax / 2
	b.serve = func(context.Context, transport.Peer, string, []byte) ([]byte, error) { return make([]byte, size), nil }
	peer := open(t, a, b)
	answer, err := a.client.Call(within(t), peer, "tcp", nil)
	require.NoError(t, err)
	require.Len(t, answer, size)
	size = answerMax
	_, err = a.client.Call(within(t), peer, "tcp", nil)
	require.Equal(t, errs.RpcServiceError, errs.CodeOf(err))
	require.ErrorContains(t, err, "larger than max")
}

// An engine under attack closes connections during their handshake. An honest client comes again at once.
func TestADroppedConnectionIsDialledAgain(t *testing.T) {
	checkLeaks(t)
	hangsUp := stranger(t, func(conn net.Conn) { conn.Close() })
	for drops := range dialTries + 1 {
		var dials atomic.Int32
		a := start(t, "127.0.0.1:0", func(o *Options) {
			o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				if int(dials.Add(1)) <= drops {
					address = hangsUp
				}
				return new(net.Dialer).DialContext(ctx, network, address)
			}
		})
		b := start(t, "127.0.0.1:0")
		peer, err := a.client.Open(within(t), b.self.Address)
		if drops < dialTries {
			require.NoError(t, err, "%d drops", drops)
			require.Equal(t, b.self.ID, peer.ID)
			continue
		}
		require.Equal(t, errs.PeerUnreachable, errs.CodeOf(err), "%v", err)
		require.EqualValues(t, dialTries, dials.Load())
	}
}
