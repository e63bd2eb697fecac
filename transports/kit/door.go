package kit

import (
	"sync"

	"github.com/tent-engine/tent/gocore/transport"
)

// Door says which peers may still touch a region: the state behind Transport.Revoke where owner and peers share a
// process. The zero value is open to all. Any goroutine may use it.
type Door struct {
	mu    sync.Mutex
	all   Passage
	peers map[transport.ID]Passage // of peers that were shut out alone
}

// Passage is the state of a Door for one peer. A slice that was accepted at an earlier Epoch is refused: it began
// before a fence. Once it is Closed every slice is.
type Passage struct {
	Epoch  uint64
	Closed bool
}

func (p Passage) shut(keep bool) Passage { return Passage{p.Epoch + 1, p.Closed || !keep} }

// Shut is the first step of Revoke, with the same arguments.
func (d *Door) Shut(peer *transport.Peer, keep bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if peer == nil {
		d.all = d.all.shut(keep)
		return
	}
	if d.peers == nil {
		d.peers = map[transport.ID]Passage{}
	}
	d.peers[peer.ID] = d.peers[peer.ID].shut(keep)
}

// Look returns the Passage of a peer.
func (d *Door) Look(peer transport.ID) Passage {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.peers[peer]
	return Passage{d.all.Epoch + one.Epoch, d.all.Closed || one.Closed}
}
