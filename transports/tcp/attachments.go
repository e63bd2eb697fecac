package tcp

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Bounds of what peers make us remember.
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

	mu     sync.Mutex
	lanes  map[uint64]*lane // by the initiator's number: open, or closed and still asked about
	open   int
	left   bool     // its initiator has left
	old    []uint64 // closed ones, the oldest first
	since  clock.Time
	denied map[uint64]bool // regions revoked for this peer
}

// make gives a peer a token. Peers without a lane are forgotten when there are many.
func (as *attachments) make(peer transport.Peer) (*attachment, *errs.Error) {
	a := &attachment{t: as.t, peer: peer, lanes: map[uint64]*lane{}, since: clock.Now()}
	if _, err := rand.Read(a.token[:]); err != nil {
		return nil, errs.Wrap(errs.Internal, "tcp.attach", err)
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	if len(as.byToken) > attachmentsIdle {
		for key, other := range as.byToken {
			if other.forgettable() {
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

func (as *attachments) find(key token) *attachment {
	as.mu.Lock()
	defer as.mu.Unlock()
	return as.byToken[key]
}

// of lists the attachments of a peer, of every peer for nil.
func (as *attachments) of(peer *transport.Peer) []*attachment {
	as.mu.Lock()
	defer as.mu.Unlock()
	var list []*attachment
	for _, a := range as.byToken {
		if peer == nil || (a.peer.Address == peer.Address && (peer.Incarnation == 0 || a.peer.Incarnation == peer.Incarnation)) {
			list = append(list, a)
		}
	}
	return list
}

func (a *attachment) forgettable() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open == 0 && clock.Now().Sub(a.since) > forgetAfter
}

// add makes a greeted lane part of the attachment.
func (a *attachment) add(l *lane, id uint64) *errs.Error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left || a.lanes[id] != nil || a.open >= openLanesMax {
		return l.protocolError("lane %d of %d exists already, there are too many, or the link has ended", id, a.open)
	}
	l.id = id
	l.copyMu.Lock()
	for key := range a.denied {
		l.in.bar(key, forever)
	}
	l.copyMu.Unlock()
	a.lanes[id] = l
	a.open++
	l.attachment.Store(a)
	return nil
}

// ended keeps a closed lane's verdicts for a while: its initiator is going to ask.
func (a *attachment) ended(l *lane) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open--
	a.since = clock.Now()
	a.old = append(a.old, l.id)
	if len(a.old) > endedLanesMax {
		delete(a.lanes, a.old[0])
		a.old = a.old[1:]
	}
}

func (a *attachment) lane(id uint64) *lane {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lanes[id]
}

func (a *attachment) openLanes() []*lane {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := make([]*lane, 0, len(a.lanes))
	for _, l := range a.lanes {
		list = append(list, l)
	}
	return list
}

// withdraw answers which of a lane's slices have landed; the others never will. A lane that we do not know has ended,
// so nothing of it lands any more.
func (a *attachment) withdraw(id uint64, asked []record, answer func(header, []record)) {
	if l := a.lane(id); l != nil {
		if list := l.judge(asked); len(list) > 0 {
			answer(header{kind: kindConfirm, seq: id}, list)
		}
		return
	}
	list := make([]record, len(asked))
	for i := range asked {
		list[i] = record{id: asked[i].id, length: verdictVoid}
	}
	answer(header{kind: kindConfirm, seq: id}, list)
}

// fence ends a lane and answers what landed on it.
func (a *attachment) fence(id uint64, answer func(header, []record)) {
	list := []record{{}}
	if l := a.lane(id); l != nil {
		list = l.fence()
	}
	answer(header{kind: kindFenced, seq: id}, list)
}
