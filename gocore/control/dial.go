package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/meta"
	"github.com/tent-engine/tent/gocore/security"
)

// errSilent marks a dial that failed because the other side took the connection and sent nothing. It is another kind of
// server, or an engine that was stopped; Client.ofKnown keeps them apart where an engine was met there before.
var errSilent = errors.New("the connection was accepted, but nothing was said")

// errDropped marks a dial that ended without a word of the other side. An engine under attack closes connections
// during their handshake, ours among them, and has room for the next one.
var errDropped = errors.New("the connection was closed before an answer")

// awake returns a context that ends with a cause after limit, by the time in which this process is let run.
func awake(ctx context.Context, limit time.Duration, cause error) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	stop := clock.AfterAwake(limit, func() { end(cause) })
	return ctx, func() {
		end(context.Canceled)
		stop()
	}
}

// handshakesMax bounds the handshakes that go on side by side. Each costs some 2 ms of a processor at either end, so of
// a thousand that share the processors none would end before its time is up. A handshake leaves its turn when the peer
// has said nothing for quietMost: peers that hang cost no processor, and hold up none of the others. Where all are slow
// because of their number, so few join them that processors still keep up.
const (
	handshakesMax = 16
	quietMost     = 100 * time.Millisecond
)

// Bytes of the buffers of a connection's reader and writer. Its messages are small, but for a Describe.
const (
	readBuffer  = 4 << 10
	writeBuffer = 4 << 10
)

const (
	dialTries = 3
	dialAgain = 20 * time.Millisecond // before the second try, twice that before the third
)

// insist dials, and again when the other side drops us at once.
func (c *Client) insist(address string) (*grpc.ClientConn, security.Proof, error) {
	early, cancel := awake(c.alive, c.options.HandshakeTimeout/2, errDropped)
	defer cancel()
	for try := 1; ; try++ {
		cc, shown, err := c.dial(c.alive, address)
		dropped := errors.Is(err, errDropped) || errors.Is(err, syscall.ECONNRESET)
		if !dropped || try == dialTries || early.Err() != nil {
			return cc, shown, err
		}
		pause := time.NewTimer(time.Duration(try) * dialAgain)
		select {
		case <-pause.C:
		case <-c.alive.Done():
			pause.Stop()
			return cc, shown, closedError(address)
		}
	}
}

// dial makes one finished connection: TCP, TLS, and the peer's HTTP/2 preface.
func (c *Client) dial(ctx context.Context, address string) (*grpc.ClientConn, security.Proof, error) {
	raw, err := c.connectTCP(ctx, address)
	if err != nil {
		return nil, security.Proof{}, err
	}
	begin := time.Now()
	select {
	case c.handshakes <- struct{}{}:
	case <-ctx.Done():
		raw.Close()
		return nil, security.Proof{}, closedError(address)
	}
	turn := &inTurn{turns: c.handshakes, quiet: c.quiet}
	defer turn.leave()
	if time.Since(begin) > c.options.HandshakeTimeout/4 { // the peer has waited, and may be about to hang up
		raw.Close()
		if raw, err = c.connectTCP(ctx, address); err != nil {
			return nil, security.Proof{}, err
		}
	}
	turn.Conn = raw
	ctx, cancel := awake(ctx, c.options.HandshakeTimeout, errSilent)
	defer cancel()
	secure, shown, err := c.handshakeTLS(ctx, turn, address)
	if err != nil {
		return nil, shown, err
	}
	cc, err := c.handshakeHTTP(ctx, secure, address)
	return cc, shown, err
}

// inTurn is the connection of a handshake that has a turn, which it leaves once.
type inTurn struct {
	net.Conn
	turns chan struct{}
	quiet time.Duration // of the peer, that ends the turn
	left  atomic.Bool
}

// Read waits for the peer, and leaves the turn where that takes long.
func (t *inTurn) Read(p []byte) (int, error) {
	if t.left.Load() {
		return t.Conn.Read(p)
	}
	late := time.AfterFunc(t.quiet, t.leave)
	defer late.Stop()
	return t.Conn.Read(p)
}

func (t *inTurn) leave() {
	if !t.left.Swap(true) {
		<-t.turns
	}
}

func (c *Client) connectTCP(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := awake(ctx, c.options.ConnectTimeout, errSilent)
	defer cancel()
	raw, err := reach(ctx, address, c.options.Dial)
	if err == nil {
		return raw, nil
	}
	e := errs.Wrap(errs.PeerUnreachable, "control.dial", err).WithScope(errs.ScopeLink, errs.SidePath).
		OfPeer(address)
	var unknown *net.DNSError
	var timeout net.Error
	switch {
	case c.alive.Err() != nil:
		return nil, closedError(address)
	case errors.As(err, &unknown):
		e.Cause = "the host of " + address + " cannot be resolved: " + unknown.Err
		e.WithHint("check the name, or give the peer's IP address")
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Side, e.Cause = errs.SideRemote, "connection refused: nobody listens at "+address
		if meta.IsLoopback(address) {
			e.WithHint("a loopback address is this machine's own; a peer on another machine sets rpc_server_hostname " +
				"and gives out its address there")
		} else {
			e.WithHint("check the port, and that the peer listens on that address (its rpc_server_hostname), not on " +
				"loopback alone")
		}
	case context.Cause(ctx) == errSilent, errors.As(err, &timeout) && timeout.Timeout():
		e.Cause = "no answer from " + address + " within " + c.options.ConnectTimeout.String()
		e.WithHint("check the address and the firewall")
	}
	return nil, e
}

func (c *Client) handshakeTLS(ctx context.Context, raw net.Conn, address string) (net.Conn, security.Proof, error) {
	watched := &tap{Conn: raw}
	secure, shown, err := c.options.Credentials.Connect(ctx, watched)
	if err == nil {
		watched.settle()
		return secure, shown, nil
	}
	watched.note(err)
	raw.Close()
	if c.alive.Err() != nil {
		return nil, shown, closedError(address)
	}
	var refused *security.NotAdmitted
	if errors.As(err, &refused) && !foreign(err) {
		e := errs.Wrap(errs.PeerNotAdmitted, "control.dial", err).WithScope(errs.ScopeLink, errs.SideRemote).
			OfPeer(address).WithHint("both sides need the same security settings")
		e.Cause = "the engine at " + address + " is not admitted here: " + refused.Reason
		return nil, shown, e
	}
	return nil, shown, watched.verdict(address, c.options.HandshakeTimeout, ctx.Err() != nil)
}

// handshakeHTTP gives raw to gRPC and waits until the peer has proved that it speaks HTTP/2.
func (c *Client) handshakeHTTP(ctx context.Context, raw net.Conn, address string) (*grpc.ClientConn, error) {
	watched := &tap{Conn: raw}
	once := make(chan net.Conn, 1)
	once <- watched
	cc, err := grpc.NewClient("passthrough:///peer", c.grpcOptions(once)...)
	if err != nil {
		raw.Close()
		return nil, errs.Wrap(errs.Internal, "control.dial", err).OfPeer(address)
	}
	if answered(ctx, cc) {
		watched.settle()
		return cc, nil
	}
	_ = cc.Close()
	raw.Close()
	if c.alive.Err() != nil {
		return nil, closedError(address)
	}
	return nil, watched.verdict(address, c.options.HandshakeTimeout, ctx.Err() != nil)
}

// answered connects cc and waits until the peer's preface is there. Idle after connecting is a peer that said the right
// words and hung up.
func answered(ctx context.Context, cc *grpc.ClientConn) bool {
	cc.Connect()
	connecting := false
	for {
		state := cc.GetState()
		switch {
		case state == connectivity.Ready:
			return true
		case state == connectivity.TransientFailure, state == connectivity.Idle && connecting:
			return false
		}
		connecting = connecting || state == connectivity.Connecting
		if !cc.WaitForStateChange(ctx, state) {
			return false
		}
	}
}

// grpcOptions make gRPC use the one connection in once, and nothing else: no proxy, no second dial, no retry, no idle
// timer of its own.
func (c *Client) grpcOptions(once chan net.Conn) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case raw := <-once:
				return raw, nil
			default:
				return nil, net.ErrClosed
			}
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // TLS is below
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 2 * c.options.HandshakeTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveInterval, Timeout: keepalivePatience}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerMax)), grpc.WithMaxHeaderListSize(headersMax),
		grpc.WithReadBufferSize(readBuffer), grpc.WithWriteBufferSize(writeBuffer),
		grpc.WithNoProxy(), grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0),
	}
}

// tap is a connection that records how the conversation began, so that an error can name the kind of server.
type tap struct {
	net.Conn

	mu      sync.Mutex
	settled bool
	first   []byte // up to firstMax bytes
	err     error  // of reading
}

const (
	firstMax  = 48
	lastWords = 100 * time.Millisecond // to read the last bytes of a peer that hung up
)

// Read remembers the first bytes and the first error.
func (t *tap) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	t.mu.Lock()
	if !t.settled {
		t.first = append(t.first, p[:min(n, firstMax-len(t.first))]...)
		if err != nil && t.err == nil {
			t.err = err
		}
	}
	t.mu.Unlock()
	return n, err
}

// Write reads the peer's last bytes when it has hung up. A refused certificate shows as a broken pipe first, and gRPC
// would close the connection without reading the alert behind it.
func (t *tap) Write(p []byte) (int, error) {
	n, err := t.Conn.Write(p)
	if err != nil {
		t.mu.Lock()
		settled := t.settled
		t.mu.Unlock()
		if !settled && t.Conn.SetReadDeadline(time.Now().Add(lastWords)) == nil {
			_, _ = t.Read(make([]byte, firstMax)) // recorded there
		}
	}
	return n, err
}

// note records an error that a layer above has found, unless reading itself failed.
func (t *tap) note(err error) {
	t.mu.Lock()
	if t.err == nil {
		t.err = err
	}
	t.mu.Unlock()
}

// settle ends the recording.
func (t *tap) settle() {
	t.mu.Lock()
	t.settled, t.first = true, nil
	t.mu.Unlock()
}

// verdict says why the handshake failed; late, because limit was reached.
func (t *tap) verdict(address string, limit time.Duration, late bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := errs.New(errs.Protocol, "control.dial", "").WithScope(errs.ScopeLink, errs.SideRemote).
		OfPeer(address).
		WithHint("give the address that the peer's engine shows as its address")
	switch {
	case foreign(t.err), alertIn(t.first) > 0 && alertIn(t.first) != security.AlertAccessDenied:
		e.Cause = "something else listens at " + address + ": TLS that is not tent's (" + t.err.Error() + ")"
	case isAlert(t.err):
		e.Code = errs.PeerNotAdmitted
		e.Cause = "the engine at " + address + " does not admit this one; its log has the reason"
		e.WithHint("both sides need the same security settings: without any, both are of one user on one host; else " +
			"security/cluster_key names a file with the same bytes")
	case late && begun(t.first):
		e.Code, e.Cause = errs.PeerUnreachable, "the engine at "+address+" began to answer and did not end within "+
			limit.String()+": its process is stopped or overloaded"
		e.WithHint("look at the load of both hosts")
		e.Err = errSilent
	case begun(t.first) && (errors.Is(t.err, io.EOF) || errors.Is(t.err, syscall.ECONNRESET)):
		e.Code, e.Cause, e.Err = errs.PeerUnreachable, "the engine at "+address+" began to answer and hung up: it is "+
			"closing, or was stopped for long", errDropped
		e.WithHint("look at the load of both hosts")
	case len(t.first) > 0:
		e.Cause = "something else listens at " + address + ": " + quoted(t.first)
	case errors.Is(t.err, syscall.ECONNRESET):
		e.Code, e.Cause, e.Err = errs.PeerUnreachable, "connection reset by "+address+" before it answered", t.err
	case !late: // a peer that has just died looks like this too, and a stopped process like the next
		e.Code, e.Cause = errs.PeerUnreachable, "something else listens at "+address+
			", or its engine is closing: the connection ended before an answer"
		e.Err = errDropped
	default:
		e.Code, e.Cause = errs.PeerUnreachable, "something else listens at "+address+
			", or its process is stopped: it took the connection and said nothing for "+limit.String()
		e.Err = errSilent
	}
	return e
}

// foreign reports whether the other side spoke TLS and did not take tent's protocol, as web servers do.
func foreign(err error) bool {
	var refused *security.NotAdmitted
	return errors.As(err, &refused) && refused.Foreign
}

// isAlert finds TLS alerts that the other side sent; the library gives them no type of their own.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// alertIn returns the number of the TLS alert that is the first record of a conversation, 0 if that is something else.
func alertIn(first []byte) int {
	if len(first) < 7 || first[0] != 21 {
		return 0
	}
	return int(first[6])
}

// begun reports the first bytes of an engine: a handshake record of TLS, or inside that the SETTINGS frame of HTTP/2.
func begun(first []byte) bool {
	return len(first) > 5 && (first[0] == 22 && first[1] == 3 || first[3] == 4 && first[4] == 0 && first[5] == 0)
}

// quoted returns the first line that a stranger sent, for an error.
func quoted(first []byte) string {
	line, _, _ := bytes.Cut(first, []byte("\n"))
	if bytes.HasPrefix(line, []byte("HTTP/1")) {
		return "an HTTP server (" + errs.Printable(string(bytes.TrimSpace(line)), firstMax) + ")"
	}
	const shown = 24
	return "its first bytes are " + quote(line[:min(len(line), shown)])
}
