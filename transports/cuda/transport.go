// Package cuda is the transport "nvlink": memory of CUDA devices, between engines of one process.
//
// It moves bytes between two devices, and between a device and the host, by the copy engines. Engines of another
// process are refused with that reason; another transport carries the bytes, or none.
//
//	Submit    queues slices by class; a worker, or a waiter by Poll, copies the most urgent one and completes it
//	device    its pages are gathered and scattered by one batch of the driver, adjacent ranges as one
//	host      bytes go through pinned memory of ours, as the driver's own copies of unpinned memory do
//	Revoke    shuts the region, completes the slices that wait for it, and returns when copies under way have ended
//
// The driver would copy memory of the host by itself, too. A page that is gone ends the process there, and fails one
// slice here.
//
// # Errors
//
// An error that stays ends one device (package driver): slices with memory of that device fail, those of others go on.
// Memory that its owner has freed is an error of the driver's, and fails its slice.
//
// # Costs
//
// A copy takes a device some microseconds before its first byte, so slices are of 1 MiB: 20 µs at 55 GB/s of PCIe. A
// carrier waits for its copy, so one engine copies as many slices at once as threads carry. Pinned memory: 1 MiB each.
package cuda

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/kit"
)

// Name stands in settings, metrics and errors.
const Name = "nvlink"

// Bounds of slices.
const (
	slicesMax = 1024 // accepted and not completed, over all links
	sliceMax  = 1 << 20
)

var here kit.Slots[uint64, cuda] // the open transports of this process

// Settings has no keys of its own yet: upstream's are kept, and have no effect.
type Settings struct{}

// Factory makes the transport; see transport.Factory.
type Factory struct{}

// Settings implements transport.Configured.
func (Factory) Settings() any { return Settings{} }

// Name returns "nvlink".
func (Factory) Name() string { return Name }

// Check returns why the driver cannot be used.
func (Factory) Check() error { return driver.Platform{}.Check() }

// Open starts the worker.
func (Factory) Open(_ context.Context, _ any, host transport.Host, sink transport.Sink) (transport.Transport, error) {
	if err := (driver.Platform{}).Check(); err != nil {
		return nil, err
	}
	t := &cuda{sink: sink, self: host.Self()}
	t.Start(slicesMax, sink, (*link).up, t.carry)
	t.number = here.Insert(func(uint64) *cuda { return t })
	return t, nil
}

// cuda is one engine's transport. Any goroutine may call it.
type cuda struct {
	kit.Executor[link] // brings Poll and Arm

	number  uint64
	sink    transport.Sink
	self    transport.Peer
	life    kit.Lifecycle
	links   kit.Links[link]
	regions kit.Slots[transport.LocalKey, region]
	room    rooms
}

func (t *cuda) Info() transport.Info {
	info := transport.Info{Name: Name, Vectors: true, SameHost: true, Copies: true, Alignment: 1,
		SliceMax: sliceMax, SliceBest: sliceMax, SlicesMax: slicesMax}
	info.Pairs[mem.Cuda][mem.Cuda] = true
	info.Pairs[mem.Cuda][mem.Host] = true
	info.Pairs[mem.Host][mem.Cuda] = true
	return info
}

func (t *cuda) Close(ctx context.Context) error {
	return t.life.Close(ctx, func() error {
		here.Delete(t.number)
		for number := range t.links.All() {
			t.Detach(number)
		}
		for key := range t.regions.All() {
			_ = t.Deregister(ctx, key)
		}
		t.Stop()
		for _, other := range here.All() {
			for _, l := range other.links.All() {
				if l.to == t {
					other.fail(l)
				}
			}
		}
		return t.room.close()
	})
}

// region is registered memory.
type region struct {
	mem.Region
	ordinal int // of its device, -1 for the host
	door    kit.Door
}

// Register describes a region by our ID and its key.
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
	key := t.regions.Insert(func(transport.LocalKey) *region { return &region{Region: m, ordinal: ordinal} })
	return key, binary.LittleEndian.AppendUint64(t.self.ID[:], uint64(key)), nil
}

// Revoke does not ask ctx: it waits for one copy at most.
func (t *cuda) Revoke(_ context.Context, key transport.LocalKey, peer *transport.Peer, epoch transport.Epoch) error {
	r, name := t.regions.Lookup(key), transport.RemoteKey(key)
	if r == nil {
		return kit.NoRegion("nvlink.revoke", key)
	}
	r.door.Shut(peer, epoch)
	for _, other := range here.All() {
		other.Evict(transport.Fenced(Name), func(s *transport.Slice, l *link) bool {
			return l.to == t && s.RemoteKey == name && r.door.Admits(other.self.ID, s.Epoch) != kit.DoorOpen
		})
		for number, l := range other.links.All() {
			if l.to == t && (peer == nil || peer.ID == other.self.ID) && epoch != transport.ForGood {
				other.sink.Fenced(number, name, epoch)
			}
		}
	}
	return nil
}

func (t *cuda) Deregister(ctx context.Context, key transport.LocalKey) error {
	defer t.regions.Delete(key)
	return t.Revoke(ctx, key, nil, transport.ForGood)
}

// link is an attached peer. Its one rail is up in generation live, or down for 0.
type link struct {
	number transport.Link
	peer   transport.Peer
	to     *cuda
	live   atomic.Uint32
}

// up reports whether a rail is up in just this generation. A stale link, nil, has none.
func (l *link) up(r transport.Rail) bool {
	return l != nil && r.Index == 0 && r.Generation != 0 && r.Generation == l.live.Load()
}

func (l *link) gone(code errs.Code) *errs.Error {
	e := errs.New(code, Name, "the peer is not in this process, and memory of GPUs moves inside of one process only")
	return e.WithPeer(l.peer.Address, Name, "").WithScope(errs.ScopeLink, errs.SideRemote)
}

// Attach dials nothing: the peer is here, or nowhere.
func (t *cuda) Attach(peer transport.Peer) (transport.Link, error) {
	l := &link{peer: peer}
	for _, other := range here.All() {
		if other.self.Address == peer.Address {
			l.to = other
		}
	}
	switch {
	case t.life.Closed():
		return 0, kit.Closed("nvlink.attach")
	case l.to == nil:
		return 0, l.gone(errs.PeerUnreachable)
	case l.to.self.ID != peer.ID:
		return 0, l.gone(errs.PeerRestarted)
	}
	build := func(n transport.Link) *link { l.number = n; return l }
	if _, err := t.links.Attach("nvlink.attach", build); err != nil {
		return 0, err
	}
	if t.rise(l, 1); l.to.life.Closed() { // its Close may have missed us
		t.fail(l)
	}
	return l.number, nil
}

func (t *cuda) rise(l *link, generation uint32) {
	l.live.Store(generation)
	rail := transport.Rail{Link: l.number, Generation: generation}
	t.sink.RailUp(transport.RailInfo{Rail: rail, Local: t.self.Address, Remote: l.peer.Address, Node: -1,
		Bandwidth: 50e9, BytesMax: 64 << 20, SlicesMax: slicesMax})
}

// lower takes the rail down if it is up in a generation. Then nothing is accepted, and waiting slices have completed.
func (t *cuda) lower(l *link, generation uint32, cause *errs.Error) bool {
	down := generation != 0 && l.live.CompareAndSwap(generation, 0)
	if down {
		t.Drop(cause, func(_ *transport.Slice, of *link) bool { return of == l })
	}
	return down
}

// fail takes the link down for good: its peer has closed.
func (t *cuda) fail(l *link) {
	t.lower(l, l.live.Load(), l.gone(errs.PeerUnreachable))
	t.sink.LinkDown(l.number, l.gone(errs.PeerUnreachable))
}

func (t *cuda) Detach(number transport.Link) {
	if l := t.links.Detach(number); l != nil {
		t.lower(l, l.live.Load(), l.gone(errs.Lost))
	}
}

func (t *cuda) Stale() uint64 { return t.links.Stale() }
func (t *cuda) Serve(context.Context, transport.Peer, []byte) ([]byte, error) {
	return nil, refused(errs.Protocol)
}

// Import takes the peer's key as it is: every slice is checked.
func (t *cuda) Import(number transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	l, r := t.links.Lookup(number), kit.NewReader(d)
	owner, key := r.ID(), r.U64()
	switch {
	case l == nil:
		return 0, kit.StaleLink("nvlink.import", number)
	case !r.Whole() || owner != l.peer.ID:
		return 0, errs.New(errs.InvalidArgument, "nvlink.import", "not a descriptor of the peer: %d bytes", len(d))
	}
	return transport.RemoteKey(key), nil
}

// Forget has nothing to give back.
func (t *cuda) Forget(number transport.Link, _ transport.RemoteKey) { t.links.Lookup(number) }

func (t *cuda) Submit(list []*transport.Slice) int { return t.Accept(list, t.links.Lookup) }

func (t *cuda) Withdraw(list []*transport.Slice) {
	t.Drop(refused(errs.Withdrawn), func(s *transport.Slice, _ *link) bool { return slices.Contains(list, s) })
}

func (t *cuda) Fence(rail transport.Rail) {
	if l := t.links.Lookup(rail.Link); l.up(rail) && t.lower(l, rail.Generation, refused(errs.Withdrawn)) {
		t.rise(l, rail.Generation+1)
	}
}

func refused(code errs.Code) *errs.Error {
	return errs.New(code, Name, "refused, or asked back").WithScope(errs.ScopeSlice, errs.SideUnknown)
}

// Probe succeeds on a rail that is up: there is no way between the ends that could be broken.
func (t *cuda) Probe(rail transport.Rail, done func(clock.Time, *errs.Error)) {
	var err *errs.Error
	if t.Heard(rail).Heard == 0 {
		err = refused(errs.StaleGeneration)
	}
	done(0, err)
}

// Heard returns now: a peer in our own process is heard at any time.
func (t *cuda) Heard(rail transport.Rail) transport.Signs {
	if now := clock.Now(); t.links.Lookup(rail.Link).up(rail) {
		return transport.Signs{Heard: now, Moved: now, Spoke: now}
	}
	return transport.Signs{}
}

// rooms are the carriers' workplaces: one for each that carries at a time, kept until the transport closes.
type rooms struct {
	mu   sync.Mutex
	free []*room
}

// room has a carrier's list of copies, and its pinned memory. One carrier uses it at a time.
type room struct {
	copies driver.Copies
	pinned uintptr // of sliceMax bytes, 0 until a slice needs it
	on     int     // device by which it was pinned
}

func (p *rooms) take() *room {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		r := p.free[n-1]
		p.free = p.free[:n-1]
		return r
	}
	return &room{}
}

func (p *rooms) giveBack(r *room) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, r)
}

// close gives the pinned memory back. No slice is carried any more.
func (p *rooms) close() (first error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.free {
		if r.pinned == 0 {
			continue
		}
		if err := driver.Unpin(r.on, r.pinned); err != nil && first == nil {
			first = err
		}
	}
	p.free = nil
	return first
}
