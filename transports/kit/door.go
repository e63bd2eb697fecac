package kit

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/transport"
)

// Door says which slices of which peers may still touch a region: the state behind Transport.Revoke. The zero value is
// open to all. Any goroutine may use it; Admits takes no lock.
type Door struct {
	all  passage
	some atomic.Pointer[map[transport.ID]*passage] // of peers that were shut out alone since then; nil without
	mu   sync.Mutex                                // of Shut
}

// passage is the state of a door for a peer, or for all of them.
type passage struct {
	floor  atomic.Uint64 // the epoch of the last fence: slices of older ones are refused
	closed atomic.Bool   // for good
}

func (p *passage) shut(epoch transport.Epoch) {
	if epoch == transport.ForGood {
		p.closed.Store(true)
	} else {
		p.floor.Store(max(p.floor.Load(), uint64(epoch)))
	}
}

func (p *passage) look(epoch transport.Epoch) Answer {
	switch {
	case p.closed.Load():
		return DoorClosed
	case uint64(epoch) < p.floor.Load():
		return DoorFenced
	}
	return DoorOpen
}

// Answer is the answer of a door to a slice.
type Answer uint8

// Answers of a door.
const (
	DoorOpen   Answer = iota
	DoorFenced        // its task began before a fence
	DoorClosed        // for good
)

// Shut is the first step of Revoke, with the same arguments.
func (d *Door) Shut(peer *transport.Peer, epoch transport.Epoch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if peer == nil {
		d.all.shut(epoch)
		return
	}
	var known map[transport.ID]*passage
	if p := d.some.Load(); p != nil {
		known = *p
	}
	if known[peer.ID] == nil {
		known = maps.Clone(known)
		if known == nil {
			known = map[transport.ID]*passage{}
		}
		maps.DeleteFunc(known, func(_ transport.ID, p *passage) bool { // a later fence of all has shut them too
			return !p.closed.Load() && p.floor.Load() <= d.all.floor.Load()
		})
		known[peer.ID] = &passage{}
		defer d.some.Store(&known)
	}
	known[peer.ID].shut(epoch)
}

// Admits answers a slice of a peer by the epoch that it carries.
func (d *Door) Admits(peer transport.ID, epoch transport.Epoch) Answer {
	answer := d.all.look(epoch)
	if p := d.some.Load(); p != nil {
		if one := (*p)[peer]; one != nil {
			answer = max(answer, one.look(epoch))
		}
	}
	return answer
}

// Last returns the epoch of the last fence for a peer, 0 without one, and whether the door is closed to it for good.
func (d *Door) Last(peer transport.ID) (floor transport.Epoch, closed bool) {
	floor, closed = transport.Epoch(d.all.floor.Load()), d.all.closed.Load()
	if p := d.some.Load(); p != nil && (*p)[peer] != nil {
		one := (*p)[peer]
		floor, closed = max(floor, transport.Epoch(one.floor.Load())), closed || one.closed.Load()
	}
	return floor, closed
}

// Alone returns how the door was shut for a peer alone: the epoch of its last fence, ForGood if it was closed. was is
// false if neither has happened.
func (d *Door) Alone(peer transport.ID) (epoch transport.Epoch, was bool) {
	p := d.some.Load()
	if p == nil || (*p)[peer] == nil {
		return 0, false
	}
	one := (*p)[peer]
	if one.closed.Load() {
		return transport.ForGood, true
	}
	return transport.Epoch(one.floor.Load()), true
}
