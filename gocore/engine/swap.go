package engine

import (
	"context"

	"github.com/tent-engine/tent/gocore/errs"
)

// SwapTransportForTest closes the transport of a slot and opens another one in its place, under the slot's name. Plans,
// peers, settings of rails and metrics keep that name. It is the hook of the failover seed, for tests alone: it drives
// a failover between two transports where only one works, without passing over the choice of routes. Both engines of a
// pair need the same swap.
//
// The engine must be as Open returned it, without regions or attached peers, and no other call may run meanwhile;
// otherwise the error is InvalidArgument. Where the new one does not open, the slot stays empty and explanations give
// the reason.
func (e *Engine) SwapTransportForTest(ctx context.Context, slot string, plug Plug) error {
	if err := e.usable(); err != nil {
		return err
	}
	p := e.portNamed(slot)
	switch {
	case p == nil:
		return errs.New(errs.InvalidArgument, "swap", "there is no transport %q", slot)
	case e.regions.len() > 0 || p.attachedAny():
		return errs.New(errs.InvalidArgument, "swap", "the engine is in use already").
			WithHint("swap before anything is registered or opened")
	}
	if p.transport != nil {
		if err := p.transport.Close(ctx); err != nil {
			return err
		}
	}
	p.adopt(nil)
	opened, err := plug.Factory.Open(ctx, plug.Settings, p, p)
	if err != nil {
		p.reason = "swapped for a test, and not opened: " + err.Error()
	} else {
		p.adopt(opened)
	}
	e.pollers.gather(e.ports)
	return err
}

// attachedAny reports whether the port has a link.
func (p *port) attachedAny() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links) > 0
}
