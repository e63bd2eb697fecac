package control

import (
	"net"
	"sync"
	"time"
)

// waitingRoom is a listener of its own for gRPC: its connections are guests that were parked and have their turn.
type waitingRoom struct {
	come   chan *guest
	closed chan struct{}
	once   sync.Once
}

func newWaitingRoom(most int) *waitingRoom {
	return &waitingRoom{come: make(chan *guest, most), closed: make(chan struct{})}
}

// enter never blocks. It reports whether there was room.
func (r *waitingRoom) enter(g *guest) bool {
	select {
	case r.come <- g:
		return true
	default:
		return false
	}
}

// Close ends Accept.
func (r *waitingRoom) Close() error {
	r.once.Do(func() { close(r.closed) })
	return nil
}

// exit is the waiting room's way to gRPC.
type exit struct {
	*waitingRoom
	address net.Addr
	limit   time.Duration // for which a guest may have been parked; by then its peer has given up
}

// Addr returns the address of a door, which is for gRPC's own log.
func (e exit) Addr() net.Addr { return e.address }

// Accept returns the next guest with a turn.
func (e exit) Accept() (net.Conn, error) {
	for {
		select {
		case g := <-e.come:
			if time.Since(g.came) > e.limit {
				g.of.drop(g, "its network owed for handshakes for too long")
			} else if g.open() {
				return g, nil
			}
		case <-e.closed:
			return nil, net.ErrClosed
		}
	}
}
