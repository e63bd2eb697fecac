package shm

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
)

// attachmentsMax bounds the peers that we remember: each costs a page, two descriptors and a mapping.
const attachmentsMax = 4096

// attachment is the owner's side of a peer's link: the page through which its copiers enter our memory.
type attachment struct {
	peer    transport.Peer
	link    uint64 // the peer's number of it
	token   uint64
	who     identity
	page    *hazard.Page
	process *vm.Process // nil: our own
}

// attachments are the peers that have attached to us, by the token that each was given.
type attachments struct {
	t       *Transport
	mu      sync.Mutex
	byToken map[uint64]*attachment
	closed  bool
}

// admit checks the process that asks for access and makes an attachment for it. The refusal names the boundary between
// the two.
func (as *attachments) admit(from transport.Peer, link uint64, who identity) (*attachment, *errs.Error) {
	t := as.t
	if why := t.me.Boundary(who.Identity); why != "" {
		return nil, refusal("%s", why)
	}
	a := &attachment{peer: from, link: link, who: who}
	for a.token == 0 {
		a.token = rand.Uint64()
	}
	if who.nonce != t.me.nonce {
		var err error
		if a.process, err = vm.Open(who.PID, who.Started); err != nil {
			return nil, errs.Wrap(errs.PeerUnreachable, "shm.attach", err).WithScope(errs.ScopeLink, errs.SidePath)
		}
	}
	if err := as.keep(a); err != nil {
		a.release()
		return nil, err
	}
	return a, nil
}

// keep makes the attachment's page and enters it. Regions that were revoked for this peer alone stay so.
func (as *attachments) keep(a *attachment) *errs.Error {
	t := as.t
	as.mu.Lock()
	defer as.mu.Unlock()
	switch {
	case as.closed:
		return kit.Closed("shm.attach")
	case len(as.byToken) >= attachmentsMax:
		return errs.New(errs.TooManyRequests, "shm.attach", "%d peers are attached already", len(as.byToken))
	}
	page, err := t.table.NewPage(int(a.who.PID), a.pidfd())
	if err != nil {
		return errs.From("shm.attach", err)
	}
	a.page = page
	ctx, cancel := bounded(context.Background(), revokeLimit)
	defer cancel()
	for _, r := range t.regions.All() {
		if epoch, was := r.door.Alone(a.peer.ID); was {
			// nobody is inside a page that nobody has: it cannot last
			_ = t.table.Revoke(ctx, r.name, page, hazard.Epoch(epoch))
		}
	}
	if a.process != nil {
		if err := t.watcher.add(a.process.Fd(), func() { as.end(a) }); err != nil {
			_ = t.table.Retire(ctx, page)
			return errs.From("shm.attach", err)
		}
	}
	as.byToken[a.token] = a
	return nil
}

// of returns the attachments of a peer from which a region is taken back, and writes that down for later ones.
func (as *attachments) of(peer *transport.Peer, r *region, epoch transport.Epoch) []*attachment {
	as.mu.Lock()
	defer as.mu.Unlock()
	r.door.Shut(peer, epoch)
	var list []*attachment
	for _, a := range as.byToken {
		if a.peer.ID == peer.ID {
			list = append(list, a)
		}
	}
	return list
}

// end forgets an attachment after its peer has left or died. The hazard table remembers a page that a stopped copier
// holds.
func (as *attachments) end(a *attachment) {
	as.mu.Lock()
	_, known := as.byToken[a.token]
	delete(as.byToken, a.token)
	as.mu.Unlock()
	if !known {
		return
	}
	ctx, cancel := bounded(context.Background(), revokeLimit)
	defer cancel()
	if err := as.t.table.Retire(ctx, a.page); err != nil {
		as.t.host.Log().Warn("detached peer", "peer", a.peer.Address, "err", err)
	}
	if a.process != nil {
		as.t.watcher.remove(a.process.Fd())
	}
	a.release()
}

// release closes the attachment's own resources; its page is the hazard table's.
func (a *attachment) release() {
	if a.process != nil {
		a.process.Close()
		tracers.release(a)
	}
}

func (a *attachment) pidfd() int {
	if a.process == nil {
		return -1
	}
	return a.process.Fd()
}

func (as *attachments) find(token uint64) *attachment {
	as.mu.Lock()
	defer as.mu.Unlock()
	return as.byToken[token]
}

// close takes the attachments out and lets no new one come. Their ends are the caller's.
func (as *attachments) close() []*attachment {
	as.mu.Lock()
	defer as.mu.Unlock()
	as.closed = true
	list := as.listLocked()
	clear(as.byToken)
	return list
}

func (as *attachments) list() []*attachment {
	as.mu.Lock()
	defer as.mu.Unlock()
	return as.listLocked()
}

func (as *attachments) listLocked() []*attachment { return slices.Collect(maps.Values(as.byToken)) }
