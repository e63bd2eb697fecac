package kit

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Pauses of a OneRail's goroutine.
const (
	greetMin  = time.Second // after a greeting that got no answer
	greetMax  = 30 * time.Second
	tickEvery = 5 * time.Second
)

// Traffic is the transport's part of a OneRail. All calls but Abandon come from its goroutine.
type Traffic interface {
	// Greet asks the peer to let us in; nil: it has, and stays so.
	Greet() *errs.Error
	// Rail describes the rail that comes up; its Rail is filled in by the caller.
	Rail() transport.RailInfo
	// Abandon completes the slices that wait and are Over. Another generation may be up already.
	Abandon(cause *errs.Error)
	// Tick is called every few seconds while the rail is up, and after a Kick. An error means that the peer is out of
	// reach: the rail goes down by it, and the peer is greeted again.
	Tick() *errs.Error
	// End returns when no copier is inside of the peer's memory any more, and nothing of it is mapped. The link has
	// died, was left, or both.
	End()
}

// OneRail is the life of a link with one rail, after a greeting over the control plane. Its goroutine brings the
// rail up and ends everything; it owns every field that is not said to be shared. A transport's link embeds it.
//
//	greeting ──welcome──▶ up ──Fence──▶ down ──at once──▶ up (next generation)
//	up ──Renew──▶ down (RailDown told) ──at once──▶ up (next generation)
//	greeting ──no answer──▶ waiting (LinkDown told) ──pause──▶ greeting
//	up ──Tick fails──▶ down (RailDown told) ──▶ greeting
//	any ──refused, Die──▶ dead (LinkDown told) ;  any ──Leave──▶ left
type OneRail struct {
	Number transport.Link
	Peer   transport.Peer
	Live   atomic.Uint32 // generation that is up, 0 for none; transports read it
	Every  time.Duration // between two Ticks, 0 for 5 s; constant from Start on

	name    string // of the transport
	sink    transport.Sink
	of      Traffic
	wake    chan struct{}
	left    atomic.Bool                // Leave was called
	gone    atomic.Pointer[errs.Error] // why the link is dead
	ending  atomic.Pointer[errs.Error] // of Renew: why the generation must end
	greeted chan struct{}              // closed when the first greeting has an end
	done    chan struct{}              // closed when the goroutine has ended

	mu sync.Mutex // of changes of Live

	met        bool // a greeting was answered
	generation uint32
	told       bool // LinkDown was told of a silence
	buried     bool // and of the end
}

// Start starts the goroutine, once, when Number is known. running counts it; the transport is open.
func (l *OneRail) Start(name string, sink transport.Sink, running *sync.WaitGroup, peer transport.Peer, of Traffic) {
	l.name, l.sink, l.of, l.Peer = name, sink, of, peer
	l.Every = cmp.Or(l.Every, tickEvery)
	l.wake, l.greeted, l.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	running.Go(l.run)
}

// Up reports whether the rail is up in just this generation. A stale link, nil, has none.
func (l *OneRail) Up(r transport.Rail) bool {
	return l != nil && r.Index == 0 && r.Generation != 0 && r.Generation == l.Live.Load()
}

// Over reports whether the generation of a slice has ended. None of its slices is accepted any more.
func (l *OneRail) Over(s *transport.Slice) bool { return s.Rail.Generation != l.Live.Load() }

// In names the rail in a generation.
func (l *OneRail) In(generation uint32) transport.Rail {
	return transport.Rail{Link: l.Number, Generation: generation}
}

// Gone returns why the link is dead, nil if it is not.
func (l *OneRail) Gone() *errs.Error { return l.gone.Load() }

// Left reports whether Leave was called.
func (l *OneRail) Left() bool { return l.left.Load() }

// Greeted is closed when the first greeting has an end.
func (l *OneRail) Greeted() <-chan struct{} { return l.greeted }

// Done is closed when the link's goroutine has ended.
func (l *OneRail) Done() <-chan struct{} { return l.done }

// Leave ends the link: its waiting slices complete, and its goroutine gives everything back.
func (l *OneRail) Leave() {
	l.left.Store(true)
	l.lower(0)
	l.of.Abandon(errs.New(errs.Lost, l.name+".detach", "the link was detached").
		WithScope(errs.ScopeLink, errs.SideLocal))
	l.Kick()
}

// Fence ends a generation of the rail, and the slices that wait there end by a cause. The rail comes up again in the
// next one. A generation that is not up is ignored.
func (l *OneRail) Fence(r transport.Rail, cause *errs.Error) {
	if l.Up(r) && l.lower(r.Generation) {
		l.of.Abandon(cause)
		l.Kick()
	}
}

// Renew ends the rail's generation by a cause that the core hears; the next one follows at once, and plans are made
// again. It is for a part of the transport's own that is lost and leaves others, such as one device of several. Any
// goroutine may call it.
func (l *OneRail) Renew(cause *errs.Error) {
	l.ending.Store(cause)
	l.Kick()
}

// fell reports whether Renew was called for the generation that is up, and takes the rail down then.
func (l *OneRail) fell() bool {
	cause := l.ending.Swap(nil)
	return cause != nil && l.drop(cause)
}

// drop takes the rail down by a cause, if it is up. Slices that wait end as neighbours of the loss.
func (l *OneRail) drop(cause *errs.Error) bool {
	if !l.lower(0) {
		return false
	}
	l.sink.RailDown(l.In(l.generation), cause)
	spared := errs.Wrap(errs.Lost, l.name, cause).WithScope(errs.ScopeSlice, errs.SideLocal)
	spared.Collateral = true
	l.of.Abandon(spared)
	return true
}

// lower takes the rail down, if it is up in a generation or if that is 0: nothing is accepted from now on.
func (l *OneRail) lower(generation uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if generation == 0 {
		return l.Live.Swap(0) != 0
	}
	return l.Live.CompareAndSwap(generation, 0)
}

// Kick wakes the link's goroutine. Any goroutine may call it.
func (l *OneRail) Kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run is the life of a link.
func (l *OneRail) run() {
	defer close(l.done)
	greeted := sync.OnceFunc(func() { close(l.greeted) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := greetMin; !l.left.Load(); {
		due := l.Every
		switch {
		case l.gone.Load() != nil:
			l.tell()
			due = greetMax
		case !l.met:
			cause := l.of.Greet()
			l.met = cause == nil
			greeted()
			if due = 0; cause == nil {
				pause = greetMin
			} else {
				due, pause = pause, min(2*pause, greetMax)
				l.fail(cause)
			}
		case l.fell() || l.Live.Load() == 0:
			l.raise()
		default:
			if cause := l.of.Tick(); cause != nil {
				l.met, due = false, 0
				l.drop(cause)
			}
		}
		timer.Reset(due)
		select {
		case <-l.wake:
		case <-timer.C:
		}
	}
	greeted()
	l.of.End()
}

// raise brings the rail up in its next generation.
func (l *OneRail) raise() {
	l.ending.Store(nil) // the plans of this generation know of it
	l.generation++
	l.mu.Lock()
	up := !l.left.Load() && l.gone.Load() == nil
	if up {
		l.Live.Store(l.generation)
	}
	l.mu.Unlock()
	if !up {
		return
	}
	l.told = false
	info := l.of.Rail()
	info.Rail = l.In(l.generation)
	l.sink.RailUp(info)
}

// fail reports to the core that the peer cannot be reached this way. A refusal is for good. So is the proof that the
// peer has ended, which may follow a silence that was reported. Silence is not, nor a peer without room.
func (l *OneRail) fail(cause *errs.Error) {
	final := cause.Permanent() && cause.Code != errs.Timeout && cause.Code != errs.TooManyRequests
	switch {
	case (final || cause.EndsPeer()) && l.gone.CompareAndSwap(nil, cause):
		l.tell()
	case !l.told:
		l.told = true
		l.sink.LinkDown(l.Number, cause)
	}
}

// Die ends a link after its peer has ended or said goodbye. Any goroutine may call it.
func (l *OneRail) Die(cause *errs.Error) {
	if l.gone.CompareAndSwap(nil, cause) {
		l.lower(0)
		l.Kick()
	}
}

// tell completes the slices that a dead link has left and reports to the core, once. A silence that was reported before
// is another thing: the core goes on to wait for the peer.
func (l *OneRail) tell() {
	cause := l.gone.Load()
	l.of.Abandon(cause)
	if !l.buried {
		l.buried = true
		l.sink.LinkDown(l.Number, cause)
	}
}
