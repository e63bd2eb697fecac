package access

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/host/vm"
)

// Access is the right to touch a peer's memory, as its owner granted it to one link. It is valid until Traffic.End has
// returned; View stays so.
type Access struct {
	PID    uint32
	View   *hazard.View   // of the page that we enter
	Offers *manifest.View // the peer's regions
	Word   int32          // of Config.Welcome

	p       *Point
	token   Token
	process *vm.Process // nil: our own
	space   *vm.Space   // nil: our own
}

// Process is the peer's, nil for our own engine.
func (a *Access) Process() *vm.Process { return a.process }

// Space is the peer's address space, nil for our own engine.
func (a *Access) Space() *vm.Space { return a.space }

// Ask makes a call of the transport's own and returns the answer without its version.
func (a *Access) Ask(ctx context.Context, to transport.Peer, kind byte, rest []byte) ([]byte, error) {
	answer, err := a.p.Host.Call(ctx, to, append(Call(a.p.Version, kind, a.token), rest...))
	switch {
	case err != nil:
		return nil, err
	case len(answer) == 0 || answer[0] != a.p.Version:
		return nil, errs.Wrap(errs.Protocol, a.p.op("call"), errMessage).WithScope(errs.ScopeLink, errs.SidePath)
	}
	return answer[1:], nil
}

// greet asks the peer for access to its memory and meets its process.
func (l *Link) greet() *errs.Error {
	p := l.p
	ctx, cancel := context.WithTimeout(context.Background(), GreetLimit)
	defer cancel()
	answer, err := p.Host.Call(ctx, l.Peer, Hello(p.Version, *l.secret.Load(), p.Manifest.Claims(p.Me)))
	if err != nil {
		e := *errs.From(p.op("attach"), err)
		if e.Code == errs.PermissionDenied {
			e.Side = errs.SidePath // it lives: only this way to it is refused
		}
		e.Scope = max(e.Scope, errs.ScopeLink)
		return e.WithPeer(l.Peer.Address, p.Name, "")
	}
	w, err := readWelcome(answer, p.Version)
	if err != nil {
		return errs.Wrap(errs.Protocol, p.op("attach"), err).WithScope(errs.ScopeLink, errs.SidePath).
			WithPeer(l.Peer.Address, p.Name, "")
	}
	a := &Access{p: p, token: w.token, PID: w.owner.PID, Word: w.word}
	if e := l.approach(a, &w); e != nil {
		a.part()
		l.sayLeave(a)
		l.rename() // that may be heard late, and is not to end the grant of the next greeting
		return e.WithPeer(l.Peer.Address, p.Name, "")
	}
	l.access = a
	l.of.Met(a)
	return nil
}

// approach takes hold of the peer's process and its page. Of the answer only that counts which the kernel confirms: a
// peer could name any process, our own too.
func (l *Link) approach(a *Access, w *welcome) *errs.Error {
	if l.p.Own(l.Peer) {
		a.Offers = &l.p.Manifest.View
	} else if err := l.meetProcess(a, w); err != nil {
		return err
	}
	code := errs.PermissionDenied
	fd, err := a.Fetch(w.page, unix.O_RDWR)
	if err == nil {
		code = errs.Protocol
		a.View, err = hazard.NewView(fd)
		_ = unix.Close(fd)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESTALE):
		code = errs.PeerUnreachable // we came late, and the owner has taken the page back: another greeting gets one
	}
	return l.p.failed(code, err)
}

func (l *Link) meetProcess(a *Access, w *welcome) *errs.Error {
	process, offers, err := manifest.Meet(l.p.Me, w.owner, l.Peer.ID)
	if err == nil {
		a.process, a.Offers = process, offers
		// Behind the manifest and before the page, which shows that no exec came between.
		a.space, err = process.Space()
	}
	switch {
	case errors.Is(err, unix.ESRCH): // perhaps it ends, or another one begins, just now
		return l.p.failed(errs.PeerUnreachable, err)
	case err != nil:
		return l.p.failed(errs.PermissionDenied, err)
	}
	if err := l.p.watcher.add(process.Fd(), func() { l.Die(l.Ended()) }); err != nil {
		return l.p.failed(errs.Internal, err)
	}
	return nil
}

// sayLeave lets the owner know that we use its page no more. It is a courtesy: the page says so too, if there is one.
func (l *Link) sayLeave(a *Access) {
	ctx, cancel := context.WithTimeout(context.Background(), CallLimit)
	defer cancel()
	_, _ = l.p.Host.Call(ctx, l.Peer, Call(l.p.Version, CallLeave, a.token))
}

// part gives back the peer's process and manifest.
func (a *Access) part() {
	if a.process != nil {
		a.p.watcher.remove(a.process.Fd())
		a.process.Close()
		a.space.Close()
		a.Offers.Unmap()
	}
	a.process, a.space, a.Offers = nil, nil, nil
}

// Fetch opens a memfd that the peer holds open, by its /proc entry. Of pidfd_getfd, a socket's SCM_RIGHTS and this, it
// is the way that works under every scope of Yama, across network namespaces, and with less access than the peer has.
func (a *Access) Fetch(f vm.File, flags int) (int, error) {
	return a.open((*vm.Process).Reopen, f, flags)
}

// FetchUnnamed does the same with a file of a file system that has no name any more.
func (a *Access) FetchUnnamed(f vm.File, flags int) (int, error) {
	return a.open((*vm.Process).ReopenUnnamed, f, flags)
}

func (a *Access) open(by func(*vm.Process, vm.File, int) (int, error), f vm.File, flags int) (int, error) {
	process := a.process
	if process == nil { // our own
		own, err := vm.Open(a.p.Me.PID, a.p.Me.Started)
		if err != nil {
			return -1, err
		}
		defer own.Close()
		process = own
	}
	return by(process, f, flags)
}
