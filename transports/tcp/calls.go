package tcp

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// callTimeout bounds one call over the control plane. Two of them and a refused dial fit well into the second within
// which all peers must know that a process was killed.
const callTimeout = 400 * time.Millisecond

// enquire asks to be let in, or, while no rail is up, whether the peer is still there. It returns when it is due again.
func (l *link) enquire(now clock.Time) clock.Time {
	switch {
	case l.calling || (l.known && l.anyUp()):
		return clock.Never
	case now < l.callDue:
		return l.callDue
	}
	if !l.known {
		l.callPeer(l.hello(), l.offerCame)
	} else {
		l.callPeer(l.question(), l.answerCame)
	}
	return clock.Never
}

// answerTaker takes the answer to a call, behind its version and its owner.
type answerTaker func(r *kit.Reader, owner transport.ID, now clock.Time) error

// callPeer makes a call on a goroutine of its own and hands its answer to then on the link's.
func (l *link) callPeer(message []byte, then answerTaker) {
	l.calling = l.t.spawn(func() {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		answer, err := l.t.ask(ctx, l.peer, message)
		l.runOnLink(func(now clock.Time) { l.callEnded(answer, err, then, now) })
	})
}

// ask is Host.Call, of which somebody waits for the end.
func (t *Transport) ask(ctx context.Context, peer transport.Peer, message []byte) (answer []byte, err error) {
	defer t.caught("tcp.call", &err)
	return t.host.Call(ctx, peer, message)
}

func (l *link) callEnded(answer []byte, err error, then answerTaker, now clock.Time) {
	l.calling = false
	l.callDue = now.Add(pause(l.callTries))
	l.callTries++
	r := kit.NewReader(answer)
	if err == nil {
		v, owner := r.U8(), r.ID()
		switch {
		case r.Short() || v != l.spoken:
			err = errs.New(errs.Protocol, "tcp.attach", "peer speaks version %d of the tcp transport, this is %d",
				v, l.spoken)
		case !l.peer.ID.IsZero() && owner != l.peer.ID:
			err = errs.New(errs.PeerRestarted, "tcp.attach", "another incarnation answers")
		default:
			err = then(r, owner, now)
		}
	}
	if l.callErr = err; l.state == linkDead {
		return
	}
	if err == nil {
		if cause := l.dialError(); cause != nil && l.known {
			l.reportDown(cause)
		}
		return
	}
	cause := *errs.From("tcp.attach", err)
	if cause.Code == errs.EngineClosed && cause.Side == errs.SideRemote { // the control plane of a peer ends last
		cause = *errs.Wrap(errs.PeerUnreachable, "tcp.attach", err).WithScope(errs.ScopeLink, errs.SideRemote)
	}
	cause.Scope = errs.ScopeLink
	if cause.Peer == "" {
		cause.Peer, cause.Transport = l.peer.Address, Name
	}
	if cause.Code == errs.PeerUnreachable && cause.Side != errs.SideRemote {
		cause.Code = errs.Timeout // nothing was heard, which proves nothing
	}
	// A process that has ended breaks all rails, and then it is asked again. This may be the first that is heard of the
	// peer: silence may have been reported already.
	if cause.EndsPeer() && (cause.Code == errs.PeerRestarted || !l.anyUp()) {
		cause.Side = errs.SideRemote
		l.die(&cause, now)
		return
	}
	if l.checkGone(now); l.state != linkDead {
		l.reportDown(&cause)
	}
}

// hello asks to be let in.
func (l *link) hello() []byte {
	if l.spoken == versionFirst {
		return []byte{l.spoken, callHello}
	}
	return []byte{l.spoken, callHello, byte(l.t.self.Protects), byte(ownSuite())}
}

// offerCame takes the answer to a hello: rails are made of the addresses, or get new ports.
func (l *link) offerCame(r *kit.Reader, owner transport.ID, now clock.Time) error {
	o, err := readOffer(r, l.spoken, owner)
	if err != nil {
		return errs.Wrap(errs.Protocol, "tcp.attach", err)
	}
	if least := l.t.self.Protects; o.shield.protection < least {
		return errs.New(errs.NoRoute, "tcp.attach", "the peer offers lanes of protection %v, security/data here "+
			"is %v", o.shield.protection, least)
	}
	if most := l.t.settings.SliceBytes; o.bytes < most {
		return errs.New(errs.NoRoute, "tcp.attach", "the peer takes READs of %d bytes at once, our slices have "+
			"up to %d", o.bytes, most).
			WithHint("make transports/tcp/credit_bytes there at least transports/tcp/slice_bytes here")
	}
	pairs := l.t.pairsTo(o.addresses, o.network == l.t.self.Network && isHere(l.peer.Address))
	if len(pairs) == 0 {
		return l.t.noPair(o.addresses)
	}
	rails := append([]*rail(nil), *l.rails.Load()...)
	for i, p := range pairs {
		if i == len(rails) {
			rails = append(rails, &rail{link: l, index: uint16(i), since: now})
		}
		if r := rails[i]; r.set == nil && r.dial == nil {
			r.local, r.remote, r.alternate, r.due = p.local, p.remote, p.alternate, now
			r.routed = !l.t.named()
		}
	}
	l.rails.Store(&rails)
	l.forgetEnds(rails)
	l.offer, l.known, l.callTries = o, true, 0
	l.mu.Lock()
	l.key = o.attachment
	l.mu.Unlock()
	return nil
}

// question asks about everything that is open; with nothing open it asks only whether the peer is there. The last
// question of a link that was detached ends with LEAVE: the peer forgets the link after its answer.
func (l *link) question() []byte {
	b := append([]byte{l.spoken, callAsk}, l.offer.attachment[:]...)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.openFrames() {
		if len(b) >= answerMax/4 {
			return b
		}
		b = appendFrame(b, f.header, f.records...)
	}
	if l.state == linkLeaving {
		b = appendFrame(b, header{kind: kindLeave})
	}
	return b
}

func (l *link) answerCame(r *kit.Reader, _ transport.ID, now clock.Time) error {
	w := l.t.borrow()
	defer l.t.giveBack(w)
	if r.U8() == 0 {
		if r.Short() {
			return errShort
		}
		for _, lane := range l.inDoubt() { // the peer has no lane of ours, so nothing can land any more
			l.fenced(lane.id, []record{{}}, w)
		}
		l.known, l.callDue = false, now
		return nil
	}
	return readFrames(r, func(h header, table []record) error {
		switch {
		case h.kind == kindConfirm:
			if lane := l.laneById(h.seq); lane != nil {
				for _, r := range table {
					lane.confirmed(w, r.id, r.length)
				}
			}
		case h.kind == kindFenced && h.count > 0:
			l.fenced(h.seq, table, w)
		default:
			return errors.New("unexpected " + h.kind.String())
		}
		return nil
	})
}

func (l *link) anyUp() bool {
	for _, r := range *l.rails.Load() {
		if r.set != nil {
			return true
		}
	}
	return false
}

// checkGone decides that the peer's process has ended: it lets no lane in, and the control plane gets no answer either.
// Listeners are closed after the last lane (see Close), so a refused dial proves that nobody reads our lanes any more.
func (l *link) checkGone(now clock.Time) {
	if !l.known || l.state == linkDead || l.callErr == nil || l.anyUp() {
		return
	}
	for _, r := range *l.rails.Load() {
		if errors.Is(r.lastErr, unix.ECONNREFUSED) {
			l.die(l.attribute(errs.New(errs.PeerUnreachable, "tcp.link",
				"peer's process has ended: data port refuses, control says %v", l.callErr).
				WithScope(errs.ScopeLink, errs.SideRemote)), now)
			return
		}
	}
}

// die ends a link after its peer has ended: nothing can land there any more, so everything completes.
func (l *link) die(cause *errs.Error, now clock.Time) {
	l.advance(linkPeerGone)
	l.deadBy = cause
	l.allRailsDown(cause, now)
	l.giveUp(cause)
	if !l.left.Load() {
		l.t.sink.LinkDown(l.number, cause)
	}
}

// reportDown reports, once until a rail comes up, that no rail can be had.
func (l *link) reportDown(cause *errs.Error) {
	if l.state == linkDown || !l.serves() || l.anyUp() {
		return
	}
	for _, r := range *l.rails.Load() {
		if r.tries < 2 && !r.alternate {
			return // still being tried; the first failure may be that of a peer that is just ending
		}
	}
	l.advance(linkNoAnswer)
	l.t.sink.LinkDown(l.number, cause)
}
