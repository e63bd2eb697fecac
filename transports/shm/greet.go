package shm

import (
	"context"
	"errors"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
)

// greet asks the peer for access to its memory and tries it. nil: the rail can come up. A peer with memory of its own
// that cannot be reached is no failure as long as it can be mapped: see Import.
func (l *link) greet() *errs.Error {
	ctx, cancel := context.WithTimeout(context.Background(), greetLimit)
	defer cancel()
	answer, err := l.t.host.Call(ctx, l.peer, hello(l.secret, l.t.manifest.Claims(l.t.me)))
	if err != nil {
		e := *errs.From("shm.attach", err)
		if e.Code == errs.PermissionDenied {
			e.Side = errs.SidePath // it lives: only this way to it is refused
		}
		e.Scope = max(e.Scope, errs.ScopeLink)
		return e.WithPeer(l.peer.Address, Name, "")
	}
	w, err := readWelcome(answer)
	if err != nil {
		return errs.Wrap(errs.Protocol, "shm.attach", err).WithScope(errs.ScopeLink, errs.SidePath).
			WithPeer(l.peer.Address, Name, "")
	}
	l.token, l.pid = w.token, w.owner.PID
	if e := l.approach(&w); e != nil {
		l.part()
		l.sayLeave()
		return e.WithPeer(l.peer.Address, Name, "")
	}
	l.meet()
	return nil
}

// approach takes hold of the peer's process and its page, and finds out whether its memory can be reached. Of the
// answer only that counts which the kernel confirms: a peer could name any process, our own too.
func (l *link) approach(w *welcome) *errs.Error {
	if l.t.own(l.peer) {
		l.offers = &l.t.manifest.View
	} else if err := l.meetProcess(w); err != nil {
		return err
	}
	fd, err := l.fetch(w.page, unix.O_RDWR)
	if err != nil {
		return errs.Wrap(errs.PermissionDenied, "shm.attach", err).WithScope(errs.ScopeLink, errs.SidePath)
	}
	l.view, err = hazard.NewView(fd)
	_ = unix.Close(fd)
	if err != nil {
		return errs.Wrap(errs.Protocol, "shm.attach", err).WithScope(errs.ScopeLink, errs.SidePath)
	}
	l.foreign = l.verify(w)
	return nil
}

func (l *link) meetProcess(w *welcome) *errs.Error {
	p, offers, err := manifest.Meet(l.t.me, w.owner, l.peer.ID)
	if errors.Is(err, unix.ESRCH) { // perhaps it ends, or another one begins, just now
		return errs.Wrap(errs.PeerUnreachable, "shm.attach", err).WithScope(errs.ScopeLink, errs.SidePath)
	}
	if err != nil {
		return refusal("%v", err)
	}
	l.process, l.offers = p, offers
	if err := l.t.watcher.add(p.Fd(), func() { l.die(peerEnded(l)) }); err != nil {
		return errs.From("shm.attach", err)
	}
	return nil
}

// verify tries the peer's memory for the first time and returns why it cannot be read. ESRCH is fatal elsewhere: the
// watcher reports a peer that has ended.
func (l *link) verify(w *welcome) *errs.Error {
	switch {
	case l.process == nil:
		return nil
	case l.t.settings.yama != nil:
		return l.unreachable(w, unix.EPERM, *l.t.settings.yama)
	}
	if err := l.process.Touch(); err != nil {
		return l.unreachable(w, err, vm.TraceScope())
	}
	return nil
}

// unreachable explains why the kernel keeps us from the peer's own memory. It is the way that is closed: another
// transport may serve, so the code is not a permanent one.
func (l *link) unreachable(w *welcome, cause error, scope vm.Scope) *errs.Error {
	e := errs.Wrap(errs.PeerUnreachable, "shm.attach", cause).WithScope(errs.ScopeLink, errs.SidePath).
		WithPeer(l.peer.Address, Name, "")
	switch {
	case !errors.Is(cause, unix.EPERM):
	case scope == vm.ScopeRelation && w.tracer > 0 && uint32(w.tracer) != l.t.me.PID:
		e.Cause = scope.String() + ", which is process " + strconv.Itoa(int(w.tracer)) +
			"; memory that the user owns cannot be reached"
		e.Hint = "transports/shm/allow_any_tracer at the peer, or memory from allocate"
	case scope > vm.ScopeClassic:
		e.Cause = scope.String() + "; memory that the user owns cannot be reached"
		e.Hint = "memory from allocate"
	default:
		e.Cause = "the kernel refuses to read the peer's own memory (it is not dumpable, or a seccomp filter forbids " +
			"process_vm_readv)"
		e.Hint = "memory from allocate"
	}
	return e
}

// sayLeave lets the owner know that we use its page no more. It is a courtesy: the page says so too, if there is one.
func (l *link) sayLeave() {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	_, _ = l.t.host.Call(ctx, l.peer, call(callLeave, l.token))
}

// part gives back the peer's process and manifest. Regions that are imported meanwhile find nothing.
func (l *link) part() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.process != nil {
		l.t.watcher.remove(l.process.Fd())
		l.process.Close()
		l.offers.Unmap()
	}
	l.process, l.offers = nil, nil
}

// fetch opens a file that the peer holds open, by its /proc entry. Of pidfd_getfd, a socket's SCM_RIGHTS and this, it
// is the way that works under every scope of Yama, across network namespaces, and with less access than the peer has.
func (l *link) fetch(f vm.File, flags int) (int, error) {
	process := l.process
	if process == nil { // our own
		own, err := vm.Open(l.t.me.PID, l.t.me.Started)
		if err != nil {
			return -1, err
		}
		defer own.Close()
		process = own
	}
	return process.Reopen(f, flags)
}

// Serve answers a peer's transport: somebody greets us, has left our memory, or closes.
func (t *Transport) Serve(ctx context.Context, from transport.Peer, message []byte) ([]byte, error) {
	if t.life.Closed() {
		return nil, kit.Closed("shm.serve")
	}
	r := kit.NewReader(message)
	if v := r.U8(); r.Short() || v != version {
		return nil, t.rejects(transport.RefusedVersion, from, errs.New(errs.Protocol, "shm.serve",
			"peer speaks version %d of the shm transport, this is %d", v, version))
	}
	kind, named := r.U8(), readToken(r)
	switch {
	case kind == callHello:
		claim := readClaim(r)
		if r.Whole() {
			return t.serveHello(ctx, from, named, claim)
		}
	case !r.Whole():
	case kind == callLeave:
		t.attachments.leave(from, named)
		return []byte{version}, nil
	case kind == callGoodbye:
		t.goodbye(from, named)
		return []byte{version}, nil
	}
	return nil, t.rejects(transport.RefusedMalformed, from, errs.Wrap(errs.Protocol, "shm.serve", errMessage))
}

// rejects counts a message that makes no sense. Its error is about the message itself.
func (t *Transport) rejects(why transport.Refusal, from transport.Peer, e *errs.Error) *errs.Error {
	t.host.Refused(why, from.Address, e)
	return e.WithScope(errs.ScopeLink, errs.SidePath).WithPeer(from.Address, Name, "")
}

// refuses counts a peer that gets no page. The cause is for our log. The peer always hears one text: else a stranger
// could greet with the numbers of processes to learn which ones there are, and of which users.
func (t *Transport) refuses(why transport.Refusal, from transport.Peer, cause error) *errs.Error {
	t.host.Refused(why, from.Address, cause)
	return refusal("the peer does not share memory with this process").
		WithHint("the peer's log has the reason: another user or container, or its transports/shm/trust")
}

func (t *Transport) serveHello(ctx context.Context, from transport.Peer, link token,
	claim manifest.Claim) ([]byte, error) {
	if t.settings.Trust == TrustNone {
		return nil, t.refuses(transport.RefusedHost, from, errors.New("transports/shm/trust is none"))
	}
	a, e := t.attachments.admit(ctx, from, link, claim)
	if e != nil {
		return nil, e
	}
	w := welcome{token: a.token, owner: t.manifest.Claims(t.me), tracer: tracers.admit(a, t.settings.AnyTracer)}
	var err error
	if w.page, err = vm.FileOf(a.page.Fd()); err != nil {
		t.attachments.end(a, revokeLimit)
		return nil, errs.From("shm.attach", err)
	}
	return w.append([]byte{version}), nil
}

// goodbye ends the link of the peer that said it: its owner of memory closes.
func (t *Transport) goodbye(from transport.Peer, secret token) {
	for _, l := range t.links.All() {
		if l.secret == secret && l.peer.ID == from.ID {
			// separates this end from a failure
			why := errs.New(errs.EngineClosed, "", "the peer has closed its engine")
			l.die(errs.Wrap(errs.PeerUnreachable, "shm", why).WithScope(errs.ScopeLink, errs.SideRemote).
				WithPeer(l.peer.Address, Name, ""))
		}
	}
}

func peerEnded(l *link) *errs.Error {
	return errs.New(errs.PeerUnreachable, "shm", "the peer's process has ended").
		WithScope(errs.ScopeLink, errs.SideRemote).WithPeer(l.peer.Address, Name, "")
}

// refusal is why two processes do not share memory. The side is the path: the peer lives, and another transport may
// serve.
func refusal(format string, args ...any) *errs.Error {
	return errs.New(errs.PermissionDenied, "shm.attach", format, args...).WithScope(errs.ScopeLink, errs.SidePath)
}

func pidName(pid uint32) string { return "pid " + strconv.Itoa(int(pid)) }

// bounded gives a context a deadline where it has none.
func bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}
