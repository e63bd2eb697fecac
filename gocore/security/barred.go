package security

import (
	"sync"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// barredMax bounds the engines that are kept out by name. A process that starts again is another engine.
const barredMax = 1 << 16

var errBarred = refuse("this engine has disconnected it")

// barred are engines that are kept out although their credentials are good.
type barred struct {
	mu  sync.Mutex
	ids map[transport.ID]struct{}
}

// Bar keeps an engine out from now on: its handshakes are refused, as callers and as called ones. The error is
// TooManyRequests.
func (c *Credentials) Bar(id transport.ID) error {
	b := &c.barred
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, is := b.ids[id]; !is && len(b.ids) >= barredMax {
		return errs.New(errs.TooManyRequests, "disconnect", "%d engines are kept out already", barredMax).
			WithHint("take their identity out of security/allow, or change the key of the cluster")
	}
	if b.ids == nil {
		b.ids = make(map[transport.ID]struct{})
	}
	b.ids[id] = struct{}{}
	return nil
}

// Barred reports whether an engine is kept out.
func (c *Credentials) Barred(id transport.ID) bool {
	c.barred.mu.Lock()
	defer c.barred.mu.Unlock()
	_, is := c.barred.ids[id]
	return is
}
