package tcp

import (
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// An orderly end is announced. An initiator that detaches sends LEAVE, and the responder forgets it at once. A
// transport that closes sends BYE, and its initiators do not take that for a failure. Both frames also fence every
// lane between the two, since their sender takes nothing more. Losing such a frame costs only time: the end is then
// found like that of a process that was killed.

// goodbyeLimit bounds the time for which Close waits until peers have taken the frames before the last one.
const goodbyeLimit = 200 * time.Millisecond

// sayLeave asks the responder to forget this link, unless something is outstanding that must be asked about first; the
// last question carries the LEAVE then. Only the link's goroutine calls it.
func (l *link) sayLeave() {
	l.mu.Lock()
	quiet := true
	for _, lane := range l.lanes {
		lane.mu.Lock()
		quiet = quiet && lane.life.state() != stateInDoubt && lane.out.idle()
		lane.mu.Unlock()
	}
	l.mu.Unlock()
	if quiet {
		l.broadcast(header{kind: kindLeave}) // on every lane: the reset that follows may overtake unsent frames
	}
}

// leaveCame fences all lanes of the attachment; its initiator asks no more about them. It is forgotten with its last
// lane, not before: until then a Revoke must find the payload that is being sent.
func (a *attachment) leaveCame() {
	a.leave()
	for _, l := range a.allLanes() {
		l.fence()
	}
}

// leave keeps further lanes out of the attachment.
func (a *attachment) leave() {
	as := &a.t.attachments
	as.mu.Lock()
	defer as.mu.Unlock()
	gone := a.left
	if a.left = true; !gone && a.place.Queued() {
		as.forget(a)
	}
}

// Disconnect implements transport.Disconnecter. The goodbye on the peer's lanes says that it is kept out. A goroutine
// writes the rest of it where a socket is full, and closes the lanes.
func (t *Transport) Disconnect(peer transport.ID) {
	var lanes []*responderLane
	for _, a := range t.attachments.ofPeer(&transport.Peer{ID: peer}) {
		a.leave()
		lanes = append(lanes, a.allLanes()...)
	}
	if len(lanes) == 0 {
		return
	}
	for _, l := range lanes {
		l.sayGoodbye(byeKeptOut)
	}
	t.spawn(func() {
		end := time.Now().Add(goodbyeLimit)
		for _, l := range lanes {
			l.finishGoodbye(t.life.Closed, end)
			if l.fence(); l.life.state() == stateParted {
				l.closeLane()
			}
		}
	})
}

// Visitors implements transport.Visited. The secret of an attachment opens lanes, so a peer without a lane counts.
func (t *Transport) Visitors() []transport.ID {
	as := &t.attachments
	as.mu.Lock()
	defer as.mu.Unlock()
	return slices.Collect(maps.Keys(as.guests))
}

// sayGoodbye announces to all initiators that this transport closes. The workers have ended, so nobody reads the lanes.
// All lanes say it before the first one is closed, so that none breaks before its peer can know why.
func (t *Transport) sayGoodbye() {
	end := time.Now().Add(goodbyeLimit)
	var busy []*responderLane
	for _, c := range t.conns.All() {
		if l, is := c.lane.(*responderLane); is && !l.sayGoodbye(byeClosed) {
			busy = append(busy, l)
		}
	}
	for _, l := range busy {
		l.finishGoodbye(func() bool { return false }, end)
	}
}

// finishGoodbye writes the rest of a lane's last frames as its socket takes them.
func (l *responderLane) finishGoodbye(stopped func() bool, end time.Time) {
	for !l.saidGoodbye() && waitFd(l.socket(), unix.POLLOUT, stopped, end) == nil {
		l.pump(submitBudget)
	}
}

// Flags of a BYE: why the responder takes nothing more.
const (
	byeClosed  = 0 // it closes
	byeKeptOut = 1 // it has disconnected this initiator
)

// sayGoodbye fences the lane, acknowledges the WRITEs that had landed on it and writes the last frame, or as much as
// the socket takes. It reports false if some of that is left to write.
func (l *responderLane) sayGoodbye(why byte) bool {
	l.copyMu.Lock()
	_, to := l.life.advance(eventGoodbye)
	applied, overflow := l.in.applied, l.in.overflow
	l.copyMu.Unlock()
	if to != stateParting {
		return true // a stranger, or broken
	}
	l.mu.Lock()
	l.reads = readQueue{}
	if applied > l.ackSeq && !overflow {
		l.postLocked(header{kind: kindAck, seq: applied})
		l.ackSeq = applied
	}
	l.ackDue = false
	said := l.postLocked(header{kind: kindBye, flag: why})
	l.mu.Unlock()
	if !said {
		return true // its peer does not read
	}
	l.pump(submitBudget)
	return l.saidGoodbye()
}

// saidGoodbye reports whether all frames of a parting lane have left, or can never leave.
func (l *responderLane) saidGoodbye() bool {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ctl) == 0 && l.tx.idle() {
		l.life.advance(eventSent)
	}
	return l.life.state() != stateParting
}

// mayBeGoodbye reports whether a lane broke as it does when the peer's transport closes: the connection was closed, or
// reset because bytes came after that. An end by our own kernel is no goodbye.
func mayBeGoodbye(cause *errs.Error) bool {
	var errno unix.Errno
	return cause.Code == errs.Lost && (!errors.As(cause, &errno) || errno == unix.ECONNRESET || errno == unix.EPIPE)
}

// hearsGoodbye looks into the sockets of the link once more: where one has just broken, the reason may lie unread in it
// or beside it. Only the link's goroutine calls it.
func (l *link) hearsGoodbye() bool {
	w := l.t.borrow()
	defer l.t.giveBack(w)
	for _, r := range *l.rails.Load() {
		if r.set != nil {
			r.set.each(func(lane *initiatorLane) { lane.lastLook(w) })
		}
	}
	return l.bye.Load()
}

// lastLook reads the bytes that a lane still holds. It leaves a healthy lane that is being read to its reader.
func (l *initiatorLane) lastLook(w *worker) {
	down := l.isDown()
	if down {
		l.readMu.Lock()
	} else if !l.readMu.TryLock() {
		return
	}
	for turns, n := 0, 1; n > 0 && turns < 64; turns++ {
		n, _ = l.drain(w, workerBudget)
	}
	l.letGo()
	if !down {
		l.arm()
	}
}

// goodbyeCame ends a link after its peer has said goodbye: in order, except for outstanding slices. The cause of a peer
// that closes wraps EngineClosed, that of one that keeps us out PeerNotAdmitted: they are no failures.
func (l *link) goodbyeCame(now clock.Time) {
	if !l.serves() {
		return
	}
	l.bye.Store(true)
	why := errs.New(errs.EngineClosed, "", "the peer has closed its engine")
	if l.keptOut.Load() {
		why = errs.New(errs.PeerNotAdmitted, "", "the peer does not admit this engine any more")
	}
	cause := l.attribute(errs.Wrap(errs.PeerUnreachable, "tcp.link", why).WithScope(errs.ScopeLink, errs.SideRemote))
	for _, r := range *l.rails.Load() {
		if r.set == nil {
			continue
		}
		r.set.each(func(lane *initiatorLane) {
			lane.endBy(eventGoodbye, cause)
			lane.mu.Lock() // a lane that broke first broke for this
			lane.cause = cause
			lane.mu.Unlock()
		})
		l.railDown(r, cause, now)
	}
	l.die(cause, now)
}
