package tcp

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// rail is one (local address, remote address) path of a link. Its fields belong to the link's goroutine, but for live.
//
//	down ──dial──▶ dialling ──all lanes welcomed──▶ up ──a lane broke, Fence, Detach──▶ down (redial, see redial.go)
//	                                                 up ──our own end lost its link, the peer says that of its──▶ down
type rail struct {
	link       *link
	index      uint16
	local      netip.Addr
	remote     netip.AddrPort
	alternate  bool                    // no part of the matching
	live       atomic.Pointer[laneSet] // what Submit sees
	set        *laneSet
	generation uint32
	dial       *dial         // the one under way
	due        clock.Time    // of the next dial
	tries      int           // in a row, without success
	flaps      int           // generations in a row that were short
	trip       time.Duration // of the last dial that succeeded, 0 before
	since      clock.Time    // of the last change between up and down
	away       bool          // our end has lost its interface or its address
	lastErr    error
	probes     []probe // that wait for dial
}

func (r *rail) name() string { return fmt.Sprintf("%v-%v", r.local, r.remote) }

func (s *laneSet) id() transport.Rail {
	return transport.Rail{Link: s.rail.link.number, Index: s.rail.index, Generation: s.generation}
}

// link is an attached peer. Its goroutine, run, owns everything below "run's own"; others reach it by do and kick.
//
//	greeting ──offer──▶ dialling ──▶ up (some rail is) ──▶ down (none is: LinkDown told, it goes on trying)
//	any ──goodbye, refused by data and control, or another incarnation──▶ dead ;  any ──Detach──▶ detached
type link struct {
	t      *Transport
	number transport.Link
	peer   transport.Peer
	rails  atomic.Pointer[[]*rail]
	wake   chan struct{}
	left   atomic.Bool // Detach was called
	bye    atomic.Bool // the peer has said that its transport closes

	mu      sync.Mutex
	todo    []func(now clock.Time)
	over    bool // nobody will do it
	key     token
	lanes   map[uint64]*lane // open, or broken and unresolved
	fences  map[uint64]*lane // broken with WRITE slices that may have landed
	notes   map[uint64]*note
	pings   map[uint64]*ping
	nextNum uint64

	// run's own
	offer     offer
	known     bool       // we have a token
	calling   bool       // a Host.Call is under way
	callDue   clock.Time // of the next hello or enquiry
	callTries int
	callErr   error
	dead      *errs.Error
	down      bool // LinkDown was told
	askDue    clock.Time
	askTries  int
	leaveBy   clock.Time
}

// Attach starts a link. Rails come by Sink.RailUp, a peer that does not answer by Sink.LinkDown.
func (t *Transport) Attach(peer transport.Peer) (transport.Link, error) {
	l := &link{t: t, peer: peer, wake: make(chan struct{}, 1), lanes: map[uint64]*lane{}, fences: map[uint64]*lane{},
		notes: map[uint64]*note{}, pings: map[uint64]*ping{}, askDue: clock.Never}
	l.rails.Store(new([]*rail))
	t.linkMu.Lock()
	defer t.linkMu.Unlock()
	if t.closed.Load() {
		return 0, closedError("tcp.attach")
	}
	return t.links.Attach("tcp.attach", func(number transport.Link) *link {
		l.number = number
		t.running.Add(1)
		go l.run()
		return l
	})
}

// Detach ends a link: from now on nothing is accepted; what is outstanding completes soon, asked for where it must be.
func (t *Transport) Detach(n transport.Link) {
	if l := t.links.Detach(n); l != nil {
		l.left.Store(true)
		l.kick()
	}
}

// kick makes the link's goroutine look around.
func (l *link) kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// do runs f on the link's goroutine. It returns false, and f does not run, when that has ended.
func (l *link) do(f func(now clock.Time)) bool {
	l.mu.Lock()
	over := l.over
	if !over {
		l.todo = append(l.todo, f)
	}
	l.mu.Unlock()
	l.kick()
	return !over
}

// end makes do refuse, unless there is something to do.
func (l *link) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = len(l.todo) == 0
	return l.over
}

func (l *link) token() token {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.key
}

// run is the link's goroutine: it looks around when kicked and when something is due, and ends after Detach.
func (l *link) run() {
	defer l.t.running.Done()
	defer l.t.guard()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := clock.Now()
		due, ended := l.step(now)
		if ended && l.end() {
			return
		}
		if due == clock.Never {
			timer.Stop()
		} else {
			timer.Reset(max(due.Sub(now), 100*time.Microsecond))
		}
		select {
		case <-l.wake:
		case <-timer.C:
		}
	}
}

// step does what is due and returns when the next thing will be.
func (l *link) step(now clock.Time) (due clock.Time, ended bool) {
	l.mu.Lock()
	todo := l.todo
	l.todo = nil
	l.mu.Unlock()
	for _, f := range todo {
		f(now)
	}
	l.checkRails(now)
	if l.left.Load() {
		return l.leave(now)
	}
	due = l.answerNotes(now)
	if l.dead != nil {
		return due, false
	}
	due = min(due, l.resolve(now))
	if due = min(due, l.call(now)); l.dead != nil {
		return due, false
	}
	return min(due, l.dialDue(now), l.retireAlternates(now)), false
}

// checkRails takes down the rails of which a lane has broken, or all when the peer has said goodbye.
func (l *link) checkRails(now clock.Time) {
	if l.bye.Load() {
		l.part(now)
	}
	for _, r := range *l.rails.Load() {
		if r.set == nil {
			continue
		}
		var cause *errs.Error
		r.set.each(func(lane *lane) {
			lane.mu.Lock()
			if lane.closed && (cause == nil || cause.Collateral) {
				cause = lane.cause
			}
			lane.mu.Unlock()
		})
		switch {
		case cause == nil:
		case mayBeGoodbye(cause) && l.hearsGoodbye():
			l.part(now)
			return
		default:
			l.railDown(r, cause, now)
		}
	}
}

// railDown ends a rail's generation. What had not left ends here, what had left and may have landed is asked about.
func (l *link) railDown(r *rail, cause *errs.Error, now clock.Time) {
	set := r.set
	r.live.Store(nil)
	r.set = nil
	r.wentDown(now)
	neighbour := *cause
	neighbour.Collateral = true
	set.each(func(lane *lane) { lane.broke(&neighbour) })
	if !l.left.Load() && l.dead == nil {
		told := cause
		if cause.Code == errs.Withdrawn || l.bye.Load() {
			told = nil // asked for, or in order: not an error
		}
		l.t.sink.RailDown(set.id(), told)
	}
	w := l.t.borrow()
	set.each(func(lane *lane) { l.settle(lane, w) })
	l.t.give(w)
	l.failNotes(set)
	l.callDue = now
}

// settle closes a broken lane once nobody uses it, and completes what can be: slices that never left, and READs, whose
// payload nobody can receive any more.
func (l *link) settle(lane *lane, w *worker) {
	lane.readMu.Lock()
	lane.writeMu.Lock()
	lane.closeSocket()
	lane.writeMu.Unlock()
	lane.readMu.Unlock()
	open := 0
	lane.mu.Lock()
	o := &lane.out
	for seq := o.head; seq < o.tail; seq++ {
		e := o.at(seq)
		switch {
		case e.slice == nil:
		case seq < o.next && e.op == transport.Write:
			open++
		default:
			w.add(lane, o.finish(e), 0, lane.cause)
		}
	}
	o.asked = 0
	lane.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if open > 0 {
		l.fences[lane.id] = lane
		l.askDue, l.askTries = 0, 0
	} else {
		delete(l.lanes, lane.id)
	}
}

func (l *link) laneById(id uint64) *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lanes[id]
}

// eachLane calls f for the lanes that Submit may use.
func (l *link) eachLane(f func(*lane)) {
	for _, r := range *l.rails.Load() {
		if set := r.live.Load(); set != nil {
			set.each(f)
		}
	}
}

// broadcast sends a frame on every lane of the link, so that none that is stuck can hold it up.
func (l *link) broadcast(h header, records ...record) (sent int) {
	l.eachLane(func(lane *lane) {
		if lane.post(h, records...) {
			sent++
			lane.pump(submitBudget)
		}
	})
	return sent
}

func (l *link) explain() string {
	result := make(chan string, 1)
	l.do(func(clock.Time) {
		var b strings.Builder
		fmt.Fprintf(&b, "tcp to %s", l.peer.Address)
		if l.dead != nil {
			fmt.Fprintf(&b, ": %v", l.dead)
		} else if !l.known {
			fmt.Fprintf(&b, ": no answer yet (%v)", l.callErr)
		}
		for _, r := range *l.rails.Load() {
			switch {
			case r.set != nil:
				fmt.Fprintf(&b, "\n  rail %d %s: up, %v", r.index, r.name(), r.set)
			case r.alternate && r.tries == 0:
				fmt.Fprintf(&b, "\n  rail %d %s: alternate, not needed now", r.index, r.name())
			default:
				fmt.Fprintf(&b, "\n  rail %d %s: down, %d tries (%v)", r.index, r.name(), r.tries, r.lastErr)
			}
		}
		result <- b.String()
	})
	select {
	case text := <-result:
		return text
	case <-time.After(time.Second):
		return "tcp to " + l.peer.Address + ": link is ending"
	}
}
