package engine

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
)

// Visitors for which nothing is open are forgotten beyond visitorsMax, until visitorsKept are left.
const (
	visitorsMax  = 8192
	visitorsKept = visitorsMax / 8 * 7
)

// visitor is an engine that has called us, or that was opened here: its lanes may be open.
type visitor struct {
	peer    transport.Peer
	proof   security.Proof // of its latest handshake
	seen    time.Time      // of that
	used    time.Time      // its latest call or handshake
	doubted time.Time      // a newer proof was needed for the first time; zero where there was no need
	asked   time.Time      // for a newer proof, the last time
}

// visitors are the engines that may use our regions, by their latest proofs. Any goroutine may use it.
type visitors struct {
	mu   sync.Mutex
	byID map[transport.ID]*visitor
	open int // those of the last tidying for which something was open

	tidying  sync.Mutex // one look for those to forget at a time
	renaming sync.Mutex // one call of the transports about identities at a time
}

// note enters an engine with its latest proof, and reports whether tidying is due. before is the peer that it was, nil
// for a new one. One that has made a newer handshake since then keeps its place by that: isLate.
func (v *visitors) note(p transport.Peer, proof security.Proof, now time.Time) (before *transport.Peer, isLate,
	many bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.byID == nil {
		v.byID = make(map[transport.ID]*visitor)
	}
	if known := v.byID[p.ID]; known != nil {
		if before = &known.peer; proof.IsOlder(known.proof) {
			known.used = now
			return before, true, false
		}
	}
	v.byID[p.ID] = &visitor{peer: p, proof: proof, seen: now, used: now}
	return before, false, len(v.byID) > v.open+visitorsMax
}

// get returns an engine as it is noted, nil if it is not. Its peer and its proof stay as they are.
func (v *visitors) get(id transport.ID) *visitor {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.byID[id]
}

// use notes a call of an engine, and returns the engine as get does.
func (v *visitors) use(id transport.ID, now time.Time) *visitor {
	v.mu.Lock()
	defer v.mu.Unlock()
	known := v.byID[id]
	if known != nil {
		known.used = now
	}
	return known
}

// tidy forgets visitors for which nothing is open, and returns them. Their latest calls decide within an identity, and
// the identity with most of them comes first: under ever new keys it takes the places of its own, and not of others.
func (v *visitors) tidy(open map[transport.ID]bool) (left []*visitor) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, each := range v.byID {
		if !open[id] {
			left = append(left, each)
		}
	}
	v.open = len(v.byID) - len(left)
	slices.SortFunc(left, func(a, b *visitor) int { return b.used.Compare(a.used) })
	ranks, of := make(map[*visitor]int, len(left)), make(map[string]int)
	for _, each := range left {
		ranks[each] = of[each.peer.Identity]
		of[each.peer.Identity]++
	}
	slices.SortStableFunc(left, func(a, b *visitor) int { return cmp.Compare(ranks[a], ranks[b]) })
	left = left[min(visitorsKept, len(left)):]
	for _, each := range left {
		delete(v.byID, each.peer.ID)
	}
	return left
}

// doubt notes that an engine needs a newer proof, and returns when that was so for the first time.
func (v *visitors) doubt(id transport.ID, now time.Time) (since time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	known := v.byID[id]
	if known == nil {
		return now
	}
	if known.doubted.IsZero() {
		known.doubted = now
	}
	return known.doubted
}

// ask notes that an engine is asked for a newer proof.
func (v *visitors) ask(id transport.ID, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if known := v.byID[id]; known != nil {
		known.asked = now
	}
}

func (v *visitors) drop(id transport.ID) {
	v.mu.Lock()
	delete(v.byID, id)
	v.mu.Unlock()
}

// isAsSeen reports whether an engine has shown no proof since a copy of it was made.
func (v *visitors) isAsSeen(was visitor) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	known := v.byID[was.peer.ID]
	return known != nil && known.seen.Equal(was.seen)
}

// dropAsSeen forgets an engine unless it has shown a proof since a copy of it was made, and reports whether it did.
func (v *visitors) dropAsSeen(was visitor) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	known := v.byID[was.peer.ID]
	if known == nil || !known.seen.Equal(was.seen) {
		return false
	}
	delete(v.byID, was.peer.ID)
	return true
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

// shown notes a handshake with a peer.
func (e *Engine) shown(p transport.Peer, proof security.Proof) {
	before, isLate, many := e.visitors.note(p, proof, time.Now())
	switch {
	case before == nil || before.Identity == p.Identity:
	case isLate: // by a connection from before the handshake that counts; it comes again by another one
		e.server.ExpelAs(p.ID, p.Identity)
	default:
		e.renamed(*before, p)
	}
	if many && e.visitors.tidying.TryLock() {
		defer e.visitors.tidying.Unlock()
		e.forgetVisitors()
	}
}

// called notes a call of a peer. One that was forgotten is entered again, before the call opens anything for it. A call
// by an identity of before has come beside the first one of its connection. It ends that too, so no answer leaves.
func (e *Engine) called(p transport.Peer, proof security.Proof) {
	known := e.visitors.use(p.ID, time.Now())
	if known == nil || known.peer.Identity != p.Identity && proof.IsOlder(known.proof) {
		e.shown(p, proof)
	}
}

// proved notes a peer that has answered us, unless that is known. One that was opened by a blob has proved nothing
// before.
func (e *Engine) proved(p transport.Peer, proof security.Proof) {
	if known := e.visitors.get(p.ID); known == nil || known.proof.IsOlder(proof) {
		p.ID, p.Identity = proof.ID, proof.Identity
		e.shown(p, proof)
	}
}

// forgetVisitors makes room among the visitors. The forgotten ones lose no access: they come again by a call.
func (e *Engine) forgetVisitors() {
	for _, v := range e.visitors.tidy(e.openVisitors()) {
		if !v.proof.Until.IsZero() { // somebody must see the end of its certificate
			e.closeDoor(v.peer.ID)
		}
	}
}

// openVisitors returns the peers for which something is open, here or at their end.
func (e *Engine) openVisitors() map[transport.ID]bool {
	open := make(map[transport.ID]bool)
	for id := range e.segments.identities() {
		open[id] = true
	}
	for _, port := range e.ports {
		if t, is := transport.Find[transport.Visited](port.transport); is {
			for _, id := range t.Visitors() {
				open[id] = true
			}
		}
	}
	return open
}

// mappings returns the peers that have our memory mapped by transports that cannot disconnect them: only a revocation
// for good ends that. It reports whether another transport has something open for peers that it does not name.
func (e *Engine) mappings() (peers map[transport.ID]bool, unknown bool) {
	peers = make(map[transport.ID]bool)
	for _, port := range e.ports {
		if port.transport == nil || port.info.Files || port.info.Delegates { // nothing reaches us beside calls
			continue
		}
		if _, is := transport.Find[transport.Disconnecter](port.transport); is {
			continue
		}
		t, names := transport.Find[transport.Visited](port.transport)
		if !names {
			unknown = true
			continue
		}
		for _, id := range t.Visitors() {
			peers[id] = true
		}
	}
	return peers, unknown
}

// closeDoor makes a peer for which nothing is open come again by a handshake. Transports that do not name their
// visitors may have something open.
func (e *Engine) closeDoor(id transport.ID) {
	e.server.Expel(id)
	for _, port := range e.ports {
		d, disconnects := transport.Find[transport.Disconnecter](port.transport)
		if _, names := transport.Find[transport.Visited](port.transport); disconnects && !names {
			d.Disconnect(id)
		}
	}
}

// admitted notes a connection of a peer, and announces a peer that had none.
func (e *Engine) admitted(p transport.Peer, proof security.Proof, isNew bool) {
	e.shown(p, proof)
	if !isNew {
		return
	}
	e.refusals.mu.Lock()
	told := e.refusals.admissions.take(1, admissionsMax, clock.Now()) > 0
	e.refusals.mu.Unlock()
	if told {
		e.announce(&event.Event{Kind: event.PeerAdmitted, Peer: e.attributed(p), ID: p.ID.String(), Host: p.Host,
			Note: p.Identity})
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
// disconnected is not among them. Of those for which nothing is open, the last visitorsKept are. Connected says which
// of them are there.
func (e *Engine) Peers() []PeerInfo {
	var list []PeerInfo
	open := e.segments.identities()
	owners := make(map[string]transport.ID, len(open))
	for id, p := range open {
		owners[p.Address] = id
	}
	for _, v := range e.visitors.list() {
		opened, is := open[v.peer.ID]
		delete(open, v.peer.ID)
		if owner, taken := owners[v.peer.Address]; is { // as attributed has it
			v.peer.Address = opened.Address
		} else if taken && owner != v.peer.ID {
			v.peer.Address = v.peer.ID.String()
		}
		list = append(list, PeerInfo{Peer: v.peer, Connected: e.server.Connected(v.peer.ID), Open: is, Seen: v.seen,
			Until: v.proof.Until})
	}
	for _, p := range open {
		list = append(list, PeerInfo{Peer: p, Open: true})
	}
	slices.SortStableFunc(list, func(a, b PeerInfo) int { return cmp.Compare(a.Peer.Address, b.Peer.Address) })
	return list
}
