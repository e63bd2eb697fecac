package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
)

// greet asks the peer for access to its memory and tries it. nil: the rail can come up. A peer with memory of its own
// that cannot be reached is no failure as long as it can be mapped: see Import.
func (l *link) greet() *errs.Error {
	ctx, cancel := context.WithTimeout(context.Background(), greetLimit)
	defer cancel()
	hello := binary.LittleEndian.AppendUint64([]byte{version, callHello}, l.secret)
	answer, err := l.t.host.Call(ctx, l.peer, l.t.me.append(hello))
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
	l.token, l.who = w.token, w.owner
	if e := l.approach(&w); e != nil {
		l.part()
		return e.WithPeer(l.peer.Address, Name, "")
	}
	l.meet()
	return nil
}

// approach takes hold of the peer's process and its page, and finds out whether its memory can be reached.
func (l *link) approach(w *welcome) *errs.Error {
	if why := l.t.me.Boundary(w.owner.Identity); why != "" {
		return refusal("%s", why)
	}
	if w.owner.nonce != l.t.me.nonce || l.t.settings.reach != reachAll {
		p, err := vm.Open(w.owner.PID, w.owner.Started)
		if err != nil {
			return errs.Wrap(errs.PeerUnreachable, "shm.attach", err).WithScope(errs.ScopeLink, errs.SidePath)
		}
		l.process = p
		if err := l.t.watcher.add(p.Fd(), func() { l.die(peerEnded(l)) }); err != nil {
			return errs.From("shm.attach", err)
		}
	}
	fd, err := l.fetch(w.page, true)
	if err != nil {
		return errs.Wrap(errs.PermissionDenied, "shm.attach", err).WithScope(errs.ScopeLink, errs.SidePath).
			WithHint("the peer must be dumpable, and /proc must show it (no hidepid)")
	}
	l.view, err = hazard.NewView(fd)
	_ = unix.Close(fd)
	if err != nil {
		return errs.Wrap(errs.Protocol, "shm.attach", err).WithScope(errs.ScopeLink, errs.SidePath)
	}
	l.foreign = l.verify(w)
	return nil
}

// verify reads the peer's memory for the first time and returns why that cannot be done. ESRCH is fatal elsewhere: the
// watcher reports a peer that has ended.
func (l *link) verify(w *welcome) *errs.Error {
	switch {
	case l.process == nil:
		return nil
	case l.t.settings.yama != nil:
		return l.unreachable(w, unix.EPERM, *l.t.settings.yama)
	}
	if err := l.process.Verify(uintptr(w.owner.nonceAt), w.owner.nonce[:]); err != nil {
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

// part gives back the resources of a failed greeting.
func (l *link) part() {
	if l.process != nil {
		l.t.watcher.remove(l.process.Fd())
		l.process.Close()
		l.process = nil
	}
}

// fetch opens a file that the peer holds open, by its /proc entry. Of pidfd_getfd, a socket's SCM_RIGHTS and this, it
// is the way that works under every scope of Yama, across network namespaces, and with less access than the peer has.
func (l *link) fetch(p place, writable bool) (int, error) {
	flags := unix.O_RDONLY
	if writable {
		flags = unix.O_RDWR
	}
	process := l.process
	if process == nil { // our own
		own, err := vm.Open(l.t.me.PID, l.t.me.Started)
		if err != nil {
			return -1, err
		}
		defer own.Close()
		process = own
	}
	fd, err := process.ReopenFile(p.fd, flags)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (st.Dev != p.dev || st.Ino != p.ino) {
		err = errors.New("the peer has closed the file that it told us of")
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Serve answers a peer's transport: somebody greets us, has left our memory, or closes.
func (t *Transport) Serve(_ context.Context, from transport.Peer, message []byte) ([]byte, error) {
	if t.life.Closed() {
		return nil, kit.Closed("shm.serve")
	}
	r := kit.NewReader(message)
	if v := r.U8(); r.Short() || v != version {
		return nil, errs.New(errs.Protocol, "shm.serve", "peer speaks version %d of the shm transport, this is %d", v,
			version).
			WithScope(errs.ScopeLink, errs.SidePath).WithPeer(from.Address, Name, "")
	}
	what, number := r.U8(), r.U64()
	if what == callHello {
		who := readIdentity(r)
		if r.Whole() {
			return t.serveHello(from, number, who)
		}
	}
	switch {
	case !r.Whole() || what == callHello || what > callGoodbye:
		return nil, errs.Wrap(errs.Protocol, "shm.serve", errMessage).WithPeer(from.Address, Name, "")
	case what == callLeave:
		if a := t.attachments.find(number); a != nil {
			t.attachments.end(a)
		}
	default:
		t.goodbye(number)
	}
	return []byte{version}, nil
}

func (t *Transport) serveHello(from transport.Peer, link uint64, who identity) ([]byte, error) {
	if t.settings.Trust == TrustNone {
		return nil, refusal("transports/shm/trust is none at %s", t.self.Address)
	}
	a, e := t.attachments.admit(from, link, who)
	if e != nil {
		return nil, e
	}
	w := welcome{token: a.token, owner: t.me, tracer: tracers.admit(a, t.settings.AnyTracer)}
	var err error
	if w.page, err = placeOf(a.page.Fd()); err != nil {
		t.attachments.end(a)
		return nil, errs.From("shm.attach", err)
	}
	return w.append([]byte{version}), nil
}

// goodbye ends the link of the peer that said it: its owner of memory closes.
func (t *Transport) goodbye(secret uint64) {
	for _, l := range t.links.All() {
		if l.secret == secret {
			// separates this end from a failure
			why := errs.New(errs.EngineClosed, "", "the peer has closed its engine")
			l.die(errs.Wrap(errs.PeerUnreachable, "shm", why).WithScope(errs.ScopeLink, errs.SideRemote).
				WithPeer(l.peer.Address, Name, ""))
		}
	}
}

func placeOf(fd int) (place, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return place{uint32(fd), st.Dev, st.Ino}, err
}

// tokenCall is a leave or a goodbye.
func tokenCall(what byte, number uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{version, what}, number)
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
