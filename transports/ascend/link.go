package ascend

import (
	"context"
	"errors"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/ascend/hixl"
	"github.com/tent-engine/tent/transports/kit"
)

// link is an attached peer: we are the initiator. Its goroutine connects it with HIXL and ends that; the carrier posts
// its slices and sees their ends.
//
//	            hello, Connect                 a slice waits: hello, Connect
//	meeting ────────────────────▶ open ◀──────────────────────────────────── shut
//	   ▲                           │ │                                        ▲
//	   │ RailDown: a transfer      │ │  drained, Disconnect: a registration   │
//	   │ failed or was late        │ └── ends, a region came later, another ──┘
//	   └───────── Disconnect ◀─────┘     link needs the place
//
// The rail is up in open and in shut: a connection is none of the core's business. A region that came after Connect
// cannot be seen by the link, so its first slice makes the link anew, behind the slices that are out.
type link struct {
	t      *ascend
	number transport.Link
	peer   transport.Peer
	ctx    context.Context // ends with the link
	cancel context.CancelFunc
	kick   chan struct{} // has something when the state has changed
	keys   kit.Slots[transport.RemoteKey, remote]

	// Guarded by ascend.mu.
	connection connection
	generation uint32      // of the rail that is up, 0 for none
	last       uint32      // the newest generation
	trouble    *errs.Error // the latest failure, for people
	cause      *errs.Error // ends the generation, and does not wait for posted slices
	over       bool        // it was detached, or its peer has ended
	asks       int         // owners that wait for it to part
	evicted    bool        // another link needs its place
	calls      int         // of HIXL that the carrier makes for it
	seen       uint64      // registrations of the owner that the connection can reach
	used       clock.Time
	claimed    string    // the key in ascend.claims
	name       hixl.Name // of the peer's engine
	life       uint64    // of our engine of HIXL with the connection
	slab       []entry
	free       kit.List[entry]
	queue      kit.ClassQueue[entry]
	posted     kit.List[entry]
	listed     bool // in ascend.active
	starved    bool // in ascend.starving
}

// connection is the state of a link with HIXL.
type connection uint8

const (
	shut connection = iota
	opening
	open
	closing
)

func (c connection) String() string {
	return [...]string{"not connected", "being connected", "connected", "being disconnected"}[c]
}

// Limits of calls to a peer, and pauses between tries.
const (
	callLimit  = time.Second
	retryLeast = 20 * time.Millisecond
	retryMost  = time.Second
)

// Attach implements transport.Transport.
func (t *ascend) Attach(peer transport.Peer) (transport.Link, error) {
	if peer.Self {
		return 0, errs.New(errs.NotHere, "ascend.attach", "HIXL connects no engine with itself").
			WithScope(errs.ScopeLink, errs.SideLocal)
	}
	l := &link{t: t, peer: peer, kick: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancel(t.ctx)
	var err error
	if !t.life.Begin(func() {
		_, err = t.links.Attach("ascend.attach", func(n transport.Link) *link {
			l.number = n
			t.ways.Store(n, l)
			return l
		})
	}) {
		err = kit.Closed("ascend.attach")
	}
	if err != nil {
		l.cancel()
		return 0, err
	}
	t.life.Go(l.run)
	return l.number, nil
}

// Detach implements transport.Transport. Slices that are posted end when their link has; until then it answers owners.
func (t *ascend) Detach(number transport.Link) {
	if l := t.links.Detach(number); l != nil {
		l.leave()
	}
}

// leave ends a link that is not wanted any more.
func (l *link) leave() { l.finish(errs.New(errs.Lost, Name, "the link was detached"), errs.SideLocal) }

// finish ends the link for good, with the error of its slices.
func (l *link) finish(cause *errs.Error, side errs.Side) {
	t := l.t
	told := *cause
	t.mu.Lock()
	l.over, l.generation = true, 0
	l.cause = (&told).WithScope(errs.ScopeLink, side)
	ends := l.dropLocked(nil, l.cause, all)
	t.mu.Unlock()
	l.cancel()
	l.wake()
	t.complete(ends)
}

// fail ends the link because its peer is gone.
func (l *link) fail(cause *errs.Error) {
	l.t.mu.Lock()
	over, generation := l.over, l.generation
	l.t.mu.Unlock()
	if over {
		return
	}
	told := *cause
	told.Scope = max(told.Scope, errs.ScopeLink)
	if told.Code != errs.PeerRestarted {
		told.Code, told.Side = errs.PeerUnreachable, errs.SideRemote
	}
	l.finish(&told, errs.SideRemote)
	if generation != 0 {
		l.t.sink.RailDown(l.rail(generation), &told)
	}
	l.t.sink.LinkDown(l.number, &told)
}

// gone is the error of a link that has ended.
func (l *link) gone(code errs.Code, cause string) *errs.Error {
	return errs.New(code, Name, "%s", cause).WithScope(errs.ScopeLink, errs.SideRemote).
		WithPeer(l.peer.Address, Name, "")
}

func (l *link) rail(generation uint32) transport.Rail {
	return transport.Rail{Link: l.number, Generation: generation}
}

// wake lets the link's goroutine look at its state.
func (l *link) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

func (t *ascend) kickAll() {
	for _, l := range t.links.All() {
		l.wake()
	}
	t.bell.ring()
}

// run is the life of the link.
func (l *link) run() {
	defer l.farewell()
	if !l.meet() {
		return
	}
	for {
		switch step := l.next(); step {
		case toEnd:
			return
		case toConnect:
			if err := l.connect(); err != nil && !l.broke(err) {
				return
			}
		case toPart:
			l.disconnect()
		case toCut:
			if !l.cut() {
				return
			}
		}
	}
}

// farewell ends the connection, and lets the owner forget it.
func (l *link) farewell() {
	l.cut()
	l.t.ways.Delete(l.number)
	l.t.mu.Lock()
	l.name.Free()
	l.name = hixl.Name{}
	dead := l.cause != nil && l.cause.EndsPeer()
	l.t.mu.Unlock()
	if dead {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), silence)
	defer cancel()
	_, _ = l.t.host.Call(ctx, l.peer, message(kindDetach, uint64(l.number))) // it may be gone
}

// Steps of a link's goroutine.
type step uint8

const (
	toEnd step = iota
	toConnect
	toPart
	toCut
)

// next waits until the link has something to do.
func (l *link) next() step {
	for {
		l.t.mu.Lock()
		s, is := l.stepLocked()
		l.t.mu.Unlock()
		if is {
			return s
		}
		<-l.kick
	}
}

func (l *link) stepLocked() (s step, is bool) {
	switch {
	case l.over:
		return toEnd, true
	case l.cause != nil:
		return toCut, true
	case l.connection == open && l.partsLocked() && l.posted.Len() == 0 && l.calls == 0:
		return toPart, true
	case l.connection == shut && l.queue.Len() > 0 && !l.heldLocked():
		return toConnect, true
	}
	return 0, false
}

// heldLocked reports whether the link must not be connected now.
func (l *link) heldLocked() bool { return l.t.paused > 0 || l.asks > 0 }

// partsLocked reports whether the connection ends once nothing is out: nothing is posted any more.
func (l *link) partsLocked() bool { return l.heldLocked() || l.evicted || l.blindLocked() }

// blindLocked reports whether a slice waits for memory that the connection cannot see.
func (l *link) blindLocked() bool {
	for class := range kit.Classes {
		if e := l.queue.List(class).First(); e != nil && e.far.serial > l.seen {
			return true
		}
	}
	return false
}

// meet connects the link until that succeeds, and brings its rail up. It returns false when the link has ended. A peer
// that cannot be reached for callLimit is reported once.
func (l *link) meet() bool {
	begun, told := time.Now(), false
	for pause := retryLeast; ; pause = min(2*pause, retryMost) {
		err := l.connect()
		if err == nil {
			l.rise()
			return true
		}
		if !l.survives(err) {
			return false
		}
		if !told && time.Since(begun) >= callLimit {
			told = true
			l.t.sink.LinkDown(l.number, errs.New(errs.Timeout, Name, "no link to the peer: %v", err).
				WithScope(errs.ScopeLink, errs.SideUnknown).WithPeer(l.peer.Address, Name, ""))
		}
		timer := time.NewTimer(pause)
		select {
		case <-l.ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
}

// survives notes why the link could not be made, and reports whether another try makes sense.
func (l *link) survives(err error) bool {
	if l.ctx.Err() != nil {
		return false
	}
	var e *errs.Error
	if errors.As(err, &e) && final(e) {
		l.fail(e)
		return false
	}
	l.t.mu.Lock()
	l.trouble = errs.From(Name, err)
	l.t.mu.Unlock()
	return true
}

// final reports an error after which no call to this peer can succeed.
func final(e *errs.Error) bool {
	switch e.Code {
	case errs.PeerRestarted, errs.EngineClosed, errs.PeerNotAdmitted, errs.NotImplemented, errs.Protocol,
		errs.TooManyRequests:
		return true
	}
	return e.EndsPeer()
}

// broke ends the rail because the link could not be made again, and meets the peer anew.
func (l *link) broke(err error) bool {
	if !l.survives(err) {
		return false
	}
	l.t.mu.Lock()
	if l.cause == nil {
		l.cause = errs.New(errs.Lost, Name, "no link to the peer: %v", err).WithScope(errs.ScopeRail, errs.SidePath)
	}
	l.t.mu.Unlock()
	return l.cut()
}

// rise brings the rail up in the next generation.
func (l *link) rise() {
	l.t.mu.Lock()
	if l.over {
		l.t.mu.Unlock()
		return
	}
	l.last++
	l.generation, l.cause = l.last, nil
	up := transport.RailInfo{Rail: l.rail(l.last), Local: l.t.instance.where(), Remote: l.peer.Address,
		Device: l.t.instance.where(), Node: -1, Bandwidth: bandwidth, BytesMax: bytesMax, SlicesMax: slicesMax}
	l.t.mu.Unlock()
	l.t.sink.RailUp(up)
}

// Before anything was measured, a link is as fast as the NIC of an Atlas A2: 200 Gbit/s.
const (
	bandwidth = 25e9
	bytesMax  = 64 << 20
)

// cut ends the generation: the connection ends first, so that nothing moves any more, and then the slices that are out.
// It meets the peer anew and returns true, or false when the link has ended.
func (l *link) cut() bool {
	l.disconnect()
	t := l.t
	t.mu.Lock()
	cause, generation, over := l.cause, l.generation, l.over
	if cause == nil { // Close has begun, and leaves it next
		cause = errs.New(errs.Lost, Name, "the link was detached").WithScope(errs.ScopeLink, errs.SideLocal)
		l.cause = cause
	}
	l.generation = 0
	ends := l.dropLocked(l.failPostedLocked(nil), collateral(cause), all)
	t.mu.Unlock()
	fenced := cause.Code == errs.Withdrawn
	if generation != 0 && !over && !fenced {
		t.sink.RailDown(l.rail(generation), cause)
	}
	t.complete(ends)
	switch {
	case over:
		return false
	case fenced: // both ends are well
		l.rise()
		return true
	}
	return l.meet()
}

// collateral makes the error of slices that were not meant.
func collateral(cause *errs.Error) *errs.Error {
	told := *cause
	told.Collateral = true
	return &told
}

// hear applies news and returns when nothing that they forbid is out. Where slices stay out, the link ends.
func (l *link) hear(ctx context.Context, n news) bool {
	named := l.apply(n)
	t := l.t
	t.mu.Lock()
	ends := l.dropLocked(nil, nil, func(e *entry) bool { return e.far.region == n.region && e.forbidden() })
	out := func() bool { return !l.touchesLocked(n.region) }
	t.mu.Unlock()
	t.complete(ends)
	t.mu.Lock()
	defer t.mu.Unlock()
	patient, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	if !t.await(patient, out) {
		if l.cause == nil {
			l.cause = errs.New(errs.Lost, Name, "a fence did not wait for slices that were out").
				WithScope(errs.ScopeRail, errs.SideRemote)
		}
		l.wake()
		if !t.await(ctx, out) {
			return false
		}
	}
	t.mu.Unlock()
	l.tell(n, named)
	t.mu.Lock()
	return true
}

// tell hands the epoch of a fence to the core, which knows nothing of a link that was detached.
func (l *link) tell(n news, named transport.RemoteKey) {
	if n.floor != 0 && !n.closed && l.t.links.Peek(l.number) == l {
		l.t.sink.Fenced(l.number, named, n.floor)
	}
}

// touchesLocked reports whether a posted slice of a forbidden epoch names a region.
func (l *link) touchesLocked(region uint64) bool {
	for e := l.posted.First(); e != nil; e = l.posted.Next(&e.place) {
		if e.far.region == region && e.forbidden() {
			return true
		}
	}
	return false
}

// parted returns when the link is not connected, and reports whether that was so in time. It connects again when the
// owner answers its hello.
func (l *link) parted(ctx context.Context) bool {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	l.asks++
	l.wake()
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	quiet := func() bool { return l.connection == shut }
	patient, enough := context.WithTimeout(ctx, drainLimit)
	defer enough()
	is := l.t.await(patient, quiet)
	if !is && l.posted.Len() > 0 && l.cause == nil {
		l.cause = errs.New(errs.Lost, Name, "the owner ends a registration, and did not wait for slices that were out").
			WithScope(errs.ScopeRail, errs.SideRemote)
		l.wake()
	}
	is = is || l.t.await(ctx, quiet)
	l.asks--
	l.wake()
	return is
}
