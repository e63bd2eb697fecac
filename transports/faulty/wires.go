package faulty

import (
	"context"
	"net"
	"sync"
	"syscall"
)

// wires are the control plane's connections as a plan sees them. control_down breaks those to the addresses that it
// means and refuses new ones; with silent, nothing is heard on them until it is healed.
type wires struct {
	mu     sync.Mutex
	ledger ledger
	rules  []*rule // control_down alone
	open   map[*wire]bool
	turned chan struct{} // closed and replaced when the rules change
}

func (w *wires) init() {
	w.ledger, w.open, w.turned = newLedger(), map[*wire]bool{}, make(chan struct{})
}

func (w *wires) reseed(seed uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ledger.reseed(seed)
}

// changed takes over the rules of now and breaks the connections that they mean.
func (w *wires) changed(rules []*rule) {
	var broken []*wire
	w.mu.Lock()
	w.rules = w.rules[:0]
	now := map[*rule]bool{}
	for _, r := range rules {
		if now[r] = true; r.verb == controlDown {
			w.rules = append(w.rules, r)
		}
	}
	w.ledger.keep(now)
	for c := range w.open {
		if r := w.meaning(c.address); r != nil && !r.silent {
			r.hits.Add(1)
			broken = append(broken, c)
		}
	}
	close(w.turned)
	w.turned = make(chan struct{})
	w.mu.Unlock()
	for _, c := range broken {
		_ = c.Close() // it is gone for its users either way
	}
}

// meaning returns the first rule that means an address. Called with the mutex.
func (w *wires) meaning(address string) *rule {
	for _, r := range w.rules {
		if r.peer == "" || r.peer == address {
			return r
		}
	}
	return nil
}

// Dial connects as net.Dialer does, for the control plane of an engine (engine.Options.Dial). The selector peer=
// of control_down compares the address.
func (p *Plan) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	w := &p.wires
	w.mu.Lock()
	turned := w.turned
	r := w.meaning(address)
	if r != nil && !w.ledger.call(r) {
		r = nil
	}
	w.mu.Unlock()
	switch {
	case r != nil && r.silent:
		<-ctx.Done()
		return nil, ctx.Err()
	case r != nil:
		return nil, refused(network)
	}
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &wire{Conn: raw, of: w, address: address, closed: make(chan struct{})}
	if !w.keep(c, turned) {
		_ = c.Close()
		return nil, refused(network)
	}
	return c, nil
}

// keep notes a connection that was dialled under the rules of before turned. It reports false where a rule has come
// since that breaks it.
func (w *wires) keep(c *wire, turned chan struct{}) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.meaning(c.address); turned != w.turned && r != nil && !r.silent {
		r.hits.Add(1)
		return false
	}
	w.open[c] = true
	return true
}

func refused(network string) error {
	return &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
}

// wire is one connection.
type wire struct {
	net.Conn
	of      *wires
	address string
	once    sync.Once
	closed  chan struct{}
}

// await waits while a silent rule means the connection.
func (c *wire) await() error {
	for {
		c.of.mu.Lock()
		r, turned := c.of.meaning(c.address), c.of.turned
		c.of.mu.Unlock()
		if r == nil || !r.silent {
			return nil
		}
		r.hits.Add(1)
		select {
		case <-turned:
		case <-c.closed:
			return net.ErrClosed
		}
	}
}

// Read hears nothing while the connection is silent; bytes that had come are heard afterwards.
func (c *wire) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if silent := c.await(); silent != nil {
		return 0, silent
	}
	return n, err
}

// Write waits while the connection is silent.
func (c *wire) Write(b []byte) (int, error) {
	if err := c.await(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close also ends waiting calls.
func (c *wire) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.of.mu.Lock()
		delete(c.of.open, c)
		c.of.mu.Unlock()
	})
	return c.Conn.Close()
}
