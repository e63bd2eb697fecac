package cuda

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
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

// Bounds.
const (
	slicesMax  = 1024 // accepted and not completed, over all links
	sliceMax   = 1 << 20
	regionsMax = 1 << 16 // a page of a peer has a word for each; words that are not used cost nothing
)

// Factory makes the transport; see transport.Factory.
type Factory struct{}

var (
	_ transport.Factory     = Factory{}
	_ transport.Configured  = Factory{}
	_ transport.Transport   = (*cuda)(nil)
	_ transport.Poller      = (*cuda)(nil)
	_ transport.Matcher     = (*cuda)(nil)
	_ transport.EpochReader = (*cuda)(nil)
	_ transport.Explainer   = (*cuda)(nil)
	_ transport.Remapper    = (*cuda)(nil)
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
	t := &cuda{settings: s, self: host.Self()}
	c := access.Config{Name: Name, Version: version, Regions: regionsMax, Host: host, Sink: sink, Life: &t.life,
		Own: t.own, Links: t.ends, Shut: t.shut, Serve: t.serveBlocks, Ended: t.offers.end}
	if s.Trust == trustNone {
		c.Trust = errors.New("transports/nvlink/trust is none")
	}
	if t.Point, err = access.Open(c); err != nil {
		return nil, err
	}
	if err := t.StartPosting(slicesMax, sink, (*link).up, t.begin, t.ask); err != nil {
		return nil, errors.Join(err, t.Point.Close(context.Background()))
	}
	return t, nil
}

// cuda is one engine's transport. Any goroutine may call it.
type cuda struct {
	kit.Executor[link] // brings Poll and Arm
	*access.Point      // peers that we let in, and our way in elsewhere

	settings Settings
	self     transport.Peer
	life     kit.Lifecycle
	links    kit.Links[link]
	regions  kit.Slots[transport.LocalKey, region]
	offers   offers
	room     rooms
	round    driver.Round
	lost     sync.Map              // ends of devices that were told to links, by the driver's error
	unkept   atomic.Pointer[error] // why a region of the host could not be pinned, the latest
}

// own reports whether a peer is our own engine.
func (t *cuda) own(peer transport.Peer) bool { return peer.Self && !t.settings.apart }

func (t *cuda) Info() transport.Info {
	info := transport.Info{Name: Name, Versions: transport.Versions{First: version, Last: version}, Vectors: true,
		SameHost: true, Copies: true, Alignment: 1, SliceMax: sliceMax, SliceBest: sliceMax, SlicesMax: slicesMax}
	info.Pairs[mem.Cuda][mem.Cuda] = true
	info.Pairs[mem.Cuda][mem.Host] = true
	info.Pairs[mem.Host][mem.Cuda] = true
	return info
}

// Close ends links, then copies, then peers' pages: nobody copies into our memory when it returns, or the error names
// the process that still does.
func (t *cuda) Close(ctx context.Context) error {
	return t.life.Close(context.Background(), func() error { // each step is bounded, by ctx or by access.RevokeLimit
		ctx, cancel := access.Bounded(ctx, access.RevokeLimit)
		defer cancel()
		for number := range t.links.All() {
			t.Detach(number)
		}
		t.Wait()
		t.Stop()
		err := t.Point.Close(ctx)
		t.offers.close()
		return errors.Join(err, t.room.close())
	})
}

// Serve answers a peer's transport.
func (t *cuda) Serve(ctx context.Context, from transport.Peer, message []byte) ([]byte, error) {
	return t.Answer(ctx, from, message)
}

// ends yields the links.
func (t *cuda) ends() iter.Seq[*access.Link] {
	return func(yield func(*access.Link) bool) {
		for _, l := range t.links.All() {
			if !yield(&l.Link) {
				return
			}
		}
	}
}

// shut yields the regions that were shut for a peer alone.
func (t *cuda) shut(peer transport.ID) iter.Seq2[hazard.Region, transport.Epoch] {
	return func(yield func(hazard.Region, transport.Epoch) bool) {
		for _, r := range t.regions.All() {
			if epoch, was := r.door.Alone(peer); was && !yield(*r.name.Load(), epoch) {
				return
			}
		}
	}
}

// region is registered memory.
type region struct {
	mem.Region
	ordinal int      // of its device, -1 for the host
	kept    bool     // pinned by us, until Deregister
	pinned  bool     // memory of the host that devices reach
	door    kit.Door // for peers that attach later; those that are attached see their pages

	name atomic.Pointer[hazard.Region] // Remap changes it

	mu  sync.Mutex      // of Remap and Deregister
	old []hazard.Region // names of before
}

// Register lists a region in our manifest. It costs nothing per byte: blocks are made when a peer asks for them.
func (t *cuda) Register(_ context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	kind, ordinal, _ := m.Location.Parse()
	switch {
	case t.life.Closed():
		return 0, nil, kit.Closed("nvlink.register")
	case m.Addr == 0 || m.Size == 0 || uint64(m.Addr)+m.Size < m.Size:
		return 0, nil, errs.New(errs.InvalidArgument, "nvlink.register", "no memory at %#x with %d bytes", m.Addr,
			m.Size)
	case m.Kind == mem.Host:
		ordinal = -1
	case m.Kind != mem.Cuda || kind != mem.Cuda:
		return 0, nil, errs.New(errs.NotHere, "nvlink.register", "%v memory is not CUDA's", m.Kind)
	case ordinal < 0:
		return 0, nil, errs.New(errs.NotHere, "nvlink.register", "the location %q names no device", m.Location)
	}
	name, err := t.Table.Add()
	if err != nil {
		return 0, nil, err
	}
	r := &region{Region: m, ordinal: ordinal}
	t.keep(r)
	r.name.Store(&name)
	t.list(r, name, false)
	key := t.regions.Insert(func(transport.LocalKey) *region { return r }) // has room: the hazard table had
	return key, descriptor(name, t.self.ID, ordinal), nil
}

// keep pins a region of the host, if the settings want that. Where the driver refuses, bytes go through pinned memory
// of ours as without the setting, and Explain has the reason.
func (t *cuda) keep(r *region) {
	if !t.settings.HostRegister || r.ordinal >= 0 {
		return
	}
	if r.pinned = driver.Pinned(r.Addr, r.Size); r.pinned {
		return // by the program
	}
	err := driver.Keep(keeper, r.Addr, r.Size)
	if r.kept = err == nil; err != nil {
		t.unkept.Store(&err)
		t.Host.Log().Warn("a region of the host is not pinned", "region", r.Name, "err", err)
	}
	r.pinned = r.kept
}

// keeper is the device by which memory of the host is pinned, for all of them.
const keeper = 0

// list writes a region's entry of our manifest under one of its names. An entry that is Named in there is replaced: the
// manifest has no word of its own for it, and memory of devices is in no file.
func (t *cuda) list(r *region, name hazard.Region, replaced bool) {
	t.Manifest.Write(name.Index, name.Generation, &manifest.Region{Addr: uint64(r.Addr), Size: r.Size,
		Allows: r.Permission, Fixed: r.ReadOnly, Named: replaced})
}

// Revoke is the owner's fence, see access.Point.
func (t *cuda) Revoke(ctx context.Context, key transport.LocalKey, peer *transport.Peer, epoch transport.Epoch) error {
	r := t.regions.Lookup(key)
	if r == nil {
		return kit.NoRegion("nvlink.revoke", key)
	}
	return t.Point.Revoke(ctx, &r.door, *r.name.Load(), peer, epoch)
}

// Remap implements transport.Remapper: peers of other processes have mapped the chunks of before. The region gets
// another name, under which they ask for the new ones; by the old name nothing moves any more.
func (t *cuda) Remap(ctx context.Context, key transport.LocalKey, _, _ uint64) error {
	r := t.regions.Lookup(key)
	if r == nil {
		return kit.NoRegion("nvlink.remap", key)
	}
	if r.ordinal < 0 {
		return nil // nobody maps memory of the host
	}
	ctx, cancel := access.Bounded(ctx, access.RevokeLimit)
	defer cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.name.Load()
	name, err := t.Table.Succeed(old)
	if err != nil {
		return err
	}
	t.list(r, old, true) // before a copier is refused: it looks for the reason here
	t.list(r, name, false)
	r.name.Store(&name)
	r.old = append(r.old, old)
	t.Host.Describe(key, descriptor(name, t.self.ID, r.ordinal))
	return t.Table.Revoke(ctx, old, nil, hazard.ForGood) // copiers that are inside
}

// Deregister forgets a region. Peers that still name it are refused.
func (t *cuda) Deregister(_ context.Context, key transport.LocalKey) error {
	r := t.regions.Delete(key)
	if r == nil {
		return kit.NoRegion("nvlink.deregister", key)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range append(r.old, *r.name.Load()) {
		t.Manifest.Erase(name.Index) // before the index can be another region's
		t.Table.Remove(name)
	}
	if r.kept {
		return driver.Unkeep(keeper, r.Addr)
	}
	return nil
}
