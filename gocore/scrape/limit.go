package scrape

import (
	"errors"
	"net"
	"sync"

	"github.com/tent-engine/tent/gocore/errs"
)

// limited is a listener that closes connections at once while connectionsMax of them are open. Those that admit refuses
// are counted apart.
type limited struct {
	net.Listener
	admit           func(net.Conn) error // nil: all of them
	places, refused chan struct{}
}

func limit(l net.Listener, admit func(net.Conn) error) *limited {
	return &limited{l, admit, make(chan struct{}, connectionsMax), make(chan struct{}, connectionsMax)}
}

// Accept returns the next connection that has a place. Its errors pass (errs.Passing), but for that of a closed
// listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		} else if err != nil {
			return nil, errs.Passing(err)
		}
		places, refused := l.places, error(nil)
		if l.admit != nil {
			refused = l.admit(c)
		}
		if refused != nil {
			places = l.refused
		}
		select {
		case places <- struct{}{}:
			return &placed{Conn: c, refused: refused, leave: sync.OnceFunc(func() { <-places })}, nil
		default:
			_ = c.Close()
		}
	}
}

// placed is a connection that gives its place back when it is closed.
type placed struct {
	net.Conn
	refused error
	leave   func()
}

// Close closes the connection; a second time does nothing more.
func (c *placed) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
