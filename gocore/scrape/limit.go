package scrape

import (
	"io"
	"log"
	"net"
	"sync"
)

// limited is a listener that closes connections at once while most of them are open.
type limited struct {
	net.Listener
	places chan struct{}
}

func limit(l net.Listener, most int) *limited { return &limited{l, make(chan struct{}, most)} }

// Accept returns the next connection that has a place.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.places <- struct{}{}:
			return &placed{Conn: c, leave: sync.OnceFunc(func() { <-l.places })}, nil
		default:
			_ = c.Close()
		}
	}
}

// placed is a connection that gives its place back when it is closed.
type placed struct {
	net.Conn
	leave func()
}

// Close closes the connection; a second time does nothing more.
func (c *placed) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}

// silent drops the lines of net/http about mistakes of callers, which could fill a log.
func silent() *log.Logger { return log.New(io.Discard, "", 0) }
