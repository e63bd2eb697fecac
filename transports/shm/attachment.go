package shm

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
)

// Bounds of the resources that peers take. Each attachment costs a page, a mapping and attachmentFiles descriptors; all
// of them together take a quarter of those that the process may have.
const (
	attachmentsMax  = 4096
	attachmentFiles = 3
	pagesPerPeer    = 64 // one in use, and those of links that end just now
	meetingsMax     = 8  // peers that are looked at at the same time
)

// attachment is the owner's side of a peer's link: the page through which its copiers enter our memory.
type attachment struct {
	peer    transport.Peer
	link    token // the peer's name of it
	token   token
	pid     uint32
	page    *hazard.Page
	process *vm.Process // nil: our own
}

// attachments are the peers that have attached to us, by the token that each was given.
type attachments struct {
	t        *Transport
	max      int
	meetings chan struct{} // has room for those that are looked at now

	mu      sync.Mutex
	byToken map[token]*attachment
	closed  bool
}

func (as *attachments) init(t *Transport) {
	as.t, as.byToken, as.meetings = t, map[token]*attachment{}, make(chan struct{}, meetingsMax)
	as.max = attachmentsMax
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		as.max = int(min(uint64(as.max), max(files.Cur/4/attachmentFiles, 1)))
	}
}

// admit makes an attachment for a peer if its process is the one that it claims, and one of our own user. Nothing is
// kept for anybody else.
func (as *attachments) admit(ctx context.Context, from transport.Peer, link token,
	claim manifest.Claim) (*attachment, *errs.Error) {
	a := &attachment{peer: from, link: link, token: newToken(), pid: claim.PID}
	if !as.t.own(from) {
		if e := as.meet(ctx, a, claim); e != nil {
			return nil, e
		}
	}
	as.sweep()
	if e := as.keep(a); e != nil {
		a.release()
		if e.Code == errs.TooManyRequests {
			as.t.host.Refused(transport.RefusedLimit, from.Address, e)
		}
		return nil, e
	}
	return a, nil
}

// sweep ends the attachments of peers that have left, of which the message was lost.
func (as *attachments) sweep() {
	var left []*attachment
	as.mu.Lock()
	for _, a := range as.byToken { // a page is there as long as it is in this table
		if a.page.Left() {
			left = append(left, a)
		}
	}
	as.mu.Unlock()
	for _, a := range left {
		as.end(a, callLimit)
	}
}

// meet finds the process of a peer. Strangers that come in great numbers wait for each other, and open few files.
func (as *attachments) meet(ctx context.Context, a *attachment, claim manifest.Claim) *errs.Error {
	ctx, cancel := context.WithTimeout(ctx, greetLimit)
	defer cancel()
	select {
	case as.meetings <- struct{}{}:
	case <-ctx.Done():
		e := full("%d peers are greeting us", meetingsMax)
		as.t.host.Refused(transport.RefusedLimit, a.peer.Address, e)
		return e
	}
	defer func() { <-as.meetings }()
	process, offers, err := manifest.Meet(as.t.me, claim, a.peer.ID)
	if err != nil {
		return as.t.refuses(transport.RefusedHost, a.peer, err)
	}
	offers.Unmap() // it has proved that this is the peer's process; its regions are of no interest here
	a.process = process
	return nil
}

// full refuses a peer for now: it tries again.
func full(format string, args ...any) *errs.Error {
	return errs.New(errs.TooManyRequests, "shm.attach", format, args...).WithScope(errs.ScopeLink, errs.SidePath)
}

// keep makes the attachment's page and enters it. Regions that were revoked for this peer alone stay so.
func (as *attachments) keep(a *attachment) *errs.Error {
	t := as.t
	as.mu.Lock()
	defer as.mu.Unlock()
	switch {
	case as.closed:
		return kit.Closed("shm.attach")
	case len(as.byToken) >= as.max:
		return full("%d peers are attached already", len(as.byToken))
	case len(as.ofLocked(&a.peer)) >= pagesPerPeer:
		return full("the peer has %d links to us already", pagesPerPeer)
	}
	page, err := t.table.NewPage(int(a.pid), a.pidfd())
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
		if err := t.watcher.add(a.process.Fd(), func() { as.end(a, revokeLimit) }); err != nil {
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
	return as.ofLocked(peer)
}

func (as *attachments) ofLocked(peer *transport.Peer) (list []*attachment) {
	for _, a := range as.byToken {
		if a.peer.ID == peer.ID {
			list = append(list, a)
		}
	}
	return list
}

// leave ends the attachment of a peer that says it has left.
func (as *attachments) leave(from transport.Peer, named token) {
	as.mu.Lock()
	a := as.byToken[named]
	as.mu.Unlock()
	if a != nil && a.peer.ID == from.ID {
		as.end(a, revokeLimit)
	}
}

// end forgets an attachment after its peer has left or died. The hazard table remembers a page that a stopped copier
// holds beyond the limit.
func (as *attachments) end(a *attachment, limit time.Duration) {
	as.mu.Lock()
	_, known := as.byToken[a.token]
	delete(as.byToken, a.token)
	as.mu.Unlock()
	if !known {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
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
