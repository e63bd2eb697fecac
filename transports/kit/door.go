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
	all  Passage
	some atomic.Pointer[map[transport.ID]*Passage] // of peers that were shut out alone since then; nil without
	mu   sync.Mutex                                // of Shut
}

// Passage says which slices may still touch a region: at its owner those of one peer or of all, at a peer its own. The
// zero value is open. Any goroutine may use it, and nothing takes a lock.
type Passage struct {
	floor  atomic.Uint64 // the epoch of the last fence: slices of older ones are refused
	closed atomic.Bool   // for good
}

// Raise refuses slices of epochs before floor. A floor that is lower than that of before changes nothing.
func (p *Passage) Raise(floor transport.Epoch) {
	for before := p.floor.Load(); uint64(floor) > before; before = p.floor.Load() {
		if p.floor.CompareAndSwap(before, uint64(floor)) {
			return
		}
	}
}

// Close refuses all slices, for good.
func (p *Passage) Close() { p.closed.Store(true) }

// Closed reports whether Close was called.
func (p *Passage) Closed() bool { return p.closed.Load() }

// Admits answers a slice by the epoch that it carries.
func (p *Passage) Admits(epoch transport.Epoch) Answer {
	switch {
	case p.closed.Load():
		return DoorClosed
	case uint64(epoch) < p.floor.Load():
		return DoorFenced
	}
	return DoorOpen
}

func (p *Passage) shut(epoch transport.Epoch) {
	if epoch == transport.ForGood {
		p.Close()
	} else {
		p.Raise(epoch)
	}
}

// Answer is the answer of a door or a passage to a slice.
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
	var known map[transport.ID]*Passage
	if p := d.some.Load(); p != nil {
		known = *p
	}
	if known[peer.ID] == nil {
		known = maps.Clone(known)
		if known == nil {
			known = map[transport.ID]*Passage{}
		}
		maps.DeleteFunc(known, func(_ transport.ID, p *Passage) bool { // a later fence of all has shut them too
			return !p.closed.Load() && p.floor.Load() <= d.all.floor.Load()
		})
		known[peer.ID] = &Passage{}
		defer d.some.Store(&known)
	}
	known[peer.ID].shut(epoch)
}

// Admits answers a slice of a peer by the epoch that it carries.
func (d *Door) Admits(peer transport.ID, epoch transport.Epoch) Answer {
	answer := d.all.Admits(epoch)
	if p := d.some.Load(); p != nil {
		if one := (*p)[peer]; one != nil {
			answer = max(answer, one.Admits(epoch))
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
