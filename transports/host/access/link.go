package access

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// Pauses of a link's goroutine.
const (
	retryMin  = time.Second // after a greeting that got no answer
	retryMax  = 30 * time.Second
	tickEvery = 5 * time.Second
)

// Traffic is the transport's part of a link. All calls but Abandon come from the link's goroutine.
type Traffic interface {
	// Met gives the access that a greeting has brought. The rail is down.
	Met(*Access)
	// Rail describes the rail that comes up; its Rail is filled in by the caller.
	Rail() transport.RailInfo
	// Abandon completes all slices that wait. None is accepted: Live is 0.
	Abandon(cause *errs.Error)
	// Tick is called every few seconds while the rail is up, and after a Kick.
	Tick()
	// End returns when no copier is inside of the peer's memory any more, and nothing of it is mapped.
	End()
}

// Link is an attached peer: we are the initiator. Its goroutine brings the rail up and ends everything; it owns
// every field that is not said to be shared. A transport embeds it.
//
//	greeting ──welcome──▶ up ──Fence──▶ down ──at once──▶ up (next generation)
//	up ──Renew──▶ down (RailDown told) ──at once──▶ up (next generation)
//	greeting ──no answer──▶ waiting (LinkDown told) ──pause──▶ greeting
//	any ──refused, goodbye, peer ended──▶ dead (LinkDown told) ;  any ──Leave──▶ left
type Link struct {
	Number transport.Link
	Peer   transport.Peer
	Live   atomic.Uint32 // generation that is up, 0 for none; transports read it

	p       *Point
	of      Traffic
	secret  Token // the peer's name of this link
	wake    chan struct{}
	left    atomic.Bool                // Leave was called
	gone    atomic.Pointer[errs.Error] // why the link is dead
	ending  atomic.Pointer[errs.Error] // of Renew: why the generation must end
	greeted chan struct{}              // closed when the first greeting has an end
	done    chan struct{}              // closed when the goroutine has ended

	mu sync.Mutex // of changes of Live

	access     *Access
	generation uint32
	told       bool // LinkDown was told
}

// Start starts a link. It is called under Config.Life, once, when Number is known.
func (l *Link) Start(p *Point, peer transport.Peer, of Traffic) {
	l.p, l.Peer, l.of, l.secret = p, peer, of, NewToken()
	l.wake, l.greeted, l.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	p.running.Add(1)
	go l.run()
}

// Up reports whether the rail is up in just this generation. A stale link, nil, has none.
func (l *Link) Up(r transport.Rail) bool {
	return l != nil && r.Index == 0 && r.Generation != 0 && r.Generation == l.Live.Load()
}

// In names the rail in a generation.
func (l *Link) In(generation uint32) transport.Rail {
	return transport.Rail{Link: l.Number, Generation: generation}
}

// Gone returns why the link is dead, nil if it is not.
func (l *Link) Gone() *errs.Error { return l.gone.Load() }

// Left reports whether Leave was called.
func (l *Link) Left() bool { return l.left.Load() }

// Greeted is closed when the first greeting has an end.
func (l *Link) Greeted() <-chan struct{} { return l.greeted }

// Done is closed when the link's goroutine has ended.
func (l *Link) Done() <-chan struct{} { return l.done }

// Leave ends the link: its waiting slices complete, and its goroutine gives everything back.
func (l *Link) Leave() {
	l.left.Store(true)
	l.lower(0)
	l.of.Abandon(errs.New(errs.Lost, l.p.op("detach"), "the link was detached").
		WithScope(errs.ScopeLink, errs.SideLocal))
	l.Kick()
}

// Fence ends a generation of the rail, and the slices that wait there end by a cause. The rail comes up again in the
// next one. A generation that is not up is ignored.
func (l *Link) Fence(r transport.Rail, cause *errs.Error) {
	if l.Up(r) && l.lower(r.Generation) {
		l.of.Abandon(cause)
		l.Kick()
	}
}

// Renew ends the rail's generation by a cause that the core hears; the next one follows at once, and plans are made
// again. It is for a part of the transport's own that is lost and leaves others, such as one device of several. Any
// goroutine may call it.
func (l *Link) Renew(cause *errs.Error) {
	l.ending.Store(cause)
	l.Kick()
}

// fell reports whether Renew was called for the generation that is up, and takes the rail down then. Slices that wait
// end as neighbours of the loss.
func (l *Link) fell() bool {
	cause := l.ending.Swap(nil)
	if cause == nil || !l.lower(0) {
		return false
	}
	l.p.Sink.RailDown(l.In(l.generation), cause)
	spared := errs.Wrap(errs.Lost, l.p.Name, cause).WithScope(errs.ScopeSlice, errs.SideLocal)
	spared.Collateral = true
	l.of.Abandon(spared)
	return true
}

// lower takes the rail down, if it is up in a generation or if that is 0: nothing is accepted from now on.
func (l *Link) lower(generation uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if generation == 0 {
		return l.Live.Swap(0) != 0
	}
	return l.Live.CompareAndSwap(generation, 0)
}

// Kick wakes the link's goroutine. Any goroutine may call it.
func (l *Link) Kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run is the life of a link.
func (l *Link) run() {
	defer l.p.running.Done()
	defer close(l.done)
	greeted := sync.OnceFunc(func() { close(l.greeted) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := retryMin; !l.left.Load(); {
		due := tickEvery
		switch {
		case l.gone.Load() != nil:
			l.tell()
			due = retryMax
		case l.access == nil:
			cause := l.greet()
			greeted()
			if due = 0; cause != nil {
				due, pause = pause, min(2*pause, retryMax)
				l.fail(cause)
			}
		case l.fell() || l.Live.Load() == 0:
			l.raise()
		default:
			l.of.Tick()
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
func (l *Link) raise() {
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
	info.Local, info.Remote = pidName(l.p.Me.PID), pidName(l.access.PID)
	l.p.Sink.RailUp(info)
}

func pidName(pid uint32) string { return "pid " + strconv.Itoa(int(pid)) }

// fail reports to the core that the peer cannot be reached this way. A refusal is for good. So is the proof that the
// peer has ended, which may follow a silence that was reported. Silence is not, nor a peer without room.
func (l *Link) fail(cause *errs.Error) {
	final := cause.Permanent() && cause.Code != errs.Timeout && cause.Code != errs.TooManyRequests
	switch {
	case (final || cause.EndsPeer()) && l.gone.CompareAndSwap(nil, cause):
		l.told = false
		l.tell()
	case !l.told:
		l.told = true
		l.p.Sink.LinkDown(l.Number, cause)
	}
}

// die ends a link after its peer has ended or said goodbye. Any goroutine may call it.
func (l *Link) die(cause *errs.Error) {
	if l.gone.CompareAndSwap(nil, cause) {
		l.lower(0)
		l.Kick()
	}
}

// PeerEnded ends the link of a peer that a system call did not find any more, and returns the cause.
func (l *Link) PeerEnded() *errs.Error {
	e := l.Ended()
	l.die(e)
	return e
}

// Ended is the error of a peer after the end of its process.
func (l *Link) Ended() *errs.Error {
	return errs.New(errs.PeerUnreachable, l.p.Name, "the peer's process has ended").
		WithScope(errs.ScopeLink, errs.SideRemote).WithPeer(l.Peer.Address, l.p.Name, "")
}

// tell completes the slices that a dead link has left and reports to the core, once.
func (l *Link) tell() {
	cause := l.gone.Load()
	l.of.Abandon(cause)
	if !l.told {
		l.told = true
		l.p.Sink.LinkDown(l.Number, cause)
	}
}

// end gives back the link's resources, after the last copier.
func (l *Link) end() {
	l.of.End()
	a := l.access
	if a == nil {
		return
	}
	a.part()
	if l.gone.Load() == nil {
		a.View.Quit()
		l.sayLeave(a)
	}
}
