package shm

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
)

// Limits of a link.
const (
	greetLimit = 500 * time.Millisecond // of one greeting
	retryMin   = time.Second            // after a greeting that got no answer
	retryMax   = 30 * time.Second
	sweepEvery = 5 * time.Second // how often mappings of revoked regions are looked for
	callLimit  = 200 * time.Millisecond
	leaveLimit = 2 * time.Second // copiers end within a piece; this is for those that page faults hold up
)

// link is an attached peer: we are the initiator. Its goroutine, run, brings the rail up and ends everything; it owns
// every field that is not said to be shared.
//
//	greeting ──welcome──▶ up ──Fence──▶ down ──at once──▶ up (next generation)
//	greeting ──no answer──▶ waiting (LinkDown told) ──pause──▶ greeting
//	any ──refused, goodbye, peer ended──▶ dead (LinkDown told) ;  any ──Detach──▶ left
type link struct {
	t       *Transport
	number  transport.Link
	peer    transport.Peer
	secret  token         // the peer's name of this link
	live    atomic.Uint32 // generation that is up, 0 for none; changed to 0 under queue.mu
	owing   atomic.Int64  // slices accepted and not completed at the sink
	imports atomic.Pointer[[]*imported]
	wake    chan struct{}
	left    atomic.Bool                // Detach was called
	gone    atomic.Pointer[errs.Error] // why the link is dead
	greeted chan struct{}              // closed when the first greeting has an end
	done    chan struct{}              // closed when run has ended

	slices int  // accepted and not ended; under queue.mu
	hungry bool // under queue.mu

	// Set before the rail first comes up, constant afterwards.
	view *hazard.View
	pid  uint32 // of the peer; process may be gone before the last copier

	mu       sync.Mutex     // of imports
	offers   *manifest.View // the peer's regions, valid with met; nil at the end
	byName   map[hazard.Region]transport.RemoteKey
	vacant   []uint32            // indexes of imports that are free
	imported transport.RemoteKey // imports so far
	mappings map[mapped]*mapping
	met      bool        // a greeting was successful: the fields above it and foreign are valid
	foreign  *errs.Error // why the peer's own memory cannot be reached, nil if it can
	fresh    []span      // mapped and not populated

	generation uint32
	token      token
	process    *vm.Process // nil: our own
	told       bool        // LinkDown was told
}

func (l *link) rail(generation uint32) transport.Rail {
	return transport.Rail{Link: l.number, Generation: generation}
}

// Attach starts a link. The greeting goes over the control plane, by a goroutine of the link.
func (t *Transport) Attach(peer transport.Peer) (transport.Link, error) {
	if t.settings.Trust == TrustNone {
		return 0, refusal("transports/shm/trust is none here")
	}
	l := &link{t: t, peer: peer, secret: newToken(), wake: make(chan struct{}, 1), greeted: make(chan struct{}),
		done:   make(chan struct{}),
		byName: map[hazard.Region]transport.RemoteKey{}, mappings: map[mapped]*mapping{}}
	l.imports.Store(new([]*imported))
	var err error
	open := t.life.Begin(func() {
		if _, err = t.links.Attach("shm.attach",
			func(number transport.Link) *link { l.number = number; return l }); err == nil {
			t.running.Add(1)
			go l.run()
		}
	})
	if !open {
		return 0, kit.Closed("shm.attach")
	}
	return l.number, err
}

// Epoch implements transport.EpochReader: the peer leaves it in our page.
func (t *Transport) Epoch(number transport.Link) transport.Epoch {
	l := t.links.Lookup(number)
	if l == nil || l.live.Load() == 0 { // live is set behind view
		return 0
	}
	return transport.Epoch(l.view.Epoch())
}

// Detach ends a link. Waiting slices complete at once, those being copied within a piece, and then nothing of the
// peer's memory is mapped here any more.
func (t *Transport) Detach(number transport.Link) {
	if l := t.links.Detach(number); l != nil {
		l.leave()
	}
}

func (l *link) leave() {
	l.lower()
	l.t.abandon(l, errs.New(errs.Lost, "shm.detach", "the link was detached").WithScope(errs.ScopeLink, errs.SideLocal))
	l.left.Store(true)
	l.kick()
	l.settle()
}

// lower takes the rail down: nothing is accepted from now on. It returns the generation that ended, 0 for none.
func (l *link) lower() uint32 {
	l.t.queue.mu.Lock()
	defer l.t.queue.mu.Unlock()
	return l.live.Swap(0)
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

func (l *link) kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run is the life of a link.
func (l *link) run() {
	defer l.t.running.Done()
	defer close(l.done)
	greeted := sync.OnceFunc(func() { close(l.greeted) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := retryMin; !l.left.Load(); {
		due := sweepEvery
		switch {
		case l.gone.Load() != nil:
			l.tell()
			due = retryMax
		case !l.met:
			cause := l.greet()
			greeted()
			if due = 0; cause != nil {
				due, pause = pause, min(2*pause, retryMax)
				l.fail(cause)
			}
		case l.live.Load() == 0:
			l.raise()
		default:
			l.sweep()
		}
		timer.Reset(due)
		select {
		case <-l.wake:
		case <-timer.C:
		}
	}
	greeted()
	l.end()
}

// raise brings the rail up in its next generation.
func (l *link) raise() {
	l.generation++
	l.t.queue.mu.Lock()
	up := !l.left.Load() && l.gone.Load() == nil
	if up {
		l.live.Store(l.generation)
	}
	l.t.queue.mu.Unlock()
	if !up {
		return
	}
	l.told = false
	l.t.sink.RailUp(transport.RailInfo{Rail: l.rail(l.generation), Local: pidName(l.t.me.PID),
		Remote: pidName(l.pid),
		Node:   -1, BytesMax: 64 << 20, SlicesMax: slicesMax})
}

// fail reports to the core that the peer cannot be reached this way. A refusal is for good. Silence is not, nor a peer
// without room.
func (l *link) fail(cause *errs.Error) {
	if cause.Permanent() && cause.Code != errs.Timeout && cause.Code != errs.TooManyRequests {
		l.gone.CompareAndSwap(nil, cause)
	}
	if !l.told {
		l.told = true
		l.t.sink.LinkDown(l.number, cause)
	}
}

// die ends a link after its peer has ended or said goodbye. Any goroutine may call it.
func (l *link) die(cause *errs.Error) {
	if l.gone.CompareAndSwap(nil, cause) {
		l.lower()
		l.kick()
	}
}

// tell completes the slices that a dead link has left and reports to the core, once.
func (l *link) tell() {
	cause := l.gone.Load()
	l.t.abandon(l, cause)
	if !l.told {
		l.told = true
		l.t.sink.LinkDown(l.number, cause)
	}
}

// end gives back the link's resources, after the last copier.
func (l *link) end() {
	l.settle()
	l.mu.Lock()
	for key, m := range l.mappings {
		if l.owing.Load() == 0 { // else some page fault has held a copier up for seconds: its mapping is kept
			l.unmap(m)
		}
		delete(l.mappings, key)
	}
	l.mu.Unlock()
	l.part()
	if l.met && l.gone.Load() == nil {
		l.view.Quit()
		l.sayLeave()
	}
}
