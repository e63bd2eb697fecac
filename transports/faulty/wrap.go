package faulty

import (
	"context"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Wrap puts a plan's faults into the transports of a factory. Without a plan the factory stays as it is.
func Wrap(factory transport.Factory, plan *Plan) transport.Factory {
	if plan == nil {
		return factory
	}
	return wrapped{factory, plan}
}

type wrapped struct {
	transport.Factory
	plan *Plan
}

// Open opens the inner transport, unless the plan says fail_install.
func (w wrapped) Open(ctx context.Context, config any, host transport.Host,
	sink transport.Sink) (transport.Transport, error) {
	for _, r := range w.plan.current() {
		if r.verb == failInstall && (r.transport == "" || r.transport == w.Name()) {
			r.hits.Add(1)
			return nil, errs.New(errs.DeviceNotFound, "faulty", "injected by %q", r.text).
				WithScope(errs.ScopeTransport, errs.SideLocal)
		}
	}
	t := &Transport{plan: w.plan, name: w.Name(), sink: sink, ledger: newLedger(), peers: map[transport.Link]string{},
		rails: map[path]*rail{},
		held:  map[*transport.Slice]*hold{}, asked: map[*transport.Slice]uint64{},
		errands:  map[*transport.Slice]*errand{},
		errandOf: map[*transport.Slice]*errand{}, paces: map[lane]clock.Time{}, devices: map[transport.LocalKey]bool{}}
	inner, err := w.Factory.Open(ctx, config, host, t.listen())
	if err != nil {
		return nil, err
	}
	t.Transport, t.alignment = inner, max(1, inner.Info().Alignment)
	t.inliner, _ = transport.Find[transport.Inliner](inner)
	t.filer, _ = transport.Find[transport.Filer](inner)
	t.prober, _ = transport.Find[transport.Prober](inner)
	t.witness, _ = transport.Find[transport.Witness](inner)
	if rules, _, _ := t.Injected(); rules > 0 {
		host.Log().Warn("faults are injected", "faults", w.plan.String())
	}
	t.later.start()
	if err := w.plan.join(ctx, t); err != nil {
		_ = t.Close(ctx) // the first error is the one to tell
		return nil, err
	}
	return t, nil
}

// Register fails where a rule says so, and remembers memory of devices.
func (t *Transport) Register(ctx context.Context, region mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	if r := t.atCall(failRegister, ""); r != nil {
		return 0, nil, r.error("", t.name).WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	key, descriptor, err := t.Transport.Register(ctx, region)
	if err == nil && region.Kind != mem.Host {
		t.mu.Lock()
		t.devices[key] = true
		t.mu.Unlock()
	}
	return key, descriptor, err
}

// Deregister forgets the region.
func (t *Transport) Deregister(ctx context.Context, key transport.LocalKey) error {
	t.mu.Lock()
	delete(t.devices, key)
	t.mu.Unlock()
	return t.Transport.Deregister(ctx, key)
}

// Attach fails where a rule says so, and remembers the peer of the link, for the selector peer=.
func (t *Transport) Attach(peer transport.Peer) (transport.Link, error) {
	if r := t.atCall(failAttach, peer.Address); r != nil {
		return 0, r.error(peer.Address, t.name).WithScope(errs.ScopeLink, errs.SidePath)
	}
	link, err := t.Transport.Attach(peer)
	if err == nil {
		t.mu.Lock()
		t.peers[link] = peer.Address
		t.mu.Unlock()
		if t.plan.rules.Load() != nil {
			t.changed() // rails that came up before Attach returned may have to go down: now their peer is known
		}
	}
	return link, err
}

// atCall says which rule of a kind hits a call for a peer, nil if none does.
func (t *Transport) atCall(v verb, peer string) *rule {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.plan.current() {
		if r.verb == v && t.mine(r) && (r.peer == "" || r.peer == peer) && t.ledger.call(r) {
			return r
		}
	}
	return nil
}

// Detach gives back held slices of the link.
func (t *Transport) Detach(link transport.Link) {
	t.end(func(l transport.Link) bool { return l == link })
	t.Transport.Detach(link)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.peers, link)
	for p, r := range t.rails {
		if p.link == link {
			if r.hidden != nil {
				t.engaged.Add(-1)
			}
			delete(t.rails, p)
		}
	}
}

// Close ends all faults first, then the inner transport, then delayed functions.
func (t *Transport) Close(ctx context.Context) error {
	t.plan.leave(t)
	t.mu.Lock()
	t.closing = true
	t.mu.Unlock()
	t.touching.Store(false)
	t.end(func(transport.Link) bool { return true })
	scratch := t.dropScratch(ctx)
	err := t.Transport.Close(ctx)
	t.later.stop()
	if err == nil {
		err = scratch
	}
	return err
}

// end lets nothing more be accepted on links, and gives back their held slices.
func (t *Transport) end(ending func(transport.Link) bool) {
	t.mu.Lock()
	for p, r := range t.rails {
		if ending(p.link) {
			r.up = false
		}
	}
	mine := t.takeAll(errs.Withdrawn, errs.ScopeSlice,
		func(s *transport.Slice, _ *hold) bool { return ending(s.Rail.Link) })
	t.mu.Unlock()
	t.complete(mine)
}
