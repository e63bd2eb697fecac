package engine

import (
	"context"
	"strings"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
)

// connectLook is how often Connect looks whether a rail has come up.
const connectLook = time.Millisecond

// Connect makes a segment ready for its first transfer, and returns when a rail to the peer is up on any transport that
// carries bytes. A segment that was opened by a blob asks its peer for regions and addresses now; else its first
// transfer does. It fails when every transport has refused, and when the context ends.
func (e *Engine) Connect(ctx context.Context, id SegmentID) error {
	if err := e.usable(); err != nil {
		return err
	}
	h, failure := e.segments.get(id)
	if failure != nil {
		return failure
	}
	if err := h.peer.join(ctx); err != nil {
		return err
	}
	if err := h.peer.unreachable("connect"); err != nil {
		return err
	}
	look := time.NewTicker(connectLook)
	defer look.Stop()
	for {
		up, reasons, waits := e.linksOf(h.peer)
		if up {
			return nil
		}
		if cause := h.peer.gone.Load(); cause != nil {
			return cause
		}
		if !waits {
			return unconnected(h.peer, errs.NoRoute, "no transport can carry bytes to this peer", reasons)
		}
		select {
		case <-ctx.Done():
			return unconnected(h.peer, errs.PeerUnreachable, "no rail came up in the time given", reasons)
		case <-look.C:
		}
	}
}

// linksOf reports whether a link of the peer has a rail, whether one may get it, and the state of each.
func (e *Engine) linksOf(p *peer) (up bool, reasons []string, waits bool) {
	e.mu.Lock()
	defer e.unlockAndDrain()
	for i, a := range *p.links.Load() {
		if e.ports[i].info.Delegates { // orders carry no bytes
			continue
		}
		if a.id == 0 {
			if a.why != "" && e.ports[i].transport != nil && p.misfit(&e.ports[i].info) == "" {
				reasons = append(reasons, e.ports[i].name+": "+a.why)
			}
			continue
		}
		if e.core.Up(a.id) {
			return true, nil, true
		}
		view := e.core.Link(a.id)
		why := view.State
		if view.Down != nil {
			why = view.Down.Error()
		}
		waits = waits || view.Down == nil || !view.Down.Permanent()
		reasons = append(reasons, e.ports[i].name+": "+why)
	}
	return false, reasons, waits
}

func unconnected(p *peer, code errs.Code, what string, reasons []string) error {
	if len(reasons) > 0 {
		what += ": " + strings.Join(reasons, "; ")
	}
	return errs.New(code, "connect", "%s", what).WithScope(errs.ScopeLink, errs.SidePath).
		OfPeer(p.identity.Address)
}
