package cuda

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
)

// FabricName stands in settings, metrics and errors.
const FabricName = "mnnvl"

// FabricFactory makes the transport between hosts of one NVLink domain; see transport.Factory.
type FabricFactory struct{}

var (
	_ transport.Factory     = FabricFactory{}
	_ transport.Configured  = FabricFactory{}
	_ transport.Surveyor    = FabricFactory{}
	_ transport.Transport   = (*mnnvl)(nil)
	_ transport.Poller      = (*mnnvl)(nil)
	_ transport.Matcher     = (*mnnvl)(nil)
	_ transport.EpochReader = (*mnnvl)(nil)
	_ transport.Explainer   = (*mnnvl)(nil)
	_ transport.Remapper    = (*mnnvl)(nil)
	_ transport.Allocator   = (*mnnvl)(nil)
	_ transport.Unsharing   = (*mnnvl)(nil)
	_ transport.Visited     = (*mnnvl)(nil)
)

// Settings implements transport.Configured.
func (FabricFactory) Settings() any { return FabricSettings{} }

// Name returns "mnnvl".
func (FabricFactory) Name() string { return FabricName }

// Check returns why no device of this host can be reached from others, nil if one can.
func (FabricFactory) Check() error {
	_, err := domains()
	return err
}

// Survey implements transport.Surveyor.
func (FabricFactory) Survey() (lines []string) {
	list, _ := domains()
	for i, d := range list {
		if d.Why != nil {
			lines = append(lines, d.Why.Error())
			continue
		}
		lines = append(lines, fmt.Sprintf("cuda:%d: %s", i, wordsOf(d.Fabric)))
	}
	return lines
}

// domains returns the NVLink domains of the devices, or an error if none of them can be used.
func domains() ([]driver.Domain, error) {
	list, err := driver.Domains()
	if err != nil {
		return nil, err
	}
	var reasons []string
	for _, d := range list {
		if d.Why == nil {
			return list, nil
		}
		reasons = append(reasons, d.Why.Error())
	}
	return list, errs.New(errs.DeviceNotFound, "mnnvl", "no device can be reached from other hosts: %s",
		strings.Join(reasons, "; "))
}

func wordsOf(f device.Fabric) string {
	return fmt.Sprintf("NVLink domain %x, clique %d", f.Cluster, f.Clique)
}

// Open tries fabric handles on each device.
func (FabricFactory) Open(_ context.Context, given any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	s, err := config.Settled[FabricSettings](given, FabricName)
	if err != nil {
		return nil, err
	}
	t := &mnnvl{settings: s, sink: sink, names: hazard.NewTable(regionsMax)}
	if t.domains, err = domains(); err != nil {
		return nil, err
	}
	if err := t.begun(FabricName, host, sink, s.Copying); err != nil {
		return nil, err
	}
	return t, nil
}

// mnnvl is one engine's transport between hosts. Any goroutine may call it.
type mnnvl struct {
	copier

	settings FabricSettings
	sink     transport.Sink
	domains  []driver.Domain // by ordinal
	names    *hazard.Table   // of regions; nobody enters by it
	byName   sync.Map        // *region by its name
	guests   guests
	ways     sync.Map // links that have not given everything back: *distant by its secret
	running  sync.WaitGroup
	tending  atomic.Bool
}

// Info implements transport.Transport.
func (t *mnnvl) Info() transport.Info {
	info := t.info()
	info.OtherHost = true
	return info
}

// Register names a region. One of a device that other hosts cannot map is for our own end of transfers alone, and
// peers read the reason in its descriptor. Memory of the host has none.
func (t *mnnvl) Register(_ context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	r, err := t.place(&m)
	if err != nil {
		return 0, nil, err
	}
	name, err := t.names.Add()
	if err != nil {
		return 0, nil, err
	}
	r.name.Store(&name)
	t.keep(r)
	t.prepare(r)
	t.look(r)
	t.byName.Store(name, r)
	key := t.regions.Insert(func(transport.LocalKey) *region { return r }) // has room: the table of names had
	return key, t.describe(r), nil
}

// look finds out whether other hosts can map a region.
func (t *mnnvl) look(r *region) {
	r.unshared.Store(nil)
	if why := t.unshared(r); why != nil {
		r.unshared.Store(&why)
	}
}

// unshared returns why other hosts cannot map a region.
func (t *mnnvl) unshared(r *region) error {
	switch {
	case r.ordinal < 0:
		return nil // nobody expects that
	case r.ordinal >= len(t.domains):
		return errs.New(errs.DeviceNotFound, "mnnvl.register", "there is no cuda:%d", r.ordinal)
	case t.domains[r.ordinal].Why != nil:
		return t.domains[r.ordinal].Why
	case r.Permission == mem.LocalReadWrite:
		return nil // nor that
	}
	blocks, err := r.fabricBlocks()
	driver.CloseBlocks(blocks)
	return err
}

// describe makes the descriptor of a region.
func (t *mnnvl) describe(r *region) transport.Descriptor {
	if r.ordinal < 0 {
		return nil
	}
	d := fabricDescriptor{name: *r.name.Load(), owner: t.self.ID}
	if why := r.unshared.Load(); why != nil {
		d.why = (*why).Error()
	} else {
		d.domain = t.domains[r.ordinal].Fabric
	}
	return d.encode()
}

// Unshared implements transport.Unsharing.
func (t *mnnvl) Unshared(key transport.LocalKey) error {
	if r := t.regions.Lookup(key); r != nil && r.unshared.Load() != nil {
		return *r.unshared.Load()
	}
	return nil
}

// Revoke is the owner's fence: it asks the peers that may have the region mapped. ForGood they unmap it. The driver
// takes no mapping of another host down, so a peer that does not answer is an error, see guest.silent.
func (t *mnnvl) Revoke(ctx context.Context, key transport.LocalKey, peer *transport.Peer, epoch transport.Epoch) error {
	r := t.regions.Lookup(key)
	if r == nil {
		return kit.NoRegion("mnnvl.revoke", key)
	}
	r.door.Shut(peer, epoch) // before the list of guests: one that learns of the region now sees it
	limit := access.RevokeLimit
	if epoch != transport.ForGood {
		limit = transport.HearingLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return t.revoke(ctx, news{*r.name.Load(), epoch, epoch == transport.ForGood, false}, peer)
}

// Remap implements transport.Remapper: guests have mapped the chunks of before. The region gets another name, under
// which they ask for the new ones. Nobody maps memory of the host.
func (t *mnnvl) Remap(ctx context.Context, key transport.LocalKey, _ transport.Remapped) error {
	r := t.regions.Lookup(key)
	if r == nil {
		return kit.NoRegion("mnnvl.remap", key)
	}
	ctx, cancel := access.Bounded(ctx)
	defer cancel()
	if r.ordinal < 0 {
		return t.keepAnew(ctx, r)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.name.Load()
	name, err := t.names.Succeed(old)
	if err != nil {
		return err
	}
	t.look(r)
	t.guests.rename(old)
	r.name.Store(&name)
	t.byName.Store(name, r)
	t.byName.Delete(old)
	r.old = append(r.old, old)
	t.host.Describe(key, t.describe(r))
	return t.revoke(ctx, news{name: old, closed: true, replaced: true}, nil)
}

// Deregister forgets a region. Guests that were not told by Revoke are told now. Those that do not answer keep their
// holds, and hear of it when they ask.
func (t *mnnvl) Deregister(ctx context.Context, key transport.LocalKey) error {
	r := t.regions.Delete(key)
	if r == nil {
		return kit.NoRegion("mnnvl.deregister", key)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.door.Shut(nil, transport.ForGood)
	ctx, cancel := context.WithTimeout(ctx, transport.HearingLimit)
	defer cancel()
	var untold []error
	for _, name := range append(r.old, *r.name.Load()) {
		t.byName.Delete(name)
		t.names.Remove(name)
		untold = append(untold, t.revoke(ctx, news{name: name, closed: true}, nil))
		t.guests.forgetName(name)
	}
	return errors.Join(append(untold, r.unkeep())...)
}

// Allocate implements transport.Allocator: memory of a device with fabric handles, which processes of this host map by
// descriptors. An error makes the engine ask for memory without them.
func (t *mnnvl) Allocate(a transport.Allocation) (mem.Region, error) {
	kind, ordinal, _ := a.Location.Parse()
	if ordinal = max(ordinal, 0); kind != mem.Cuda || ordinal >= len(t.domains) {
		return mem.Region{}, errs.New(errs.NotHere, "mnnvl.allocate", "%q is no device of ours", a.Location)
	}
	if t.settings.HandleType != handlesFabric {
		return mem.Region{}, errs.New(errs.NotHere, "mnnvl.allocate", "transports/mnnvl/handle_type is %s",
			t.settings.HandleType)
	}
	if why := t.domains[ordinal].Why; why != nil {
		return mem.Region{}, why
	}
	return chunk(ordinal, &a, driver.Descriptors|driver.FabricToo)
}

// Free implements transport.Allocator.
func (*mnnvl) Free(r mem.Region) error { return driver.Platform{}.Free(r.Addr, r.Size) }

// chunk allocates memory of the VMM for a region.
func chunk(ordinal int, a *transport.Allocation, handles driver.Handles) (mem.Region, error) {
	addr, err := driver.AllocateChunk(ordinal, a.Size, handles)
	if err != nil {
		return mem.Region{}, err
	}
	return mem.Region{Addr: addr, Size: a.Size, Kind: mem.Cuda, Location: a.Location, Fd: -1}, nil
}

// Close ends links, then copies, and makes the guests unmap all that they have of ours. The error names a copy that did
// not end, or a guest that did not answer and may still have something.
func (t *mnnvl) Close(ctx context.Context) error {
	return t.end(ctx, t.running.Wait, func(ctx context.Context) error {
		return t.tellAll(t.guests.all(true), func(g *guest) error { return t.sayGoodbye(ctx, g) })
	})
}

// sayGoodbye makes a guest unmap all that it has of ours. To one that has nothing it is a courtesy.
func (t *mnnvl) sayGoodbye(ctx context.Context, g *guest) error {
	goodbye := access.Call(version, callGoodbye, g.secret)
	if len(t.guests.of(g)) > 0 {
		return t.tell(ctx, g, goodbye)
	}
	ctx, cancel := context.WithTimeout(ctx, access.CallLimit)
	defer cancel()
	_, _ = t.host.Call(ctx, g.peer, goodbye)
	return nil
}

// regionOf returns the region with a name, or nil.
func (t *mnnvl) regionOf(name hazard.Region) *region {
	if r, is := t.byName.Load(name); is {
		return r.(*region)
	}
	return nil
}
