package access

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
)

// Bounds of the resources that peers take. Each grant costs a page, a mapping and GrantFiles descriptors; all of them
// together take a quarter of those that the process may have.
const (
	grantsMax     = 4096
	GrantFiles    = 3
	GrantsPerPeer = 64 // one in use, and those of links that end just now
	meetingsMax   = 8  // peers that are looked at at the same time
)

// Grant is the owner's side of a peer's link: the page through which its copiers enter our memory.
type Grant struct {
	Peer transport.Peer
	PID  uint32

	link    Token // the peer's name of it
	claim   manifest.Claim
	token   Token
	page    *hazard.Page
	file    vm.File     // of the page; its number may be another file's once the grant has ended
	process *vm.Process // nil: our own
	ended   atomic.Bool

	greeted time.Time // when it was last given; under grants.mu, as mapped
	mapped  bool      // the peer was seen to have the page: it says itself when it leaves
}

// Ended reports whether the peer has left or died. It is so before Config.Ended hears of it: an answer to the peer that
// keeps something for it looks under the lock that the hearing takes.
func (g *Grant) Ended() bool { return g.ended.Load() }

// Own reports whether the grant is our own engine's.
func (g *Grant) Own() bool { return g.process == nil }

// grants are the peers that were let in, by the token that each was given.
type grants struct {
	p        *Point
	meetings chan struct{} // has room for those that are looked at now

	mu      sync.Mutex
	max     int
	spared  time.Duration // how long a grant is kept that its peer has not come for
	byToken map[Token]*Grant
	leaving map[*Grant]struct{} // that have ended, with a page in which somebody may be still
	closed  bool
}

func (gs *grants) init(p *Point) {
	gs.p, gs.byToken, gs.meetings = p, map[Token]*Grant{}, make(chan struct{}, meetingsMax)
	gs.leaving = map[*Grant]struct{}{}
	gs.max, gs.spared = grantsMax, GreetLimit
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		gs.max = int(min(uint64(gs.max), max(files.Cur/4/GrantFiles, 1)))
	}
}

// Bound changes how many grants there may be at once.
func (p *Point) Bound(grants int) {
	p.grants.mu.Lock()
	defer p.grants.mu.Unlock()
	p.grants.max = grants
}

// Spare changes how long a grant is kept that its peer has not come for.
func (p *Point) Spare(limit time.Duration) {
	p.grants.mu.Lock()
	defer p.grants.mu.Unlock()
	p.grants.spared = limit
}

// Grants returns how many grants there are.
func (p *Point) Grants() int {
	p.grants.mu.Lock()
	defer p.grants.mu.Unlock()
	return len(p.grants.byToken)
}

// Visitors implements transport.Visited.
func (p *Point) Visitors() (list []transport.ID) {
	p.grants.mu.Lock()
	defer p.grants.mu.Unlock()
	for _, g := range p.grants.byToken {
		list = append(list, g.Peer.ID)
	}
	return list
}

// admit gives a peer a grant for its link if its process is the one that it claims, and one of our own user. Nothing is
// kept for anybody else. A greeting may come twice, or be sent again after its answer was lost: it has one grant.
func (gs *grants) admit(ctx context.Context, from transport.Peer, link Token, claim manifest.Claim) (*Grant,
	*errs.Error) {
	g := &Grant{Peer: from, link: link, claim: claim, token: NewToken(), PID: claim.PID, greeted: time.Now()}
	if !gs.p.Own(from) {
		if e := gs.meet(ctx, g, claim); e != nil {
			return nil, e
		}
	}
	gs.sweep(g.greeted)
	kept, e := gs.keep(g)
	if kept != g {
		gs.p.release(g)
	}
	if e != nil && e.Code == errs.TooManyRequests {
		gs.p.Host.Refused(transport.RefusedLimit, from.Address, e)
	}
	return kept, e
}

// sweep ends the grants of peers that have left, of which the message was lost, and of those that never came.
func (gs *grants) sweep(now time.Time) {
	var left, doubted []*Grant
	gs.mu.Lock()
	for _, g := range gs.byToken { // a page is there as long as it is in this table
		switch {
		case g.page.Left():
			left = append(left, g)
		case !g.mapped && now.Sub(g.greeted) > gs.spared && g.page.Withhold():
			doubted = append(doubted, g)
		}
	}
	gs.mu.Unlock()
	for _, g := range doubted {
		if !gs.arrived(g) {
			left = append(left, g)
		}
	}
	for _, g := range left {
		gs.end(g, CallLimit)
	}
}

// arrived looks once whether a peer has mapped the page of its grant. One that has not by now did not hear the answer
// to its greeting, or will greet again. The page is withheld.
func (gs *grants) arrived(g *Grant) bool {
	mapped := g.page.Mapped()
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if gs.byToken[g.token] == g && mapped {
		g.mapped = true
		g.page.Offer()
	}
	return mapped
}

// meet finds the process of a peer. Strangers that come in great numbers wait for each other, and open few files.
func (gs *grants) meet(ctx context.Context, g *Grant, claim manifest.Claim) *errs.Error {
	ctx, cancel := context.WithTimeout(ctx, GreetLimit)
	defer cancel()
	select {
	case gs.meetings <- struct{}{}:
	case <-ctx.Done():
		e := gs.full("%d peers are greeting us", meetingsMax)
		gs.p.Host.Refused(transport.RefusedLimit, g.Peer.Address, e)
		return e
	}
	defer func() { <-gs.meetings }()
	process, offers, err := manifest.Meet(gs.p.Me, claim, g.Peer.ID)
	switch {
	case scarce(err):
		gs.p.Host.Refused(transport.RefusedLimit, g.Peer.Address, err)
		return gs.full("this process has no descriptor or no memory left at the moment")
	case err != nil:
		return gs.p.refuses(g.Peer, err)
	}
	offers.Unmap() // it has proved that this is the peer's process; its regions are of no interest here
	g.process = process
	return nil
}

// full is the refusal of a peer while the table has no room: it tries again.
func (gs *grants) full(format string, args ...any) *errs.Error {
	return errs.New(errs.TooManyRequests, gs.p.op("attach"), format, args...).
		WithScope(errs.ScopeLink, errs.SidePath)
}

// keep makes the grant's page and enters it, or returns the grant that its link has already. Regions that were revoked
// for this peer alone stay so.
func (gs *grants) keep(g *Grant) (*Grant, *errs.Error) {
	p, op := gs.p, gs.p.op("attach")
	gs.mu.Lock()
	defer gs.mu.Unlock()
	ofPeer := gs.ofLocked(&g.Peer)
	for _, have := range ofPeer {
		if have.link == g.link && have.claim == g.claim {
			have.greeted = g.greeted
			return have, nil
		}
	}
	switch {
	case gs.closed:
		return nil, kit.Closed(op)
	case len(gs.byToken) >= gs.max:
		return nil, gs.full("%d peers are attached already", len(gs.byToken))
	case len(ofPeer) >= GrantsPerPeer:
		return nil, gs.full("the peer has %d links to us already", GrantsPerPeer)
	}
	page, err := p.Table.NewPage(int(g.PID), g.pidfd())
	if err != nil {
		return nil, p.failed(errs.CodeOf(err), err)
	}
	g.page = page
	ctx, cancel := Bounded(context.Background())
	defer cancel()
	for name, epoch := range p.Shut(g.Peer.ID) {
		// nobody is inside a page that nobody has: it cannot last
		_ = p.Table.Revoke(ctx, name, page, hazard.Epoch(epoch))
	}
	if g.file, err = vm.FileOf(page.Fd()); err == nil && g.process != nil {
		err = p.watcher.add(g.process.Fd(), func() { gs.end(g, RevokeLimit) })
	}
	if err != nil {
		_ = p.Table.Retire(ctx, page)
		return nil, p.failed(errs.CodeOf(err), err)
	}
	gs.byToken[g.token] = g
	return g, nil
}

// of returns the grants of a peer from which a region is taken back, and writes that down for later ones. A copier may
// be in the page of one that has ended: its peer has said that there is none, and need not be right.
func (gs *grants) of(peer *transport.Peer, door *kit.Door, epoch transport.Epoch) []*Grant {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	door.Shut(peer, epoch)
	list := gs.ofLocked(peer)
	for g := range gs.leaving {
		if g.Peer.ID == peer.ID {
			list = append(list, g)
		}
	}
	return list
}

func (gs *grants) ofLocked(peer *transport.Peer) (list []*Grant) {
	for _, g := range gs.byToken {
		if g.Peer.ID == peer.ID {
			list = append(list, g)
		}
	}
	return list
}

// named returns the grant that a peer was given a token of, or nil.
func (gs *grants) named(from transport.Peer, token Token) *Grant {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if g := gs.byToken[token]; g != nil && g.Peer.ID == from.ID {
		return g
	}
	return nil
}

// end forgets a grant after its peer has left or died. The hazard table remembers a page that a stopped copier holds
// beyond the limit.
func (gs *grants) end(g *Grant, limit time.Duration) {
	gs.mu.Lock()
	_, known := gs.byToken[g.token]
	if known {
		delete(gs.byToken, g.token)
		gs.leaving[g] = struct{}{}
	}
	gs.mu.Unlock()
	if !known {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := gs.p.Table.Retire(ctx, g.page)
	if err != nil {
		gs.p.Host.Log().Warn("detached peer", "peer", g.Peer.Address, "err", err)
	}
	gs.mu.Lock()
	gs.forgetLeft(g, err == nil)
	gs.mu.Unlock()
	if g.process != nil {
		gs.p.watcher.remove(g.process.Fd())
	}
	gs.p.release(g)
}

// forgetLeft forgets a grant that has ended with a quiet page, and all others of which the page has gone by now.
// Holds mu.
func (gs *grants) forgetLeft(g *Grant, quiet bool) {
	for other := range gs.leaving {
		if other == g && quiet || !gs.p.Table.Has(other.page) {
			delete(gs.leaving, other)
		}
	}
}

// release closes the grant's own resources; its page is the hazard table's.
func (p *Point) release(g *Grant) {
	g.ended.Store(true)
	if g.process == nil {
		return
	}
	g.process.Close()
	if p.Ended != nil {
		p.Ended(g)
	}
}

func (g *Grant) pidfd() int {
	if g.process == nil {
		return -1
	}
	return g.process.Fd()
}

// close takes the grants out and lets no new one come. Their ends are the caller's.
func (gs *grants) close() []*Grant {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.closed = true
	list := slices.Collect(maps.Values(gs.byToken))
	clear(gs.byToken)
	return list
}
