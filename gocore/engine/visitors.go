package engine

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
)

// visitorsMax bounds the engines that are remembered. One more makes the one leave that was silent longest.
const visitorsMax = 8192

// visitor is an engine that has called us, or that was opened here: its lanes may be open.
type visitor struct {
	peer  transport.Peer
	proof security.Proof // of its latest handshake
	seen  time.Time      // of that
	asked time.Time      // for a newer one, the first time; zero where there was no need
}

// visitors are the engines that may use our regions, by their latest proofs. Any goroutine may use it.
type visitors struct {
	mu   sync.Mutex
	byID map[transport.ID]*visitor
}

// note enters an engine with its latest proof, and returns the one that leaves for it, nil for none.
func (v *visitors) note(p transport.Peer, proof security.Proof, now time.Time) (leaves *visitor) {
	v.mu.Lock()
	defer v.mu.Unlock()
	known := v.byID[p.ID]
	if known == nil {
		if len(v.byID) >= visitorsMax {
			for _, each := range v.byID {
				if leaves == nil || each.seen.Before(leaves.seen) {
					leaves = each
				}
			}
			delete(v.byID, leaves.peer.ID)
		}
		known = &visitor{}
		if v.byID == nil {
			v.byID = make(map[transport.ID]*visitor)
		}
		v.byID[p.ID] = known
	}
	*known = visitor{peer: p, proof: proof, seen: now}
	return leaves
}

// ask notes that an engine is asked for a newer proof, and returns when that was so for the first time.
func (v *visitors) ask(id transport.ID, now time.Time) (since time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	known := v.byID[id]
	if known == nil {
		return now
	}
	if known.asked.IsZero() {
		known.asked = now
	}
	return known.asked
}

func (v *visitors) drop(id transport.ID) {
	v.mu.Lock()
	delete(v.byID, id)
	v.mu.Unlock()
}

// list returns copies, in the order of their addresses.
func (v *visitors) list() []visitor {
	v.mu.Lock()
	defer v.mu.Unlock()
	list := make([]visitor, 0, len(v.byID))
	for _, each := range v.byID {
		list = append(list, *each)
	}
	slices.SortFunc(list, func(a, b visitor) int {
		return cmp.Or(cmp.Compare(a.peer.Address, b.peer.Address), slices.Compare(a.peer.ID[:], b.peer.ID[:]))
	})
	return list
}

// admissionsMax bounds the events of peers that were let in, a second: they must not push out all others.
const admissionsMax = 64

// shown notes a handshake with a peer. One that has to leave the table for it loses its access: nobody would see the
// end of its certificate any more.
func (e *Engine) shown(p transport.Peer, proof security.Proof) {
	if leaves := e.visitors.note(p, proof, time.Now()); leaves != nil {
		e.dismissals.add(leaves.peer, errs.New(errs.PeerNotAdmitted, "peer",
			"more than %d engines have called since", visitorsMax))
	}
}

// admitted notes a connection of a peer, and announces a peer that had none.
func (e *Engine) admitted(p transport.Peer, proof security.Proof, isNew bool) {
	e.shown(p, proof)
	if !isNew {
		return
	}
	r := e.refusals
	now := clock.Now()
	r.mu.Lock()
	if now.Sub(r.second) >= time.Second {
		r.second, r.admissions = now, 0
	}
	r.admissions++
	quiet := r.admissions > admissionsMax
	r.mu.Unlock()
	if !quiet {
		e.announce(&event.Event{Kind: event.PeerAdmitted, Peer: p.Address, Note: p.Identity})
	}
}

// PeerInfo describes an engine that has called this one, or that is open here.
type PeerInfo struct {
	Peer      transport.Peer
	Connected bool      // it has a connection to our control plane now
	Open      bool      // a segment of it is open here
	Seen      time.Time // its latest handshake with us; zero if it made none
	Until     time.Time // the end of the certificate that it showed then; zero for none
}

// Peers lists the engines that have called this one since it started, and those that are open. One that was
// disconnected is not among them. Connected says which of them are there.
func (e *Engine) Peers() []PeerInfo {
	var list []PeerInfo
	open := e.segments.identities()
	for _, v := range e.visitors.list() {
		_, is := open[v.peer.ID]
		delete(open, v.peer.ID)
		list = append(list, PeerInfo{Peer: v.peer, Connected: e.server.Connected(v.peer.ID), Open: is, Seen: v.seen,
			Until: v.proof.Until})
	}
	for _, p := range open {
		list = append(list, PeerInfo{Peer: p, Open: true})
	}
	slices.SortStableFunc(list, func(a, b PeerInfo) int { return cmp.Compare(a.Peer.Address, b.Peer.Address) })
	return list
}

// identities returns the other engines that are open, by ID.
func (t *segmentTable) identities() map[transport.ID]transport.Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	open := make(map[transport.ID]transport.Peer)
	for key, p := range t.peers {
		if p.file == nil && !p.identity.Self && p.gone.Load() == nil {
			open[key.id] = p.identity
		}
	}
	return open
}
