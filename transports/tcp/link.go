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
	"github.com/tent-engine/tent/transports/kit"
)

// link is an attached peer. run looks after it, and owns everything below "run's own"; others reach it by runOnLink and
// kick. The link's goroutine, on which run is, exists while there is something to do: its stack would be a quarter of
// an idle link's memory.
type link struct {
	t      *Transport
	number transport.Link
	peer   transport.Peer
	spoken uint8 // version of the protocol
	rails  atomic.Pointer[[]*rail]
	kicks  atomic.Int64 // since run last looked around; beyond 0 it runs, or will not any more
	timer  *time.Timer  // kicks when something is due
	left   atomic.Bool  // for run: Detach was called; nothing is reported to the core from then on
	bye    atomic.Bool  // for run: the peer's goodbye came

	keptOut atomic.Bool // for run: by its goodbye, the peer has disconnected us

	mu      sync.Mutex
	todo    []func(now clock.Time)
	state   linkState // changed by run alone, which reads it without mu
	key     attachmentID
	lanes   map[uint64]*initiatorLane // until they have ended
	notes   map[uint64]*note
	pings   map[uint64]*ping
	nextNum uint64

	// run's own
	offer     offer
	ends      map[netip.AddrPort]*farEnd // of its rails
	known     bool                       // we have an offer
	calling   bool                       // a Host.Call is under way
	callDue   clock.Time                 // of the next hello or enquiry
	callTries int
	callErr   error
	deadBy    *errs.Error // why nothing is tried any more
	askDue    clock.Time
	askTries  int
	leaveBy   clock.Time
}

func (t *Transport) newLink(peer transport.Peer) *link {
	l := &link{t: t, peer: peer, spoken: version, lanes: map[uint64]*initiatorLane{}, notes: map[uint64]*note{},
		pings: map[uint64]*ping{}, state: linkTrying, askDue: clock.Never, ends: map[netip.AddrPort]*farEnd{}}
	if v := uint8(peer.Version); v != 0 {
		l.spoken = v
	}
	l.rails.Store(new([]*rail))
	l.timer = time.AfterFunc(time.Hour, l.kick)
	l.timer.Stop()
	l.kicks.Store(1) // Attach starts run
	return l
}

// Attach starts a link. Rails come by Sink.RailUp, a peer that does not answer by Sink.LinkDown.
func (t *Transport) Attach(peer transport.Peer) (transport.Link, error) {
	l := t.newLink(peer)
	var err error
	open := t.life.Begin(func() {
		_, err = t.links.Attach("tcp.attach", func(n transport.Link) *link { l.number = n; return l })
		if err == nil {
			t.running.Add(1)
			go l.run()
		}
	})
	if !open {
		return 0, kit.Closed("tcp.attach")
	}
	return l.number, err
}

// Detach ends a link: from now on nothing is accepted. Outstanding slices complete soon, after a question to the peer
// where one is needed.
func (t *Transport) Detach(n transport.Link) {
	if l := t.links.Detach(n); l != nil {
		l.left.Store(true)
		l.kick()
	}
}

// kick makes run look after the link.
func (l *link) kick() {
	if l.kicks.Add(1) == 1 {
		go l.run()
	}
}

// runOnLink makes run call f. It returns false, and f does not run, when the link is over.
func (l *link) runOnLink(f func(now clock.Time)) bool {
	l.mu.Lock()
	over := l.state == linkOver
	if !over {
		l.todo = append(l.todo, f)
	}
	l.mu.Unlock()
	l.kick()
	return !over
}

// tryOver ends the link, and runOnLink refuses from then on, unless there is something to do.
func (l *link) tryOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.todo) == 0 && l.advanceLocked(linkSettled)
}

func (l *link) attachment() attachmentID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.key
}

// run looks around until nobody has kicked meanwhile. After Detach it ends for good, as it then does after a panic.
func (l *link) run() {
	over := true
	defer func() {
		if over {
			l.timer.Stop()
			l.t.running.Done()
		}
	}()
	defer l.t.guard()
	for {
		kicks := l.kicks.Load()
		now := clock.Now()
		due, ended := l.guardedStep(now)
		if ended && l.tryOver() {
			return
		}
		if due == clock.Never {
			l.timer.Stop()
		} else {
			l.timer.Reset(max(due.Sub(now), 100*time.Microsecond))
		}
		if l.kicks.CompareAndSwap(kicks, 0) {
			over = false
			return
		}
	}
}

// guardedStep is step. A link that panics goes on, at the slowest pace.
func (l *link) guardedStep(now clock.Time) (due clock.Time, ended bool) {
	due = now.Add(pauseMax)
	defer l.guard()
	return l.step(now)
}

// guard breaks all lanes of a link that panicked, so that rails and slices have an end, with the panic as its cause. A
// link that was detached ends for good, as run says.
func (l *link) guard() {
	p := recover()
	switch {
	case p == nil:
	case l.left.Load():
		panic(p)
	default:
		cause := l.attribute(l.t.panicked("tcp.link", p))
		l.eachLane(func(lane *initiatorLane) { lane.broke(cause) })
	}
}

// perform makes a call that runOnLink took. One that panics is no reason to forget those behind it.
func (l *link) perform(f func(now clock.Time), now clock.Time) {
	defer l.guard()
	f(now)
}

// step does the work that is due and returns the time of the next.
func (l *link) step(now clock.Time) (due clock.Time, ended bool) {
	l.mu.Lock()
	todo := l.todo
	l.todo = nil
	l.mu.Unlock()
	for _, f := range todo {
		l.perform(f, now)
	}
	l.checkRails(now)
	if l.left.Load() {
		return l.stepLeaving(now)
	}
	due = l.answerNotes(now)
	if l.state == linkDead {
		return due, false
	}
	due = min(due, l.resolve(now))
	if due = min(due, l.enquire(now)); l.state == linkDead {
		return due, false
	}
	l.widen(now)
	return min(due, l.dialDue(now), l.retireAlternates(now)), false
}

// checkRails takes down the rails of which a lane has broken, or all when the peer has said goodbye.
func (l *link) checkRails(now clock.Time) {
	if l.bye.Load() {
		l.goodbyeCame(now)
	}
	for _, r := range *l.rails.Load() {
		if r.set == nil {
			continue
		}
		var cause *errs.Error
		r.set.each(func(lane *initiatorLane) {
			if why := lane.endCause(); why != nil && (cause == nil || cause.Collateral) {
				cause = why
			}
		})
		switch {
		case cause == nil:
		case mayBeGoodbye(cause) && l.hearsGoodbye():
			l.goodbyeCame(now)
			return
		default:
			l.railDown(r, l.ownLoss(r, cause), now)
		}
	}
}

// ownLoss is the cause of a rail that was given up: that its end here is gone, where the kernel knows that already. The
// core may find the silence before the news are read, and then nobody would name the cause.
func (l *link) ownLoss(r *rail, cause *errs.Error) *errs.Error {
	if cause.Code == errs.Withdrawn {
		if lost := l.t.watch.lost(r.local); lost != nil {
			return r.ours(lost)
		}
	}
	return cause
}

// allRailsDown ends the generations of all rails that are up.
func (l *link) allRailsDown(cause *errs.Error, now clock.Time) {
	for _, r := range *l.rails.Load() {
		if r.set != nil {
			l.railDown(r, cause, now)
		}
	}
}

// railDown ends a rail's generation. Slices that had not left end here; the peer is asked about those that had.
func (l *link) railDown(r *rail, cause *errs.Error, now clock.Time) {
	set := r.set
	r.live.Store(nil)
	r.set = nil
	if r.extra != nil {
		r.extra.obsolete.Store(true)
	}
	r.scheduleRedial(now)
	neighbour := *cause
	neighbour.Collateral = true
	set.each(func(lane *initiatorLane) { lane.broke(&neighbour) })
	if l.serves() {
		reported := cause
		if cause.Code == errs.Withdrawn || l.bye.Load() {
			reported = nil // asked for, or in order: not an error
		}
		l.t.sink.RailDown(set.id(), reported)
	}
	w := l.t.borrow()
	set.each(func(lane *initiatorLane) { l.settleLane(lane, w) })
	l.t.giveBack(w)
	l.failNotes(set)
	l.callDue = now
}

// settleLane closes a broken lane once nobody uses it, and completes its slices except WRITEs that had left. Nobody can
// receive the payload of its READs any more.
func (l *link) settleLane(lane *initiatorLane, w *worker) {
	lane.readMu.Lock()
	lane.writeMu.Lock()
	lane.closeSocket()
	l.t.attended[lane.group].remove(lane, true)
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
			w.complete(o.detachSlice(e), 0, lane.cause)
		}
	}
	o.asked = 0
	lane.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if open > 0 {
		l.askDue, l.askTries = 0, 0
	} else if from, to := lane.life.advance(eventFenced); from != to {
		delete(l.lanes, lane.id)
	}
}

func (l *link) laneById(id uint64) *initiatorLane {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lanes[id]
}

// eachLane calls f for the lanes that Submit may use.
func (l *link) eachLane(f func(*initiatorLane)) {
	for _, r := range *l.rails.Load() {
		if set := r.live.Load(); set != nil {
			set.each(f)
		}
	}
}

// broadcast sends a frame on every lane of the link, so that none that is stuck can hold it up.
func (l *link) broadcast(h header, records ...record) (sent int) {
	l.eachLane(func(lane *initiatorLane) {
		lane.asked.Store(true)
		if lane.post(h, records...) {
			sent++
			lane.pump(submitBudget)
		}
	})
	return sent
}

// attribute fills in peer and transport of an error of the link.
func (l *link) attribute(err *errs.Error) *errs.Error { return err.WithPeer(l.peer.Address, Name, "") }

// because is a cause in parentheses, or nothing where there is none yet.
func because(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprintf(" (%v)", err)
}

func (l *link) explain() string {
	result := make(chan string, 1)
	l.runOnLink(func(clock.Time) { result <- l.described() })
	select {
	case text := <-result:
		return text
	case <-time.After(time.Second):
		return "tcp to " + l.peer.Address + ": link is ending"
	}
}

// described is the link with its rails, in words.
func (l *link) described() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tcp to %s", l.peer.Address)
	if l.deadBy != nil {
		fmt.Fprintf(&b, ": %v", l.deadBy)
	} else if !l.known {
		b.WriteString(": no answer yet" + because(l.callErr))
	} else {
		fmt.Fprintf(&b, ", bytes %v", l.offer.shield)
	}
	for _, r := range *l.rails.Load() {
		switch {
		case r.set != nil:
			fmt.Fprintf(&b, "\n  rail %d %s: up, %v", r.index, r.name(), r.set)
		case r.alternate && r.tries == 0:
			fmt.Fprintf(&b, "\n  rail %d %s: alternate, not needed now", r.index, r.name())
		default:
			fmt.Fprintf(&b, "\n  rail %d %s: down, %d tries%s", r.index, r.name(), r.tries, because(r.lastErr))
		}
	}
	return b.String()
}
