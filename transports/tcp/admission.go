package tcp

import (
	"crypto/hmac"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// admission is the part of a handshake that the responder remembers between HELLO and PROOF.
type admission struct {
	attachment *attachment
	greeting   greeting
	expected   mac // the only PROOF that is right
	seen       transcript
}

// helloCame checks the first frame of a lane and answers with the challenge.
func (l *responderLane) helloCame() *errs.Error {
	g := getGreeting(l.rx.body)
	switch {
	case g.magic != magic:
		return l.refuse(transport.RefusedMalformed, "not the greeting of a lane")
	case g.version < versionFirst || g.version > version:
		return l.refuse(transport.RefusedVersion, "lane of version %d of the tcp transport, this is %v", g.version,
			l.t.versions())
	case g.group >= groupCount:
		return l.refuse(transport.RefusedMalformed, "greeting of class group %d", g.group)
	}
	l.findEnd()
	a, dropped, err := l.t.attachments.expect(l, g.attachment, l.rx.head.seq)
	if err != nil {
		return err
	}
	if dropped != nil {
		l.rx.worker.dropped = append(l.rx.worker.dropped, dropped)
	}
	t := transcript{hello: make([]byte, helloSize), nonce: newNonce(), initiator: a.peer.ID, responder: l.t.self.ID}
	l.rx.head.put(t.hello)
	copy(t.hello[headerBytes:], l.rx.body)
	l.admission = &admission{attachment: a, greeting: g, seen: t,
		expected: t.sign(&a.secret, byInitiator)}
	if !l.t.strangers.remove(l) { // after a challenge the peer would take the lane for open
		return l.protocolError("it was picked to go while its HELLO was read")
	}
	challenge := t.challenge(&a.secret)
	if n, err := unix.SendmsgN(l.fd, challenge, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); n != len(challenge) {
		return l.protocolError("the challenge could not be sent: %v", err) // an empty socket takes it all
	}
	return nil
}

// proofCame opens a lane that knows the secret of its attachment. Frames may follow right behind.
func (l *responderLane) proofCame() *errs.Error {
	x := l.admission
	if !hmac.Equal(l.rx.body, x.expected[:]) {
		return l.refuse(transport.RefusedProof, "the lane does not know the secret of its attachment")
	}
	a := x.attachment
	peer := &a.peer
	l.own, l.near, l.initiator = peer.Self, peer.MachineID == l.t.self.MachineID, peer.ID
	l.mayBuffer(x.seen.protect(&a.secret, a.shield, byResponder)) // from now on any thread may write, and reads these
	if err := l.t.attachments.admit(l, a); err != nil {
		return err
	}
	l.admission = nil
	if timer := l.greetBy.Swap(nil); timer != nil {
		timer.Stop()
	}
	if err := l.joinGroup(x.greeting.group); err != nil {
		return err
	}
	l.armMu.Lock()
	if l.fd >= 0 {
		setCongestion(l.fd, l.t.settings.Congestion, l.near)
	}
	l.armMu.Unlock()
	if epoch := l.t.epoch.Load(); epoch > 0 { // it may have missed some
		l.answerOrEnd(header{kind: kindRaised, seq: epoch})
	}
	l.dirty.Store(true) // for a fence that came before the buffers
	l.pump(submitBudget)
	return nil
}

// due is the only kind of frame that may come on a lane that has not proved itself, 0 on an open one. Holds readMu.
func (l *responderLane) due() kind {
	switch {
	case l.attachment.Load() != nil:
		return 0
	case l.admission != nil:
		return kindProof
	}
	return kindHello
}

// refuse counts a refusal and returns its error for our own log. The peer only sees the connection close.
func (l *responderLane) refuse(reason transport.Refusal, format string, args ...any) *errs.Error {
	err := l.protocolError(format, args...)
	l.t.host.Refused(reason, l.peerName(), err)
	return err
}
