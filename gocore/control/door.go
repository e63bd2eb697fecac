package control

import (
	"errors"
	"net"
	"time"

	"github.com/tent-engine/tent/gocore/control/intake"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// door is a listener that counts its connections as guests.
type door struct {
	*intake.Listener
	guests *guests
}

// crowdLeast is the number of connections in a row that had to wait for their turns: a flood, which may gather.
const crowdLeast = 16

// Accept returns the next connection for which there is room, or can be made, and that need not wait for its turn. Its
// errors pass (errs.Passing), but for that of a closed listener.
func (d door) Accept() (net.Conn, error) {
	for parked := 0; ; {
		conn, err := d.Next(parked >= crowdLeast)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil, err
			}
			d.guests.refused(transport.RefusedLimit, "", err) // the peer hears nothing
			return nil, errs.Passing(err)
		}
		if d.guests.replace(conn) {
			parked++
			continue
		}
		switch g := d.guests.admit(conn); {
		case g == nil:
			_ = conn.Close()
		case d.guests.park(g):
			parked++
		case g.open():
			return g, nil
		}
	}
}

// replace closes the oldest parked connection of a host that crowds the strangers, and gives its place to a newer one.
// It reports whether there was one. A flood passes here, so it makes little garbage, and its refusals share one error.
func (s *guests) replace(conn *intake.Conn) bool {
	host := hostIn(conn.RemoteAddr())
	s.mu.Lock()
	replaced := s.replaceLocked(host, conn)
	s.mu.Unlock()
	if replaced {
		s.refused(transport.RefusedLimit, host, errReplaced)
	}
	return replaced
}

func (s *guests) replaceLocked(host string, conn *intake.Conn) bool {
	network := NetworkOf(host)
	if s.closing || s.strangers.all < s.limits.Strangers || s.strangers.most() != network {
		return false
	}
	g := s.turns.replace(network, host, conn)
	if g != nil {
		s.moved(g)
	}
	return g != nil
}

var errReplaced = errs.New(errs.TooManyRequests, "control", "a connection was closed: its place was needed").
	WithScope(errs.ScopeLink, errs.SideLocal)

// hostIn returns the host of an address, all of it where that has no port.
func hostIn(address net.Addr) string {
	host, _, err := net.SplitHostPort(address.String())
	if err != nil {
		return address.String()
	}
	return host
}

// openCost is the processor time of a connection besides its handshake: goroutines, a place in Go's poller, buffers.
const openCost = 50 * time.Microsecond

// open makes a guest ready for gRPC, at the cost of its network. It reports false for one that has gone.
func (g *guest) open() bool {
	g.pays(openCost) // also for one that has gone: a network of such is parked
	s, is := g.Conn.(*intake.Conn)
	if !is {
		return true
	}
	err := s.Open()
	if err == nil {
		return true
	}
	if !errors.Is(err, net.ErrClosed) {
		g.of.refused(transport.RefusedLimit, g.host, err)
	}
	_ = g.Close()
	return false
}
