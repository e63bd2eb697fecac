package cuda

import (
	"context"
	"errors"
	"iter"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/kit"
)

// Name stands in settings, metrics and errors.
const Name = "nvlink"

// Factory makes the transport; see transport.Factory.
type Factory struct{}

var (
	_ transport.Factory     = Factory{}
	_ transport.Configured  = Factory{}
	_ transport.Transport   = (*nvlink)(nil)
	_ transport.Poller      = (*nvlink)(nil)
	_ transport.Matcher     = (*nvlink)(nil)
	_ transport.EpochReader = (*nvlink)(nil)
	_ transport.Explainer   = (*nvlink)(nil)
	_ transport.Remapper    = (*nvlink)(nil)
	_ transport.Visited     = (*nvlink)(nil)
)

// Settings implements transport.Configured.
func (Factory) Settings() any { return Settings{} }

// Name returns "nvlink".
func (Factory) Name() string { return Name }

// Check returns why the driver cannot be used.
func (Factory) Check() error { return driver.Platform{}.Check() }

// Open starts the worker.
func (Factory) Open(_ context.Context, given any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	s, err := config.Settled[Settings](given, Name)
	if err != nil {
		return nil, err
	}
	if err := (driver.Platform{}).Check(); err != nil {
		return nil, err
	}
	t := &nvlink{settings: s}
	c := access.Config{Name: Name, Version: version, Regions: regionsMax, Host: host, Sink: sink, Life: &t.life,
		Own: t.own, Links: t.ends, Shut: t.shut, Serve: t.serveBlocks, Ended: t.offers.end}
	if s.Trust == trustNone {
		c.Trust = errors.New("transports/nvlink/trust is none")
	}
	if t.Point, err = access.Open(c); err != nil {
		return nil, err
	}
	if err := t.begun(Name, host, sink, s.Copying); err != nil {
		return nil, errors.Join(err, t.Point.Close(context.Background()))
	}
	return t, nil
}

// nvlink is one engine's transport. Any goroutine may call it.
type nvlink struct {
	copier
	*access.Point // peers that we let in, and our way in elsewhere

	settings Settings
	offers   offers
}

// own reports whether a peer is our own engine.
func (t *nvlink) own(peer transport.Peer) bool { return peer.Self && !t.settings.apart }

func (t *nvlink) Info() transport.Info {
	info := t.info()
	info.SameHost = true
	info.Pairs[mem.Cuda][mem.Host] = true
	return info
}

// Close ends links, then copies, then peers' pages. Nobody copies into our memory when it returns, or the error names
// our copy or the process that still does.
func (t *nvlink) Close(ctx context.Context) error {
	return t.end(ctx, t.Wait, func(ctx context.Context) error {
		err := t.Point.Close(ctx)
		t.offers.close()
		for _, r := range t.regions.All() {
			hosts.Delete(home{t.self.ID, *r.name.Load()})
		}
		return err
	})
}

// Serve answers a peer's transport.
func (t *nvlink) Serve(ctx context.Context, from transport.Peer, message []byte) ([]byte, error) {
	return t.Answer(ctx, from, message)
}

// ends yields the links.
func (t *nvlink) ends() iter.Seq[*access.Link] {
	return func(yield func(*access.Link) bool) {
		for _, l := range t.links.All() {
			if !yield(&l.way.(*neighbour).life) {
				return
			}
		}
	}
}

// shut yields the regions that were shut for a peer alone.
func (t *nvlink) shut(peer transport.ID) iter.Seq2[hazard.Region, transport.Epoch] {
	return func(yield func(hazard.Region, transport.Epoch) bool) {
		for _, r := range t.regions.All() {
			if epoch, was := r.door.Alone(peer); was && !yield(*r.name.Load(), epoch) {
				return
			}
		}
	}
}

// Register lists a region in our manifest. It costs nothing per byte: blocks are made when a peer asks for them.
func (t *nvlink) Register(_ context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	r, err := t.place(&m)
	if err != nil {
		return 0, nil, err
	}
	name, err := t.Table.Add()
	if err != nil {
		return 0, nil, err
	}
	t.keep(r)
	t.prepare(r)
	r.name.Store(&name)
	if r.ordinal < 0 {
		hosts.Store(home{t.self.ID, name}, &r.pinned)
	}
	t.list(r, name, false)
	key := t.regions.Insert(func(transport.LocalKey) *region { return r }) // has room: the hazard table had
	return key, descriptor(name, t.self.ID, r.ordinal), nil
}

// list writes a region's entry of our manifest under one of its names. An entry that is Named in there is replaced: the
// manifest has no word of its own for it, and memory of devices is in no file.
func (t *nvlink) list(r *region, name hazard.Region, replaced bool) {
	t.Manifest.Write(name.Index, name.Generation, &manifest.Region{Addr: uint64(r.Addr), Size: r.Size,
		Allows: r.Permission, Fixed: r.ReadOnly, Named: replaced})
}

// Revoke is the owner's fence, see access.Point.
func (t *nvlink) Revoke(ctx context.Context, key transport.LocalKey, peer *transport.Peer,
	epoch transport.Epoch) error {
	r := t.regions.Lookup(key)
	if r == nil {
		return kit.NoRegion("nvlink.revoke", key)
	}
	return t.Point.Revoke(ctx, &r.door, *r.name.Load(), peer, epoch)
}

// Remap implements transport.Remapper: peers of other processes have mapped the chunks of before. The region gets
// another name, under which they ask for the new ones; by the old name nothing moves any more. Memory of the host is
// mapped by nobody.
func (t *nvlink) Remap(ctx context.Context, key transport.LocalKey, _ transport.Remapped) error {
	r := t.regions.Lookup(key)
	if r == nil {
		return kit.NoRegion("nvlink.remap", key)
	}
	ctx, cancel := access.Bounded(ctx)
	defer cancel()
	if r.ordinal < 0 {
		return t.keepAnew(ctx, r)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.name.Load()
	name, err := t.Table.Succeed(old)
	if err != nil {
		return err
	}
	t.prepare(r)
	t.list(r, old, true) // before a copier is refused: it looks for the reason here
	t.list(r, name, false)
	r.name.Store(&name)
	r.old = append(r.old, old)
	t.Host.Describe(key, descriptor(name, t.self.ID, r.ordinal))
	return t.Table.Revoke(ctx, old, nil, hazard.ForGood) // copiers that are inside
}

// Deregister forgets a region. Peers that still name it are refused.
func (t *nvlink) Deregister(_ context.Context, key transport.LocalKey) error {
	r := t.regions.Delete(key)
	if r == nil {
		return kit.NoRegion("nvlink.deregister", key)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range append(r.old, *r.name.Load()) {
		hosts.Delete(home{t.self.ID, name})
		t.Manifest.Erase(name.Index) // before the index can be another region's
		t.Table.Remove(name)
	}
	return r.unkeep()
}
