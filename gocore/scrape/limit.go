package scrape

import (
	"errors"
	"net"
	"sync"
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

// passing is an error of accept(2) such as a want of memory. net/http calls Accept again after a pause of at most a
// second; after another error it would answer nobody any more.
type passing struct{ error }

// Temporary and Timeout are the words that net/http asks for.
func (passing) Temporary() bool { return true }

// Timeout reports that it is none.
func (passing) Timeout() bool { return false }

// Unwrap returns the error.
func (p passing) Unwrap() error { return p.error }

// Accept returns the next connection that has a place. Its errors pass, but for that of a closed listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		} else if err != nil {
			return nil, passing{err}
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
