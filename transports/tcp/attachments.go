package tcp

import (
	"crypto/rand"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Bounds of the memory that peers make us use. Settings.LanesPerPeer and lanesShare bound their lanes.
const (
	attachmentsMax     = 4096             // some 500 bytes each; 4,096 engines are more than any group that we know
	attachmentsPerPeer = 8                // an engine has one; the others are of links that it lost and begins again
	attachmentsIdle    = 64               // more than this many: those without a lane are forgotten
	forgetAfter        = 10 * time.Second // but not before this
	endedLanesMax      = 64               // verdicts of closed lanes that an attachment keeps
	peersMin           = 4                // peers together take all lanes: no smaller number of them locks others out
)

// attachments are the peers that have attached to us. One mutex guards it all, so that a lane that joins an attachment
// and one that is forgotten see each other. It comes before the locks of a lane, but for its readMu.
type attachments struct {
	t           *Transport
	lanesMax    int // of all peers
	lanesOfPeer int

	mu     sync.Mutex
	byID   map[attachmentID]*attachment
	guests map[transport.ID]*guest
	unused kit.List[attachment] // those that have had no lane, the oldest first
	idle   kit.List[attachment] // those that have none any more
	lanes  int                  // open ones, and those of which the proof is awaited
}

// guest is the share of one peer.
type guest struct {
	attachments []*attachment // the oldest first
	lanes       int
}

// names are the identity and the ID of a peer, with the rule that they passed last. They are replaced together.
type names struct {
	proved string                    // see transport.Peer.Names
	passes atomic.Pointer[mem.Peers] // the last rule of a region that admitted them
}

// attachment is the responder's side of a peer's link. The fields from guest on are guarded by attachments.mu.
type attachment struct {
	t      *Transport
	id     attachmentID
	secret secret
	peer   transport.Peer
	names  atomic.Pointer[names]
	spoken uint8  // version of the protocol
	shield shield // of its lanes

	guest    *guest
	place    kit.Element[attachment]   // in unused or idle, while it has no lane
	expected []*responderLane          // those that have named it and not proved themselves, the oldest first
	lanes    map[uint64]*responderLane // the open ones, by the initiator's number
	ended    map[uint64]verdicts       // of closed ones, about which the initiator is going to ask
	old      []uint64                  // keys of ended, the oldest first
	left     bool                      // the initiator has left or was forgotten: no lane is added
	since    clock.Time                // when it lost its last lane
	heard    uint64                    // the newest epoch in which the initiator begins its tasks
	news     chan struct{}             // closed when heard or lanes have changed; nil: nobody waits
}

func (as *attachments) init(t *Transport, lanesMax int) {
	as.t, as.lanesMax, as.lanesOfPeer = t, lanesMax, min(t.settings.LanesPerPeer, lanesMax/peersMin)
	as.byID, as.guests = map[attachmentID]*attachment{}, map[transport.ID]*guest{}
}

// issue attaches a peer. Where there are too many, of this peer or of all, one without a lane goes for it.
func (as *attachments) issue(peer transport.Peer, spoken uint8, s shield) (*attachment, *errs.Error) {
	a := &attachment{t: as.t, peer: peer, spoken: spoken, shield: s,
		lanes: map[uint64]*responderLane{}, ended: map[uint64]verdicts{}, since: clock.Now()}
	a.names.Store(&names{proved: peer.Names()})
	_, _ = rand.Read(a.id[:]) // ends the process rather than fail
	_, _ = rand.Read(a.secret[:])
	as.mu.Lock()
	defer as.mu.Unlock()
	for _, list := range [...]*kit.List[attachment]{&as.unused, &as.idle} {
		for old := list.First(); old != nil && len(as.byID) > attachmentsIdle &&
			a.since.Sub(old.since) > forgetAfter; old = list.First() {
			as.forget(old)
		}
	}
	g := as.guests[peer.ID]
	if g == nil {
		g = &guest{}
	}
	if len(g.attachments) >= attachmentsPerPeer && !as.forgetOneOf(g) {
		return nil, errs.New(errs.TooManyRequests, "tcp.attach", "the peer has %d attachments with open lanes",
			len(g.attachments))
	}
	if len(as.byID) >= attachmentsMax {
		oldest := as.unused.First() // a peer that dials comes soon
		if oldest == nil {
			oldest = as.idle.First()
		}
		if oldest == nil {
			return nil, errs.New(errs.TooManyRequests, "tcp.attach", "%d peers have lanes", len(as.byID))
		}
		as.forget(oldest)
	}
	a.guest = g
	as.guests[peer.ID] = g
	g.attachments = append(g.attachments, a)
	as.byID[a.id] = a
	as.unused.PushBack(a, &a.place)
	return a, nil
}

// forgetOneOf drops the oldest attachment of a peer that has no lane. Holds mu.
func (as *attachments) forgetOneOf(g *guest) bool {
	for _, a := range g.attachments {
		if a.place.Queued() {
			as.forget(a)
			return true
		}
	}
	return false
}

// forget ends an attachment without lanes: its secret opens nothing any more, also not for a greeting that has found it
// already. Holds mu.
func (as *attachments) forget(a *attachment) {
	a.left = true
	a.place.Leave()
	delete(as.byID, a.id)
	g := a.guest
	at := slices.Index(g.attachments, a)
	if g.attachments = slices.Delete(g.attachments, at, at+1); len(g.attachments) == 0 {
		delete(as.guests, a.peer.ID)
	}
}

// lookUp returns the attachment of an id, nil if it is not there or another peer's.
func (as *attachments) lookUp(id attachmentID, peer transport.ID) *attachment {
	as.mu.Lock()
	defer as.mu.Unlock()
	if a := as.byID[id]; a != nil && a.peer.ID == peer {
		return a
	}
	return nil
}

// ofPeer lists the attachments of a peer, of every peer for nil.
func (as *attachments) ofPeer(peer *transport.Peer) []*attachment {
	as.mu.Lock()
	defer as.mu.Unlock()
	if peer == nil {
		return slices.Collect(maps.Values(as.byID))
	}
	if g := as.guests[peer.ID]; g != nil {
		return slices.Clone(g.attachments)
	}
	return nil
}

// Rename implements transport.Renamer.
func (t *Transport) Rename(peer transport.Peer) {
	for _, a := range t.attachments.ofPeer(&peer) {
		a.names.Store(&names{proved: peer.Names()})
	}
}

// expect takes note of a lane that has named an attachment, and is to prove that it belongs there. Of too many lanes
// of a peer, the oldest that has not done so is dropped, and the caller closes it.
func (as *attachments) expect(l *responderLane, id attachmentID, number uint64) (a *attachment, dropped *responderLane,
	err *errs.Error) {
	as.mu.Lock()
	defer as.mu.Unlock()
	a = as.byID[id]
	if a == nil || a.left {
		return nil, nil, l.refuse(transport.RefusedProof, "the lane names no attachment")
	}
	if _, was := a.ended[number]; was || a.lanes[number] != nil {
		return nil, nil, l.refuse(transport.RefusedProof, "lane %d exists already", number)
	}
	if a.guest.lanes >= as.lanesOfPeer || as.lanes >= as.lanesMax {
		if len(a.expected) == 0 {
			return nil, nil, l.refuse(transport.RefusedLimit,
				"%d lanes of %d are open, %d of them of this peer, which may have %d (transports/tcp/lanes_per_peer)",
				as.lanes, as.lanesMax, a.guest.lanes, as.lanesOfPeer)
		}
		dropped = a.expected[0]
		as.removeLocked(dropped, a)
		dropped.markEnd(eventLate, dropped.refuse(transport.RefusedLimit, "other lanes of the peer need the room"))
	}
	as.t.beginPulse() // frames that it has a lease on may follow its proof
	l.id = number
	a.expected = append(a.expected, l)
	a.guest.lanes++
	as.lanes++
	a.place.Leave()
	return a, dropped, nil
}

// admit makes a lane that has proved itself part of its attachment.
func (as *attachments) admit(l *responderLane, a *attachment) *errs.Error {
	as.mu.Lock()
	defer as.mu.Unlock()
	at := slices.Index(a.expected, l)
	if a.left { // it has proved itself, and came too late: nobody did anything wrong
		return l.protocolError("the link of lane %d has ended", l.id)
	}
	if _, was := a.ended[l.id]; at < 0 || was || a.lanes[l.id] != nil {
		return l.refuse(transport.RefusedProof, "lane %d exists already", l.id)
	}
	if from, to := l.life.advance(eventOpened); from == to {
		return l.protocolError("the proof came too late")
	}
	a.expected = slices.Delete(a.expected, at, at+1)
	a.lanes[l.id] = l
	l.attachment.Store(a)
	return nil
}

// remove takes a closed lane out. Of one that was open it keeps the verdicts, for a while.
func (as *attachments) remove(l *responderLane, a *attachment) {
	as.mu.Lock()
	defer as.mu.Unlock()
	as.removeLocked(l, a)
}

func (as *attachments) removeLocked(l *responderLane, a *attachment) {
	switch at := slices.Index(a.expected, l); {
	case at >= 0:
		a.expected = slices.Delete(a.expected, at, at+1)
	case a.lanes[l.id] == l:
		delete(a.lanes, l.id)
		a.newsLocked()
		l.copyMu.Lock()
		a.ended[l.id] = l.in.verdicts
		l.copyMu.Unlock()
		if a.old = append(a.old, l.id); len(a.old) > endedLanesMax {
			delete(a.ended, a.old[0])
			a.old = a.old[1:]
		}
	default:
		return
	}
	a.guest.lanes--
	as.lanes--
	switch {
	case len(a.lanes)+len(a.expected) > 0:
		return
	case a.left:
		as.forget(a)
		return
	}
	a.since = clock.Now()
	list := &as.idle
	if len(a.old) == 0 {
		list = &as.unused
	}
	list.PushBack(a, &a.place)
}

// find returns the open lane of a number, or the verdicts that a closed one has left behind. Beside them are the lanes
// that say to be it and have not proved that yet.
func (a *attachment) find(number uint64) (l *responderLane, old verdicts, expected []*responderLane) {
	a.t.attachments.mu.Lock()
	defer a.t.attachments.mu.Unlock()
	for _, e := range a.expected {
		if e.id == number {
			expected = append(expected, e)
		}
	}
	return a.lanes[number], a.ended[number], expected
}

// allLanes lists the open lanes and those of which the proof is awaited: frames may be behind it in their sockets.
func (a *attachment) allLanes() []*responderLane {
	a.t.attachments.mu.Lock()
	defer a.t.attachments.mu.Unlock()
	return slices.AppendSeq(slices.Clone(a.expected), maps.Values(a.lanes))
}

// withdraw answers which of a lane's slices have landed; the others never will. Nothing lands on a lane that has ended,
// nor had anything landed on one that we do not know. A lane that may be about to prove itself answers nothing: the
// question comes again, also on that lane.
func (a *attachment) withdraw(number uint64, asked []record, answer func(header, []record)) {
	l, old, expected := a.find(number)
	var list []record
	switch {
	case l != nil:
		list = l.voidUnlanded(asked)
	case len(expected) == 0:
		for _, r := range asked {
			list = append(list, record{id: r.id, length: old.verdictOf(r.id)})
		}
	}
	if len(list) > 0 {
		answer(header{kind: kindConfirm, seq: number}, list)
	}
}

// fence ends a lane and answers which of its slices landed. It also ends those that say to be that lane: one of them
// may prove it at this moment, with frames behind the proof, and answers for them then.
func (a *attachment) fence(number uint64, answer func(header, []record)) {
	l, old, expected := a.find(number)
	list := old.fenceAnswer()
	for _, e := range expected {
		if table := e.fence(); e.attachment.Load() != nil {
			list = table
		}
	}
	if l != nil {
		list = l.fence()
	}
	answer(header{kind: kindFenced, seq: number}, list)
}
