package engine

import (
	"cmp"
	"context"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
)

// A peer loses its access in three ways: Disconnect names it, its certificate ends, or the files that were read again
// do not admit it. The last two ask it first (recheck): it may have a newer certificate.
//
//	bar      its handshakes and calls are refused       security.Credentials.Bar
//	expel    its connections to us are closed           control.Server.Expel
//	leave    its lanes end, its attachments are gone    transport.Disconnecter
//	revoke   no slice of it touches a region            transport.Transport.Revoke
//	detach   our own transfers with it end              peer.dismiss
//
// In this order nothing of it comes back behind a later step. The engine stays out until it starts again, and is
// another one then. A peer that recheck had no time to ask is not barred. It comes back by a handshake, which shows its
// newest certificate.

// An engine that shows another identity keeps its lanes, and the regions that are for the new one. See renamed.

// dismissLimit bounds the wait for a peer's bytes under way.
const dismissLimit = 5 * time.Second

// Disconnect ends the access of the peers that match an ID, an address, or a pattern of identities (security.Names). It
// returns when none of them can touch our memory any more, and how many they were. They stay out while this engine and
// they themselves live. The error is InvalidEntry if there is none.
func (e *Engine) Disconnect(ctx context.Context, who string) (int, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	named := namedBy(who)
	cause := errs.New(errs.PeerNotAdmitted, "peer", "this engine has disconnected the peer").
		WithScope(errs.ScopeLink, errs.SideLocal)
	var list []transport.Peer
	for _, p := range e.Peers() {
		if p.Peer.Address == who || named(p.Peer) {
			list = append(list, p.Peer)
		}
	}
	if len(list) == 0 {
		return 0, errs.New(errs.InvalidEntry, "disconnect", "no peer is %q", errs.Printable(who, strangerTextMax)).
			WithHint("engine.peers() lists them; it takes an address, an ID, or a pattern of identities")
	}
	return len(list), e.dismiss(ctx, list, cause)
}

// namedBy reports for a peer whether a text is its ID, or a pattern of an identity that it proves.
func namedBy(name string) func(transport.Peer) bool {
	names, err := security.ParseNames("peer", []string{name})
	return func(p transport.Peer) bool { return p.ID.String() == name || err == nil && names.Admit(p.Names()) }
}

// dismiss ends the access of peers. All of them lose their lanes before anybody waits for bytes under way, and one that
// holds its own up keeps no other in. A step that fails holds up none of the others, and the first error is returned.
// A peer for which the list of barred engines has no room may come again.
func (e *Engine) dismiss(ctx context.Context, list []transport.Peer, cause *errs.Error) error {
	full, held := error(nil), make(chan error, len(list))
	for _, p := range list {
		full = cmp.Or(full, e.credentials.Bar(p.ID))
	}
	sideBySide(list, renewalAsks, func(p transport.Peer) { e.endLanes(p.ID) })
	sideBySide(list, len(list), func(p transport.Peer) {
		if err := e.endAccess(ctx, p, transport.ForGood, cause); err != nil {
			held <- err
		}
		e.visitors.drop(p.ID)
	})
	close(held)
	return cmp.Or(full, <-held)
}

// endLanes closes the connections of a peer to us, and ends its lanes and attachments. It waits for nobody.
func (e *Engine) endLanes(id transport.ID) {
	e.server.Expel(id)
	for _, port := range e.ports {
		if d, is := transport.Find[transport.Disconnecter](port.transport); is {
			d.Disconnect(id)
		}
	}
}

// endAccess refuses slices of a peer that are older than an epoch, and ends our own transfers with it. It waits for the
// peer's bytes under way.
func (e *Engine) endAccess(ctx context.Context, p transport.Peer, epoch transport.Epoch, cause *errs.Error) error {
	var first error
	for _, r := range e.regions.all() {
		first = cmp.Or(first, e.revoke(ctx, r, &p, epoch))
	}
	for _, open := range e.segments.peersWith(p.ID) {
		open.dismiss(cause)
	}
	e.announce(&event.Event{Kind: event.PeerDisconnected, Peer: e.attributed(p), ID: p.ID.String(), Host: p.Host,
		Note: p.Identity, Err: cause})
	return first
}

// renamed replaces the identity of a peer that has shown a newer certificate. Its connections of before end. When it
// returns, no slice of the peer touches a region that was for its older identity and is not for the newer one. Such a
// region stays closed to it.
func (e *Engine) renamed(before, now transport.Peer) {
	e.server.ExpelAs(before.ID, before.Identity)
	e.rename(now.ID)
	ctx, cancel := context.WithTimeout(context.Background(), dismissLimit)
	defer cancel()
	for _, r := range e.regions.all() {
		if r.rule == nil {
			continue
		}
		was, is := r.rule.Admit(before.Names()), r.rule.Admit(now.Names())
		if is && !was {
			e.regions.touch(r.ID) // the epoch that the peer knows has it, and its description does not
		}
		if is || !was {
			continue
		}
		if err := e.revoke(ctx, r, &now, transport.ForGood); err != nil {
			e.log.Error("a peer may still touch a region by an identity of before", "peer", now.Address, "region",
				r.label(), "err", err)
		}
	}
}

// rename gives the identity of a peer to the transports. Of several that it shows at once, the one that is noted stays.
func (e *Engine) rename(id transport.ID) {
	e.visitors.renaming.Lock()
	defer e.visitors.renaming.Unlock()
	now := e.visitors.get(id)
	for _, port := range e.ports {
		if port.transport == nil || now == nil {
			continue
		}
		if r, is := transport.Find[transport.Renamer](port.transport); is {
			r.Rename(now.peer)
		}
	}
}

// dismiss ends a peer that is open here: requests that wait fail, slices under way complete first, and no new one
// begins.
func (p *peer) dismiss(cause *errs.Error) {
	if p.gone.CompareAndSwap(nil, cause) {
		p.detach(cause)
	}
}
