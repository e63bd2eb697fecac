package tcp

import (
	"crypto/rand"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Bounds of the memory that peers make us use.
const (
	attachmentsMax  = 4096
	attachmentsIdle = 64               // more than this many: those without a lane are forgotten
	forgetAfter     = 10 * time.Second // but not before this
	endedLanesMax   = 64               // verdicts of closed lanes that an attachment keeps
	openLanesMax    = 1024
)

// attachments are the peers that have attached to us, by the token that each was given.
type attachments struct {
	t       *Transport
	mu      sync.Mutex
	byToken map[token]*attachment
}

func (as *attachments) init(t *Transport) { as.t, as.byToken = t, map[token]*attachment{} }

// attachment is the responder's side of a peer's link.
type attachment struct {
	t     *Transport
	token token
	peer  transport.Peer

	mu    sync.Mutex
	lanes map[uint64]*responderLane // the open ones, by the initiator's number
	ended map[uint64]verdicts       // of closed ones, about which the initiator is going to ask
	old   []uint64                  // keys of ended, the oldest first
	left  bool                      // the initiator has left
	since clock.Time                // when the last lane was closed
	heard uint64                    // the newest epoch in which the initiator begins its tasks
	news  chan struct{}             // closed when heard or lanes have changed; nil: nobody waits
}

// issue gives a peer a token. Peers without a lane are forgotten when there are many.
func (as *attachments) issue(peer transport.Peer) (*attachment, *errs.Error) {
	a := &attachment{t: as.t, peer: peer, lanes: map[uint64]*responderLane{}, ended: map[uint64]verdicts{},
		since: clock.Now()}
	if _, err := rand.Read(a.token[:]); err != nil {
		return nil, errs.Wrap(errs.Internal, "tcp.attach", err)
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	if len(as.byToken) > attachmentsIdle {
		for key, other := range as.byToken {
			if other.leaveIfIdle() {
				delete(as.byToken, key)
			}
		}
	}
	if len(as.byToken) >= attachmentsMax {
		return nil, errs.New(errs.TooManyRequests, "tcp.attach", "%d peers are attached already", len(as.byToken))
	}
	as.byToken[a.token] = a
	return a, nil
}

func (as *attachments) lookUp(key token) *attachment {
	as.mu.Lock()
	defer as.mu.Unlock()
	return as.byToken[key]
}

// ofPeer lists the attachments of a peer, of every peer for nil.
func (as *attachments) ofPeer(peer *transport.Peer) []*attachment {
	as.mu.Lock()
	defer as.mu.Unlock()
	var list []*attachment
	for _, a := range as.byToken {
		if peer == nil || a.peer.ID == peer.ID {
			list = append(list, a)
		}
	}
	return list
}

// leaveIfIdle ends an attachment that has had no lane for a while. A greeting that has found it already is refused
// then: Revoke and Close would not see its lane.
func (a *attachment) leaveIfIdle() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.lanes) > 0 || clock.Now().Sub(a.since) <= forgetAfter {
		return false
	}
	a.left = true
	return true
}

// admit makes a greeted lane part of the attachment.
func (a *attachment) admit(l *responderLane, id uint64) *errs.Error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, was := a.ended[id]; was || a.left || a.lanes[id] != nil || len(a.lanes) >= openLanesMax {
		return l.protocolError("lane %d of %d exists already, there are too many, or the link has ended",
			id, len(a.lanes))
	}
	l.id = id
	if from, to := l.life.advance(eventOpened); from == to {
		return l.protocolError("the greeting came too late")
	}
	a.lanes[id] = l
	l.attachment.Store(a)
	return nil
}

// removeLane keeps the verdicts of a closed lane, for a while, and nothing else of it.
func (a *attachment) removeLane(l *responderLane) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lanes[l.id] != l {
		return
	}
	delete(a.lanes, l.id)
	a.newsLocked()
	l.copyMu.Lock()
	a.ended[l.id] = l.in.verdicts
	l.copyMu.Unlock()
	a.since = clock.Now()
	if a.old = append(a.old, l.id); len(a.old) > endedLanesMax {
		delete(a.ended, a.old[0])
		a.old = a.old[1:]
	}
}

// lane returns an open lane, or the verdicts that a closed one has left behind.
func (a *attachment) lane(id uint64) (*responderLane, verdicts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lanes[id], a.ended[id]
}

func (a *attachment) openLanes() []*responderLane {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.lanes))
}

// withdraw answers which of a lane's slices have landed; the others never will. Nothing lands on a lane that has ended,
// nor had anything landed on one that we do not know.
func (a *attachment) withdraw(id uint64, asked []record, answer func(header, []record)) {
	l, old := a.lane(id)
	var list []record
	if l != nil {
		list = l.voidUnlanded(asked)
	} else {
		for _, r := range asked {
			list = append(list, record{id: r.id, length: old.verdictOf(r.id)})
		}
	}
	if len(list) > 0 {
		answer(header{kind: kindConfirm, seq: id}, list)
	}
}

// fence ends a lane and answers which of its slices landed.
func (a *attachment) fence(id uint64, answer func(header, []record)) {
	l, old := a.lane(id)
	list := old.fenceAnswer()
	if l != nil {
		list = l.fence()
	}
	answer(header{kind: kindFenced, seq: id}, list)
}
