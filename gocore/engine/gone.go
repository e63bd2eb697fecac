package engine

import (
	"errors"
	"syscall"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// peerGone ends a peer: its process or incarnation is over, nothing of it can land any more. Any goroutine may call it.
func (e *Engine) peerGone(p *peer, cause *errs.Error) {
	e.mu.Lock()
	heard := e.core.LastHeard(p.number, clock.Now())
	e.unlockAndDrain()
	cause = goneError(cause, heard)
	if !p.gone.CompareAndSwap(nil, cause) {
		return
	}
	e.notice(notice{kind: noticePeerGone, peer: p.number, cause: cause})
	e.notifier.gone(p, cause)
}

// goneError says how the end of a peer is known, and when it was last heard. Hints about its address belong to the call
// that opens it: this one has led there.
func goneError(cause *errs.Error, heard string) *errs.Error {
	gone := *cause
	gone.Op, gone.Err, gone.Cause = "peer", cause, "the peer has gone: "+proof(cause)+", "+heard
	if errors.Is(cause, notAdmitted) {
		gone.Code = errs.PeerNotAdmitted
	}
	if gone.Code != errs.PeerRestarted {
		gone.Hint = ""
	}
	return &gone
}

// notAdmitted is in the cause of a link that its peer has ended because it does not admit us any more.
var notAdmitted = &errs.Error{Code: errs.PeerNotAdmitted}

// proof names the sign that proves the end of a peer.
func proof(cause *errs.Error) string {
	switch {
	case errors.Is(cause, &errs.Error{Code: errs.EngineClosed}):
		return "it has closed its engine"
	case errors.Is(cause, notAdmitted):
		return "it does not admit this engine any more"
	case cause.Code == errs.PeerRestarted:
		return "another incarnation answers at its address"
	case errors.Is(cause, syscall.ECONNREFUSED):
		return "its host refuses connections"
	case errors.Is(cause, syscall.ECONNRESET):
		return "its host resets connections"
	}
	return cause.Cause
}
