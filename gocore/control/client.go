package control

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/tent-engine/tent/gocore/control/controlpb"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/security"
)

// Client calls peers over connections that it keeps by address. It dials a connection when it needs one and closes it
// when it was unused for a while. Its methods may be called from any goroutine.
type Client struct {
	options Options
	alive   context.Context // ends with Close; carries every dial
	end     context.CancelFunc
	work    sync.WaitGroup // dials under way and the sweep
	ways    ways

	handshakes chan struct{} // one for each that has a turn
	quiet      time.Duration // quietMost

	mu      sync.Mutex
	conns   map[string]*conn
	retired map[*conn]struct{} // no longer in conns, but still in use or dialling
	timer   *time.Timer        // of the next sweep; nil while no connection is unused
	closed  bool
}

// conn is one TCP connection to one engine; it is never dialled again. It is created under Client.mu, and its dial ends
// it or makes it ready:
//
//	dialling --> ready --> broken or idle for long --> closed when the last user has left
//	     \-----> failed (err)
type conn struct {
	address string
	ready   chan struct{} // closed when the dial has ended; then the next four are fixed
	cc      *grpc.ClientConn
	shown   security.Proof
	stub    controlpb.ControlClient
	err     error

	// Under Client.mu.
	judged    uint64 // the newest rules of the credentials that admit the peer
	users     int
	idleSince time.Time
}

// NewClient returns a client without connections.
func NewClient(options Options) *Client {
	c := &Client{options: options.withDefaults(), conns: map[string]*conn{}, retired: map[*conn]struct{}{}}
	c.handshakes, c.quiet = make(chan struct{}, handshakesMax), quietMost
	c.ways.peers, c.ways.knocks = map[wayKey]*way{}, map[string]*knocks{}
	c.alive, c.end = context.WithCancel(context.Background())
	return c
}

// Close ends dials and calls under way (EngineClosed) and closes every connection.
func (c *Client) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	for _, k := range c.conns {
		c.removeLocked(k)
	}
	left := slices.Collect(maps.Keys(c.retired))
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	c.end()
	c.work.Wait()
	for _, k := range left {
		k.close()
	}
}

// Forget closes the connection to an address once the calls that use it have ended. The next call dials again.
func (c *Client) Forget(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.conns[address]; k != nil && !c.closed {
		c.dropLocked(k)
	}
}

// close must not be called under Client.mu, as it waits for gRPC, and not before the dial has ended. A second time does
// nothing.
func (k *conn) close() {
	if k.cc != nil {
		_ = k.cc.Close() // the error only says that it is the second time
	}
}

// dead reports a connection that was ready and has broken since, or one with a certificate of the peer that has ended.
func (k *conn) dead() bool {
	if !isClosed(k.ready) || k.err != nil {
		return false
	}
	until := k.shown.Until
	return k.cc.GetState() != connectivity.Ready || !until.IsZero() && time.Now().After(until)
}

// outdated reports a connection with a proof that the rules of now do not admit, or to a peer that was disconnected.
func (c *Client) outdated(k *conn) bool {
	rules := c.options.Credentials.Rules()
	if !isClosed(k.ready) || k.err != nil {
		return false
	}
	if c.options.Credentials.Barred(k.shown.ID) {
		return true
	}
	if k.judged == rules {
		return false
	}
	if c.options.Credentials.Still(k.shown, time.Now()) != nil {
		return true
	}
	k.judged = rules
	return false
}

// acquire returns a connection that was alive a moment ago. Callers of the same address share one dial; a caller that
// is cancelled leaves it to the others. Every acquired connection is released once.
func (c *Client) acquire(ctx context.Context, address string) (*conn, error) {
	k, err := c.enter(address)
	if err != nil {
		return nil, err
	}
	select {
	case <-k.ready:
	case <-ctx.Done():
		c.release(k, false)
		return nil, ended(ctx, "control.dial", address)
	}
	if k.err != nil {
		c.release(k, true)
		return nil, k.err
	}
	return k, nil
}

// enter makes the caller a user of the address's connection, and starts a dial where there is none or a dead one.
func (c *Client) enter(address string) (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, closedError(address)
	}
	k := c.conns[address]
	if k != nil && (k.dead() || c.outdated(k)) {
		c.dropLocked(k)
		k = nil
	}
	if k == nil {
		if len(c.conns) >= c.options.ConnectionsMax && !c.evictLocked() {
			return nil, errs.New(errs.TooManyRequests, "control.dial", "all of %d control connections are in use",
				c.options.ConnectionsMax).
				WithScope(errs.ScopeLink, errs.SideLocal).OfPeer(address)
		}
		k = &conn{address: address, ready: make(chan struct{}), judged: c.options.Credentials.Rules()}
		c.conns[address] = k
		c.work.Go(func() { c.connect(k) })
	}
	k.users++
	return k, nil
}

// connect carries out the dial of k.
func (c *Client) connect(k *conn) {
	k.cc, k.shown, k.err = c.insist(k.address)
	c.mu.Lock()
	if k.err == nil {
		k.stub = controlpb.NewControlClient(k.cc)
	} else {
		c.removeLocked(k) // before any waiter learns of it: the next caller dials anew
	}
	close(k.ready)
	over := c.overLocked(k)
	c.mu.Unlock()
	if over {
		k.close()
	}
}

// release ends the use of a connection. Broken says that it must not be used again.
func (c *Client) release(k *conn, broken bool) {
	c.mu.Lock()
	k.users--
	if broken {
		c.removeLocked(k)
	}
	if k.users == 0 && c.conns[k.address] == k {
		k.idleSince = time.Now()
		c.scheduleLocked(c.options.IdleTimeout)
	}
	over := c.overLocked(k)
	c.mu.Unlock()
	if over {
		k.close()
	}
}

// removeLocked takes k from those that are handed out.
func (c *Client) removeLocked(k *conn) {
	if c.conns[k.address] == k {
		delete(c.conns, k.address)
		c.retired[k] = struct{}{}
	}
}

// overLocked reports, once, that a removed connection has no user left: the caller closes it after unlocking.
func (c *Client) overLocked(k *conn) bool {
	_, retired := c.retired[k]
	if !retired || k.users > 0 || !isClosed(k.ready) {
		return false
	}
	delete(c.retired, k)
	return true
}

// dropLocked removes a connection, also one that has no users left to close it. The client must not be closed.
func (c *Client) dropLocked(k *conn) {
	c.removeLocked(k)
	if c.overLocked(k) {
		c.work.Go(k.close)
	}
}

// evictLocked makes room by closing the connection that has been unused for longest. It reports false if all are used.
func (c *Client) evictLocked() bool {
	var oldest *conn
	for _, k := range c.conns {
		if k.users == 0 && isClosed(k.ready) && (oldest == nil || k.idleSince.Before(oldest.idleSince)) {
			oldest = k
		}
	}
	if oldest == nil {
		return false
	}
	c.dropLocked(oldest)
	return true
}

func (c *Client) scheduleLocked(after time.Duration) {
	if c.timer == nil && !c.closed {
		c.timer = time.AfterFunc(after, c.sweep)
	}
}

// sweep closes connections that were unused for IdleTimeout. It runs only while there are unused ones.
func (c *Client) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = nil
	if c.closed {
		return
	}
	now := time.Now()
	next := time.Duration(-1)
	for _, k := range c.conns {
		if k.users > 0 || !isClosed(k.ready) {
			continue
		}
		left := c.options.IdleTimeout - now.Sub(k.idleSince)
		if left <= 0 {
			c.dropLocked(k)
		} else if next < 0 || left < next {
			next = left
		}
	}
	if next >= 0 {
		c.scheduleLocked(next)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func closedError(address string) error {
	return errs.New(errs.EngineClosed, "control", "the engine is closed").
		WithScope(errs.ScopeTransport, errs.SideLocal).OfPeer(address)
}
