package tcp

import (
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// Who leaves in order says so: an initiator that detaches, so that the responder forgets it at once (LEAVE), and a
// transport that closes, so that its initiators do not take that for a failure (BYE). Both frames are also a fence of
// every lane between the two, since their sender takes nothing more. A frame that is lost costs no more than that: the
// end is found out as that of a process that was killed.

// goodbyeLimit bounds how long Close waits for peers to take what stands in front of the last frame on their lanes.
const goodbyeLimit = 200 * time.Millisecond

// sayLeave tells the responder to forget this link, where nothing is outstanding that would have to be asked about
// first; else the question does it. Only the link's goroutine calls it.
func (l *link) sayLeave() {
	l.mu.Lock()
	quiet := len(l.fences) == 0
	for _, lane := range l.lanes {
		lane.mu.Lock()
		quiet = quiet && lane.out.idle()
		lane.mu.Unlock()
	}
	l.mu.Unlock()
	if quiet {
		l.broadcast(header{kind: kindLeave}) // on every lane: the reset that follows may overtake what was not sent
	}
}

// leave ends all that belongs to the attachment: its lanes copy nothing any more, and nobody is going to ask about them.
// It is forgotten with its last lane, not before: until then a Revoke has to find what is being sent.
func (a *attachment) leave() {
	a.mu.Lock()
	a.left = true
	lanes := slices.Collect(maps.Values(a.lanes))
	a.mu.Unlock()
	for _, l := range lanes {
		l.fence()
	}
	a.t.attachments.forget(a)
}

// forget drops an attachment whose initiator has left when it has no lane any more.
func (as *attachments) forget(a *attachment) {
	as.mu.Lock()
	defer as.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left && len(a.lanes) == 0 {
		delete(as.byToken, a.token)
	}
}

// sayGoodbye tells all initiators that this transport closes. The workers have ended, so nobody reads the lanes. All
// lanes say it before the first one is closed, so that none breaks before its peer can know why.
func (t *Transport) sayGoodbye() {
	end := time.Now().Add(goodbyeLimit)
	var busy []*lane
	for _, l := range *t.lanes.Load() {
		if l != nil && l.attachment.Load() != nil && !l.sayGoodbye() {
			busy = append(busy, l)
		}
	}
	for _, l := range busy {
		for !l.saidGoodbye() && waitFd(l.fd, unix.POLLOUT, func() bool { return false }, end) == nil {
			l.pump(submitBudget)
		}
	}
}

// sayGoodbye fences the lane, acknowledges what had landed on it and writes the last frame, or as much as the socket
// takes; it reports whether that was all.
func (l *lane) sayGoodbye() bool {
	l.copyMu.Lock()
	l.in.fenced = true
	applied, overflow := l.in.applied, l.in.overflow
	l.copyMu.Unlock()
	l.mu.Lock()
	l.reads = readQueue{}
	if applied > l.ackSeq && !overflow {
		l.postLocked(header{kind: kindAck, seq: applied})
		l.ackSeq = applied
	}
	l.ackDue = false
	said := l.postLocked(header{kind: kindBye})
	l.mu.Unlock()
	if !said {
		return true // it is broken, or its peer does not read
	}
	l.pump(submitBudget)
	return l.saidGoodbye()
}

// saidGoodbye reports whether all frames of a lane have left, or can never leave.
func (l *lane) saidGoodbye() bool {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	l.mu.Lock()
	waiting, closed := len(l.ctl), l.closed
	l.mu.Unlock()
	l.parting = !closed && waiting == 0 && l.tx.left == 0
	return l.parting || closed
}

// mayBeGoodbye reports whether a lane broke in a way in which the end of the peer's transport can show: its connection was
// closed, or reset because bytes came after that. What our own kernel ended was no goodbye.
func mayBeGoodbye(cause *errs.Error) bool {
	var errno unix.Errno
	return cause.Code == errs.Lost && (!errors.As(cause, &errno) || errno == unix.ECONNRESET || errno == unix.EPIPE)
}

// hearsGoodbye looks into the sockets of the link once more: where one has just broken, the reason may lie unread in it
// or beside it. Only the link's goroutine calls it.
func (l *link) hearsGoodbye() bool {
	w := l.t.borrow()
	defer l.t.give(w)
	for _, r := range *l.rails.Load() {
		if r.set != nil {
			r.set.each(func(lane *lane) { lane.lastLook(w) })
		}
	}
	return l.bye.Load()
}

// lastLook reads what a lane holds. A healthy one that somebody reads is left to its reader.
func (l *lane) lastLook(w *worker) {
	closed := l.isClosed()
	if closed {
		l.readMu.Lock()
	} else if !l.readMu.TryLock() {
		return
	}
	for turns, n := 0, 1; n > 0 && turns < 64; turns++ {
		n, _ = l.drain(w, workerBudget)
	}
	l.readMu.Unlock()
	if !closed {
		l.arm()
	}
}

// part ends a link whose peer has said goodbye: in order, but for what is outstanding. The cause wraps EngineClosed, by
// which it is told from a failure.
func (l *link) part(now clock.Time) {
	if l.dead != nil || l.left.Load() {
		return
	}
	l.bye.Store(true)
	why := errs.New(errs.EngineClosed, "", "the peer has closed its engine")
	cause := errs.Wrap(errs.PeerUnreachable, "tcp.link", why).WithScope(errs.ScopeLink, errs.SideRemote).
		WithPeer(l.peer.Address, Name, "")
	for _, r := range *l.rails.Load() {
		if r.set == nil {
			continue
		}
		r.set.each(func(lane *lane) {
			lane.broke(cause)
			lane.mu.Lock()
			lane.cause = cause
			lane.mu.Unlock()
		})
		l.railDown(r, cause, now)
	}
	l.die(cause, now)
}
