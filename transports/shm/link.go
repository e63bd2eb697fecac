package shm

import (
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
)

// leaveLimit bounds the wait for copiers. They end within a piece; it is for those that page faults hold up.
const leaveLimit = 2 * time.Second

// link is an attached peer: we are the initiator.
type link struct {
	access.Link // its life, and Live: the generation that is up

	t       *Transport
	owing   atomic.Int64 // slices accepted and not completed at the sink
	imports atomic.Pointer[[]*imported]

	slices int  // accepted and not ended; under queue.mu
	hungry bool // under queue.mu

	// Set before the rail first comes up, constant afterwards.
	view  *hazard.View
	pid   uint32 // of the peer; access may be gone before the last copier
	space *vm.Space

	mu       sync.Mutex     // of imports
	access   *access.Access // nil before the greeting, and at the end
	byName   map[hazard.Region]transport.RemoteKey
	vacant   []uint32            // indexes of imports that are free
	imported transport.RemoteKey // imports so far
	mappings map[mapped]*mapping
	met      bool        // a greeting was successful: the fields above it and foreign are valid
	foreign  *errs.Error // why the peer's own memory cannot be reached, nil if it can
	fresh    []span      // mapped and not populated
}

// Attach starts a link. The greeting goes over the control plane, by a goroutine of the link.
func (t *Transport) Attach(peer transport.Peer) (transport.Link, error) {
	if t.Trust != nil {
		return 0, t.Refusal("%v here", t.Trust)
	}
	l := &link{t: t, byName: map[hazard.Region]transport.RemoteKey{}, mappings: map[mapped]*mapping{}}
	l.imports.Store(new([]*imported))
	var err error
	open := t.life.Begin(func() {
		if _, err = t.links.Attach("shm.attach",
			func(number transport.Link) *link { l.Number = number; return l }); err == nil {
			l.Start(t.Point, peer, l)
		}
	})
	if !open {
		return 0, kit.Closed("shm.attach")
	}
	return l.Number, err
}

// Epoch implements transport.EpochReader: the peer leaves it in our page.
func (t *Transport) Epoch(number transport.Link) transport.Epoch {
	l := t.links.Lookup(number)
	if l == nil || l.Live.Load() == 0 { // it is set behind view
		return 0
	}
	return transport.Epoch(l.view.Epoch())
}

// Detach ends a link. Waiting slices complete at once, those being copied within a piece, and then nothing of the
// peer's memory is mapped here any more.
func (t *Transport) Detach(number transport.Link) {
	if l := t.links.Detach(number); l != nil {
		l.Leave()
		l.settle()
	}
}

// settle waits until every completion was delivered. Copiers need a piece's time for that; the goroutine that serves
// them may be the goroutine that waits, if the core detaches inside a completion, so the wait has a bound.
func (l *link) settle() {
	end := time.Now().Add(leaveLimit)
	for pause := time.Microsecond; l.owing.Load() > 0 && time.Now().Before(end); pause = min(2*pause,
		time.Millisecond) {
		if pause < 32*time.Microsecond {
			runtime.Gosched()
		} else {
			time.Sleep(pause)
		}
	}
}

// Met implements access.Traffic: it finds out whether the peer's own memory can be reached.
func (l *link) Met(a *access.Access) {
	foreign := l.verify(a)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.access, l.view, l.pid, l.space, l.foreign = a, a.View, a.PID, a.Space(), foreign
	l.meetLocked()
}

// Rail implements access.Traffic.
func (l *link) Rail() transport.RailInfo {
	return transport.RailInfo{Node: -1, BytesMax: 64 << 20, SlicesMax: slicesMax}
}

// Abandon implements access.Traffic.
func (l *link) Abandon(cause *errs.Error) { l.t.abandon(l, cause) }

// End implements access.Traffic. Regions that are imported meanwhile find nothing.
func (l *link) End() {
	l.settle()
	l.mu.Lock()
	defer l.mu.Unlock()
	table := *l.imports.Load()
	l.imports.Store(new([]*imported))
	for _, r := range table {
		if r != nil && r.on != nil {
			l.release(r)
		}
	}
	l.access = nil
}

// verify tries the peer's memory for the first time and returns why it cannot be read. ESRCH is fatal elsewhere: the
// link's goroutine hears of a peer that has ended.
func (l *link) verify(a *access.Access) *errs.Error {
	switch {
	case a.Process() == nil:
		return nil
	case l.t.settings.yama != nil:
		return l.unreachable(a, unix.EPERM, *l.t.settings.yama)
	}
	if err := a.Process().Touch(); err != nil {
		return l.unreachable(a, err, vm.TraceScope())
	}
	return nil
}

// unreachable explains why the kernel keeps us from the peer's own memory. It is the way that is closed: another
// transport may serve, so the code is not a permanent one.
func (l *link) unreachable(a *access.Access, cause error, scope vm.Scope) *errs.Error {
	e := errs.Wrap(errs.PeerUnreachable, "shm.attach", cause).WithScope(errs.ScopeLink, errs.SidePath).
		WithPeer(l.Peer.Address, Name, "")
	switch {
	case !errors.Is(cause, unix.EPERM):
	case scope == vm.ScopeRelation && a.Word > 0 && uint32(a.Word) != l.t.Me.PID:
		e.Cause = scope.String() + ", which is process " + strconv.Itoa(int(a.Word)) +
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
