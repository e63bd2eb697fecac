package engine

import (
	"context"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// adopt makes an opened transport the port's, with the optional interfaces that it has.
func (p *port) adopt(opened transport.Transport) {
	e := p.engine
	p.transport, p.reason = opened, ""
	info := opened.Info()
	e.infos[p.index] = info
	p.own, p.earlier = nil, nil
	if info.Replaces || info.Delegates {
		p.own, p.earlier = map[transport.LocalKey]*region{}, map[transport.LocalKey]transport.Descriptor{}
	}
	p.lookForOptions()
	p.notifier, _ = transport.Find[transport.Notifier](opened)
	p.filer = nil
	if info.Files {
		p.filer, _ = transport.Find[transport.Filer](opened)
	}
	e.inliners[p.index], _ = transport.Find[transport.Inliner](opened)
}

// gatherPollers lists the transports that waiters look after, by how they do it.
func (e *Engine) gatherPollers() {
	e.pollers, e.copiers, e.parkers, e.exclusives = nil, nil, nil, nil
	for _, p := range e.ports {
		if parker, ok := transport.Find[transport.Parker](p.transport); ok {
			exclusive, _ := transport.Find[transport.Exclusive](p.transport)
			e.parkers, e.exclusives = append(e.parkers, parker), append(e.exclusives, exclusive)
		}
		switch poller, ok := transport.Find[transport.Poller](p.transport); {
		case !ok:
		case e.infos[p.index].Copies:
			e.copiers = append(e.copiers, poller)
		default:
			e.pollers = append(e.pollers, poller)
		}
	}
}

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
	p.transport = nil
	opened, err := plug.Factory.Open(ctx, plug.Settings, p, p)
	if err != nil {
		p.reason = "swapped for a test, and not opened: " + err.Error()
		e.infos[p.index] = transport.Info{Name: p.name}
		e.inliners[p.index] = nil
	} else {
		p.adopt(opened)
	}
	e.gatherPollers()
	return err
}

// portNamed returns the port of a transport, nil if there is none.
func (e *Engine) portNamed(name string) *port {
	for _, p := range e.ports {
		if p.name == name {
			return p
		}
	}
	return nil
}

// attachedAny reports whether the port has a link.
func (p *port) attachedAny() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links) > 0
}
