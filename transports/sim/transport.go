package sim

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Factory opens transports of one network.
type Factory struct{ Settings Settings }

// Name is the name in the settings.
func (f Factory) Name() string { return f.Settings.withDefaults().Name }

// Check wants a network.
func (f Factory) Check() error {
	if f.Settings.Network == nil {
		return errs.New(errs.InvalidArgument, "sim", "no network").WithHint("set sim.Settings.Network")
	}
	return nil
}

// Open opens a transport for the engine that host describes. config is a Settings value, or nil for the factory's own.
func (f Factory) Open(_ context.Context, config any, host transport.Host,
	sink transport.Sink) (transport.Transport, error) {
	if own, ok := config.(Settings); ok {
		f.Settings = own
	} else if config != nil {
		return nil, errs.New(errs.InvalidArgument, "sim.open", "the settings are a %T, not a sim.Settings", config)
	}
	if err := f.Check(); err != nil {
		return nil, err
	}
	s := f.Settings.withDefaults()
	n := s.Network
	n.mu.Lock()
	defer n.leave()
	t := &Transport{network: n, name: s.Name, settings: s, self: host.Self(), host: host, sink: sink, open: true}
	if n.find(t.name, t.self.Address, transport.ID{}) != nil {
		return nil, errs.New(errs.InvalidArgument, "sim.open", "%s is in use by another %s of this network",
			t.self.Address, t.name)
	}
	n.nodes = append(n.nodes, t)
	n.posts = n.posts || s.Posts > 0
	if s.Inline {
		return &inliner{t}, nil
	}
	return t, nil
}

// Transport is one engine's end of the network. The network's mutex guards its fields.
type Transport struct {
	network  *Network
	name     string
	settings Settings
	self     transport.Peer
	host     transport.Host
	sink     transport.Sink
	mute     mute
	flushes  atomic.Uint64

	open     bool
	stopped  bool
	held     []event    // while stopped
	heldNews []delivery // while stopped
	pending  int        // deliveries not made yet
	links    kit.Links[link]
	order    []*link // links, in the order of Attach
	regions  kit.Slots[transport.LocalKey, region]
	attempts []*attempt
	free     []*attempt
}

var (
	_ transport.Transport = (*Transport)(nil)
	_ transport.Notifier  = (*Transport)(nil)
	_ transport.Prober    = (*Transport)(nil)
	_ transport.Matcher   = (*Transport)(nil)
	_ transport.Explainer = (*Transport)(nil)
	_ transport.Filer     = (*Transport)(nil) // where Info.Files
)

// find returns the open transport of a name at an address; the one of that ID, unless it is zero.
func (n *Network) find(name, address string, id transport.ID) *Transport {
	for _, t := range n.nodes {
		if t.name == name && t.self.Address == address && (id.IsZero() || t.self.ID == id) {
			return t
		}
	}
	return nil
}

// Info follows from the settings.
func (t *Transport) Info() transport.Info {
	s := &t.settings
	return transport.Info{Name: t.name, Pairs: s.Pairs, Vectors: s.Vectors, Files: s.Files, Checksums: true,
		SameHost: s.SameHost, Pins: s.Pins, Replaces: true, SliceMax: s.SliceMax, SliceBest: s.SliceBest,
		Alignment: s.Alignment, SlicesMax: s.SlicesMax}
}

// Register fails only where Settings.Registering does, while the transport is open.
func (t *Transport) Register(ctx context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	if t.settings.Registering != nil {
		if err := t.settings.Registering(ctx, m); err != nil {
			return 0, nil, err
		}
	}
	t.network.mu.Lock()
	defer t.network.leave()
	if !t.open {
		return 0, nil, kit.Closed("sim.register")
	}
	if info := t.Info(); !info.Uses(m.Kind) {
		return 0, nil, errs.New(errs.NotHere, "sim.register", "%v memory is in none of its pairs", m.Kind)
	}
	r := &region{Region: m}
	if t.settings.Holds {
		if err := r.hold(); err != nil {
			return 0, nil, err
		}
	}
	t.keep(r)
	return r.key, t.encode(r), nil
}

// keep gives a region its key.
func (t *Transport) keep(r *region) *region {
	t.regions.Insert(func(key transport.LocalKey) *region { r.key = key; return r })
	return r
}

// Revoke is immediate: nothing lands without the network's mutex. Peers hear of an epoch after the delay of their
// paths, for nobody can wait in virtual time.
func (t *Transport) Revoke(_ context.Context, key transport.LocalKey, peer *transport.Peer,
	epoch transport.Epoch) error {
	t.network.mu.Lock()
	defer t.network.leave()
	r := t.regions.Lookup(key)
	if r == nil {
		return errs.New(errs.AddressNotRegistered, "sim.revoke", "key %d is not registered", key)
	}
	r.door.Shut(peer, epoch)
	if epoch != transport.ForGood {
		t.spread(key, peer, epoch)
	}
	return nil
}

// spread sends the news of a fence to the peers that imported the region.
func (t *Transport) spread(key transport.LocalKey, peer *transport.Peer, epoch transport.Epoch) {
	for _, other := range t.network.nodes {
		if peer != nil && peer.ID != other.self.ID {
			continue
		}
		for _, l := range other.order {
			if l.target() != t {
				continue
			}
			t.network.schedule(event{node: other, link: l, do: func() { l.fenced(key, epoch) }}, l.delay())
		}
	}
}

// fenced is the news at a peer: of the epoch, and of each key by which it knows the region.
func (l *link) fenced(key transport.LocalKey, epoch transport.Epoch) {
	keys := []transport.RemoteKey{0}
	for remote, name := range l.imports.All() {
		if name.key == key {
			keys = append(keys, remote)
		}
	}
	t := l.owner
	for _, remote := range keys[min(1, len(keys)-1):] {
		t.emit(delivery{news: called, do: func() { t.sink.Fenced(l.id, remote, epoch) }})
	}
}

// Deregister ends a region; slices that still come for it are refused.
func (t *Transport) Deregister(_ context.Context, key transport.LocalKey) error {
	t.network.mu.Lock()
	defer t.network.leave()
	r := t.regions.Lookup(key)
	if r == nil {
		return errs.New(errs.AddressNotRegistered, "sim.deregister", "key %d is not registered", key)
	}
	t.regions.Delete(key)
	r.letGo()
	return nil
}

// Attach dials in virtual time.
func (t *Transport) Attach(peer transport.Peer) (transport.Link, error) {
	n := t.network
	n.mu.Lock()
	defer n.leave()
	if !t.open {
		return 0, kit.Closed("sim.attach")
	}
	if isFile(peer) != t.settings.Files {
		return 0, errs.New(errs.InvalidArgument, "sim.attach", "%s is not a peer of this transport", peer.Address)
	}
	l := &link{owner: t, peer: peer}
	if _, err := t.links.Attach("sim.attach", func(id transport.Link) *link { l.id = id; return l }); err != nil {
		return 0, err
	}
	for i := range t.settings.Rails {
		r := &rail{link: l, path: n.path(t.name, t.self.Address, peer.Address, i)}
		r.path.rails = append(r.path.rails, r)
		l.rails = append(l.rails, r)
	}
	t.order = append(t.order, l)
	n.schedule(event{link: l, do: l.dial}, l.delay())
	n.schedule(event{do: l.late}, max(dialLimit, 4*l.delay()))
	return l.id, nil
}

// Import gives the same key for the same descriptor.
func (t *Transport) Import(id transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	t.network.mu.Lock()
	defer t.network.leave()
	l := t.links.Lookup(id)
	if l == nil {
		return 0, errs.New(errs.Stale, "sim.import", "link %v has ended", id)
	}
	name, err := l.decode(d)
	if err != nil {
		return 0, err
	}
	for key, known := range l.imports.All() {
		if *known == name {
			return key, nil
		}
	}
	return l.imports.Insert(func(transport.RemoteKey) *imported { return &name }), nil
}

// Forget implements transport.Transport.
func (t *Transport) Forget(id transport.Link, key transport.RemoteKey) {
	t.network.mu.Lock()
	defer t.network.leave()
	if l := t.links.Lookup(id); l != nil {
		l.imports.Delete(key)
	}
}

// Detach completes outstanding slices at once, where the peer can be told; the rest when it can.
func (t *Transport) Detach(id transport.Link) {
	t.network.mu.Lock()
	defer t.network.leave()
	if l := t.links.Detach(id); l != nil {
		t.detach(l)
	}
}

func (t *Transport) detach(l *link) {
	l.detached = true
	t.order = slices.DeleteFunc(t.order, func(other *link) bool { return other == l })
	l.finishCalls(errs.New(errs.Canceled, "sim", "the link was detached").WithScope(errs.ScopeLink, errs.SideLocal))
	to, left := l.target(), false
	told := to == nil || (!to.stopped && l.reachable(to))
	for _, r := range l.rails {
		r.stop()
	}
	for _, a := range t.attempts {
		switch {
		case a.slice == nil || a.rail.link != l:
		case told:
			a.complete(a.withdrawn())
		default:
			a.withdraw()
			left = left || a.slice != nil
		}
	}
	if !left {
		l.unhook()
	}
}

// Submit accepts up to SlicesMax outstanding slices of a rail.
func (t *Transport) Submit(list []*transport.Slice) int {
	if len(list) == 0 {
		return 0
	}
	n := t.network
	n.mu.Lock()
	defer n.leave()
	r := t.rail(list[0].Rail)
	if r == nil {
		return 0
	}
	take := min(len(list), t.settings.SlicesMax-r.outstanding)
	if n.chance(r.path.shape.Refuse) {
		take = n.random.IntN(take + 1)
		if generation := r.generation; take < len(list) && r.outstanding+take == 0 { // no completion will bring Ready
			n.schedule(event{do: func() {
				if r.up && r.generation == generation && r.owesReady {
					r.owesReady = false
					t.emit(delivery{news: ready, rail: r.name()})
				}
			}}, clock.Time(r.path.shape.Delay)+1)
		}
	}
	for _, s := range list[:take] {
		t.accept(r, s)
	}
	r.owesReady = r.owesReady || take < len(list)
	r.pump()
	return take
}

// rail finds a rail that is up in exactly this generation.
func (t *Transport) rail(name transport.Rail) *rail {
	l := t.links.Lookup(name.Link)
	if l == nil || int(name.Index) >= len(l.rails) {
		return nil
	}
	if r := l.rails[name.Index]; r.up && r.generation == name.Generation {
		return r
	}
	return nil
}

// Withdraw asks the peer, over any rail unless Settings.WithdrawOnRail.
func (t *Transport) Withdraw(list []*transport.Slice) {
	t.network.mu.Lock()
	defer t.network.leave()
	for _, s := range list {
		if a := t.attempt(s); a != nil {
			a.withdraw()
		}
	}
}

// Fence takes the rail down and asks for all of its slices. It comes up again when all have ended.
func (t *Transport) Fence(name transport.Rail) {
	t.network.mu.Lock()
	defer t.network.leave()
	r := t.rail(name)
	if r == nil {
		return
	}
	r.goDown(nil)
	for _, a := range t.attempts {
		if a.slice != nil && a.rail == r {
			a.withdraw()
		}
	}
	r.comeUp()
}

// Serve answers nothing: a simulated peer is reached over the network alone.
func (t *Transport) Serve(context.Context, transport.Peer, []byte) ([]byte, error) {
	return nil, errs.New(errs.NotImplemented, "sim.serve", "a simulated transport takes no calls")
}

// Close completes the slices that can be completed, says so to the peers, and returns when the sink has heard
// everything. No sink may call it.
func (t *Transport) Close(context.Context) error {
	n := t.network
	n.mu.Lock()
	if t.open {
		t.end(errs.New(errs.PeerUnreachable, "sim", "the peer has closed").WithScope(errs.ScopeLink, errs.SideRemote).
			WithPeer(t.self.Address, t.name, ""))
	}
	n.leave()
	n.mu.Lock()
	for t.pending > 0 {
		n.quiet.Wait()
	}
	n.mu.Unlock()
	return nil
}

// end takes the transport off the network; peers learn the cause after the delay of their paths.
func (t *Transport) end(cause *errs.Error) {
	n := t.network
	for len(t.order) > 0 {
		l := t.order[0]
		t.links.Detach(l.id)
		t.detach(l)
	}
	n.theDisk().abandon(t)
	t.open, t.held, t.heldNews = false, nil, nil
	for key := range t.regions.All() {
		t.regions.Delete(key)
	}
	for _, a := range t.attempts {
		a.life, a.slice = 0, nil // an unproved slice: nothing of it moves any more
	}
	n.nodes = slices.DeleteFunc(n.nodes, func(other *Transport) bool { return other == t })
	for _, other := range n.nodes {
		for _, l := range other.order {
			if l.peer.Address == t.self.Address && l.peer.ID == t.self.ID && other.name == t.name {
				n.schedule(event{node: other, link: l, do: func() { l.fail(cause) }}, l.delay())
			}
		}
	}
}

// Stale implements transport.Transport.
func (t *Transport) Stale() uint64 { return t.links.Stale() }

// Explain lists the rails of a link.
func (t *Transport) Explain(id transport.Link) string {
	t.network.mu.Lock()
	defer t.network.mu.Unlock()
	if l := t.links.Lookup(id); l != nil {
		return l.explain()
	}
	return ""
}
