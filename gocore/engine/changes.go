package engine

import (
	"context"
	"net"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// A transport replaces the descriptor of a registered region by Host.Describe. The owner's engine then calls the peers
// that have asked for its description, and they ask again (renew.go). The calls are a hint: a peer that misses one
// learns from its first refused slice (errs.Replaced), so none is repeated for long.

const (
	listenersMax  = 16384 // peers that are called; others find out by themselves
	changeCalls   = 16    // at once
	changeLimit   = 2 * time.Second
	changeEvery   = 5 * time.Millisecond // between rounds: many regions change together
	changePause   = 100 * time.Millisecond
	changeRetries = 3
)

// changes calls the peers that know an older description, by one goroutine that ends when all have heard.
type changes struct {
	call func(ctx context.Context, to transport.Peer, epoch uint64) error

	background
	epoch     uint64 // of the description with the latest replaced descriptor
	listeners map[transport.ID]*listener
	calls     bool // the goroutine is there
}

// listener is a peer that has our description.
type listener struct {
	peer    transport.Peer
	epoch   uint64 // the newest that it has, or was told of
	next    clock.Time
	refusal int // calls in a row that it did not take
}

func newChanges(call func(context.Context, transport.Peer, uint64) error) *changes {
	c := &changes{call: call, listeners: make(map[transport.ID]*listener)}
	c.init()
	return c
}

// listens notes that a peer has the description of an epoch.
func (c *changes) listens(peer transport.Peer, epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.listeners[peer.ID]
	if l == nil {
		if len(c.listeners) >= listenersMax {
			for other := range c.listeners {
				delete(c.listeners, other)
				break
			}
		}
		l = &listener{}
		c.listeners[peer.ID] = l
	}
	l.peer, l.epoch = peer, max(l.epoch, epoch)
	if l.epoch < c.epoch { // else nothing is new, and a look at all of them would cost each Describe
		c.beginLocked()
	}
}

// announce makes peers with an older description hear of an epoch.
func (c *changes) announce(epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch = max(c.epoch, epoch)
	c.beginLocked()
}

func (c *changes) beginLocked() {
	if c.calls || c.closed {
		return
	}
	for _, l := range c.listeners {
		if l.epoch < c.epoch {
			c.calls = true
			c.running.Go(c.run)
			return
		}
	}
}

func (c *changes) run() {
	for wait := changeEvery; ; {
		select {
		case <-c.ctx.Done():
		case <-time.After(wait):
		}
		due, epoch, next := c.due()
		if due == nil && next == clock.Never {
			return
		}
		sideBySide(due, changeCalls, func(to transport.Peer) {
			ctx, cancel := context.WithTimeout(c.ctx, changeLimit)
			defer cancel()
			c.answered(to.ID, epoch, c.call(ctx, to, epoch))
		})
		wait = changeEvery
		if due == nil {
			wait = max(wait, next.Sub(clock.Now()))
		}
	}
}

// due returns the peers to call now, and when the next ones are due. None at all ends the goroutine.
func (c *changes) due() (due []transport.Peer, epoch uint64, next clock.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := clock.Now()
	next = clock.Never
	for _, l := range c.listeners {
		switch {
		case c.ctx.Err() != nil || l.epoch >= c.epoch:
		case l.next <= now:
			due = append(due, l.peer)
		default:
			next = min(next, l.next)
		}
	}
	c.calls = due != nil || next != clock.Never
	return due, c.epoch, next
}

// answered notes how a call has ended. A peer that takes none is not called again until it asks.
func (c *changes) answered(id transport.ID, epoch uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.listeners[id]
	switch {
	case l == nil:
	case err == nil:
		l.epoch, l.refusal = max(l.epoch, epoch), 0
	case l.refusal+1 >= changeRetries || errs.CodeOf(err) == errs.NotImplemented ||
		errs.CodeOf(err) == errs.PeerRestarted:
		delete(c.listeners, id)
	default:
		l.next = clock.Now().Add(changePause << l.refusal)
		l.refusal++
	}
}

// tellChange calls a peer about our description.
func (e *Engine) tellChange(ctx context.Context, to transport.Peer, epoch uint64) error {
	to, err := e.reachable(to)
	if err != nil {
		return err
	}
	return e.client.Changed(ctx, to, epoch)
}

// reachable returns a peer with the address at which it is called. A peer that called us names a port of the host that
// its call came from, first of all.
func (e *Engine) reachable(to transport.Peer) (transport.Peer, error) {
	if to.Host == "" {
		return to, nil
	}
	_, port, err := net.SplitHostPort(to.Address)
	if err != nil {
		return to, errs.Wrap(errs.Protocol, "call", err).WithScope(errs.ScopeLink, errs.SideRemote)
	}
	claimed := to.Address
	to.Address = net.JoinHostPort(to.Host, port)
	e.client.Know(to, []string{claimed}) // a host with two networks may listen on the other one
	return to, nil
}
