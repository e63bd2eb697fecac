package access

import (
	"strconv"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Traffic is the transport's part of a link. All calls but Abandon come from the link's goroutine; kit.Traffic has the
// contracts of those that are named here alone.
type Traffic interface {
	// Met gives the access that a greeting has brought. The rail is down.
	Met(*Access)
	Rail() transport.RailInfo
	Abandon(cause *errs.Error)
	Tick()
	End()
}

// Link is an attached peer: we are the initiator. A transport embeds it.
type Link struct {
	kit.OneRail

	p      *Point
	of     Traffic
	secret atomic.Pointer[Token] // the peer's name of this link
	access *Access               // the goroutine's
}

// Start starts a link. It is called under Config.Life, once, when Number is known.
func (l *Link) Start(p *Point, peer transport.Peer, of Traffic) {
	l.p, l.of = p, of
	l.rename()
	l.OneRail.Start(p.Name, p.Sink, &p.running, peer, (*course)(l))
}

// rename gives the link another name. Greetings by one name share a grant.
func (l *Link) rename() {
	name := NewToken()
	l.secret.Store(&name)
}

func (l *Link) named(secret Token) bool {
	name := l.secret.Load() // nil just before Start
	return name != nil && *name == secret
}

// course is the part of kit.OneRail's life that all processes of a host have in common.
type course Link

func (c *course) Greet() *errs.Error        { return (*Link)(c).greet() }
func (c *course) Abandon(cause *errs.Error) { c.of.Abandon(cause) }

// Tick looks for a peer that has called exec: its pidfd stays silent, and mappings of its memory stay valid.
func (c *course) Tick() *errs.Error {
	l := (*Link)(c)
	if l.access.space.Gone() {
		_ = l.PeerEnded()
		return nil
	}
	c.of.Tick()
	return nil
}

func (c *course) Rail() transport.RailInfo {
	info := c.of.Rail()
	info.Local, info.Remote = pidName(c.p.Me.PID), pidName(c.access.PID)
	return info
}

// End gives back the link's resources, after the last copier.
func (c *course) End() {
	l := (*Link)(c)
	l.of.End()
	a := l.access
	if a == nil {
		return
	}
	a.part()
	if l.Gone() == nil && a.View.Empty() { // else the owner must go on to wait for that copier
		a.View.Quit()
		l.sayLeave(a)
	}
}

func pidName(pid uint32) string { return "pid " + strconv.Itoa(int(pid)) }

// PeerEnded ends the link of a peer that is not found any more by a system call, and returns the cause.
func (l *Link) PeerEnded() *errs.Error {
	e := l.Ended()
	l.Die(e)
	return e
}

// Ended is the error of a peer after the end of its process, or of the program that it ran.
func (l *Link) Ended() *errs.Error {
	return errs.New(errs.PeerUnreachable, l.p.Name, "the peer's process has ended, or runs another program now").
		WithScope(errs.ScopeLink, errs.SideRemote).WithPeer(l.Peer.Address, l.p.Name, "")
}
