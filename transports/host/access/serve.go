package access

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/kit"
)

// Answer is the transport's Serve: somebody greets us, has left our memory, closes, or asks something of its own.
func (p *Point) Answer(ctx context.Context, from transport.Peer, message []byte) ([]byte, error) {
	if !p.Life.Begin(func() { p.serving.Add(1) }) {
		return nil, kit.Closed(p.op("serve"))
	}
	defer p.serving.Done()
	r := kit.NewReader(message)
	if v := r.U8(); r.Short() || v != p.Version {
		return nil, p.rejects(transport.RefusedVersion, from, errs.New(errs.Protocol, p.op("serve"),
			"peer speaks version %d of the %s transport, this is %d", v, p.Name, p.Version))
	}
	kind, named := r.U8(), readToken(r)
	switch {
	case kind == CallHello:
		claim := readClaim(r)
		if r.Whole() {
			return p.hello(ctx, from, named, claim)
		}
	case kind >= CallOwn && p.Serve != nil && !r.Short():
		if g := p.grants.named(from, named); g != nil {
			return p.Serve(ctx, g, kind, r)
		}
	case !r.Whole():
	case kind == CallLeave:
		if g := p.grants.named(from, named); g != nil {
			p.grants.end(g, RevokeLimit)
		}
		return []byte{p.Version}, nil
	case kind == CallGoodbye:
		p.goodbye(from, named)
		return []byte{p.Version}, nil
	}
	return nil, p.Malformed(from)
}

// Malformed counts a message that makes no sense, and returns its error.
func (p *Point) Malformed(from transport.Peer) *errs.Error {
	return p.rejects(transport.RefusedMalformed, from, errs.Wrap(errs.Protocol, p.op("serve"), errMessage))
}

// rejects counts a message that is refused. Its error is about the message itself.
func (p *Point) rejects(why transport.Refusal, from transport.Peer, e *errs.Error) *errs.Error {
	p.Host.Refused(why, from.Address, e)
	return e.WithScope(errs.ScopeLink, errs.SidePath).WithPeer(from.Address, p.Name, "")
}

// refuses counts a peer that gets no page. The cause is for our log. The peer always hears one text: else a stranger
// could greet with the numbers of processes to learn which ones there are, and of which users.
func (p *Point) refuses(from transport.Peer, cause error) *errs.Error {
	p.Host.Refused(transport.RefusedHost, from.Address, cause)
	return p.Refusal("the peer does not share memory with this process").
		WithHint("the peer's log has the reason: another user or container, or its transports/%s/trust", p.Name)
}

// Refusal is the reason why two processes do not share memory. The side is the path: the peer lives, and another
// transport may serve.
func (p *Point) Refusal(format string, args ...any) *errs.Error {
	return errs.New(errs.PermissionDenied, p.op("attach"), format, args...).
		WithScope(errs.ScopeLink, errs.SidePath)
}

// failed makes the error of a greeting that ended at a step. A lack of descriptors or memory passes, at any of them:
// then the link tries again.
func (p *Point) failed(code errs.Code, err error) *errs.Error {
	// Of an internal error errs knows the cure, if the system has a limit.
	e := errs.Wrap(errs.Internal, p.op("attach"), err).WithScope(errs.ScopeLink, errs.SidePath)
	if e.Code = code; scarce(err) {
		e.Code = errs.TooManyRequests
	}
	return e
}

func scarce(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

func (p *Point) hello(ctx context.Context, from transport.Peer, link Token, claim manifest.Claim) ([]byte, error) {
	if p.Trust != nil && !p.Own(from) {
		return nil, p.refuses(from, p.Trust)
	}
	g, e := p.grants.admit(ctx, from, link, claim)
	if e != nil {
		return nil, e
	}
	w := welcome{token: g.token, owner: p.Manifest.Claims(p.Me), page: g.file}
	if p.Welcome != nil {
		w.word = p.Welcome(g)
	}
	return w.append([]byte{p.Version}), nil
}

// goodbye ends the link of the peer that said it: its owner of memory closes.
func (p *Point) goodbye(from transport.Peer, secret Token) {
	for l := range p.Links() {
		if l.named(secret) && l.Peer.ID == from.ID {
			// separates this end from a failure
			why := errs.New(errs.EngineClosed, "", "the peer has closed its engine")
			l.Die(errs.Wrap(errs.PeerUnreachable, p.Name, why).WithScope(errs.ScopeLink, errs.SideRemote).
				WithPeer(l.Peer.Address, p.Name, ""))
		}
	}
}
