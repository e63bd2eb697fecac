// Package loop is the whole contract inside one process: its engines copy between their regions. Copy it when you write
// a transport, and read it beside gocore/transport and transports/kit; transporttest runs every rule over it.
//
//	Submit    queues slices by class; a worker, or a waiter by Poll, copies the most urgent one and completes it
//	Revoke    shuts the region, completes the slices that wait for it, and returns when copies under way have ended
//
// It is not in transports/all, for shm does the same faster. Memory of device plug-ins has it: platform.go.
package loop

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Name stands in settings, metrics and errors; slicesMax are accepted and not completed, over all links.
const Name, slicesMax = "loop", 1024

var here kit.Slots[uint64, loop] // the open transports of this process

// Factory makes loop transports; see transport.Factory. There are no settings.
type Factory struct{}

// Name returns "loop".
func (Factory) Name() string { return Name }

// Check returns nil: every process can copy.
func (Factory) Check() error { return nil }

// Open starts the worker.
func (Factory) Open(_ context.Context, _ any, host transport.Host, sink transport.Sink) (transport.Transport, error) {
	return open(reach{name: Name}, host, sink), nil
}

// loop is one engine's transport. Any goroutine may call it.
type loop struct {
	kit.Executor[link] // brings Poll and Arm

	reach
	number  uint64
	sink    transport.Sink
	self    transport.Peer
	life    kit.Lifecycle
	links   kit.Links[link]
	regions kit.Slots[transport.LocalKey, region]
	memory  sync.Map // of Allocate, by address
}

func (t *loop) Info() transport.Info {
	return t.fill(transport.Info{Vectors: true, SameHost: true, Copies: true,
		Alignment: 1, SliceMax: 1 << 20, SliceBest: 1 << 20, SlicesMax: slicesMax})
}

func (t *loop) Close(ctx context.Context) error {
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
		return nil
	})
}

// region is registered memory.
type region struct {
	mem.Region
	door kit.Door
}

// Register describes a region by our ID and its key.
func (t *loop) Register(_ context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	if err := kit.CheckRegister(t.name+".register", &t.life, t.asHost(&m)); err != nil {
		return 0, nil, err
	}
	key := t.regions.Insert(func(transport.LocalKey) *region { return &region{Region: m} })
	return key, binary.LittleEndian.AppendUint64(t.self.ID[:], uint64(key)), nil
}

// Revoke does not ask ctx: it waits for one copy at most.
func (t *loop) Revoke(_ context.Context, key transport.LocalKey, peer *transport.Peer, epoch transport.Epoch) error {
	r, name := t.regions.Lookup(key), transport.RemoteKey(key)
	if r == nil {
		return kit.NoRegion("loop.revoke", key)
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

func (t *loop) Deregister(ctx context.Context, key transport.LocalKey) error {
	defer t.regions.Delete(key)
	return t.Revoke(ctx, key, nil, transport.ForGood)
}

// Allocate takes memory of Go. Its collector moves nothing, so the address holds until Free.
func (t *loop) Allocate(a transport.Allocation) (mem.Region, error) {
	if kind, _, err := a.Location.Parse(); err != nil || kind != mem.Host || a.Size == 0 || a.HugePage != 0 {
		return mem.Region{}, errs.New(errs.InvalidArgument, "loop.allocate", "no %d bytes of %s", a.Size, a.Location)
	}
	b := make([]byte, a.Size)
	r := mem.Region{Addr: mem.AddressOf(b), Size: a.Size, Kind: mem.Host, Location: a.Location, Fd: -1}
	t.memory.Store(r.Addr, b)
	return r, nil
}
func (t *loop) Free(r mem.Region) error { t.memory.Delete(r.Addr); return nil }

// link is an attached peer. Its one rail is up in generation live, or down for 0.
type link struct {
	number transport.Link
	peer   transport.Peer
	to     *loop
	live   atomic.Uint32
}

// up reports whether a rail is up in just this generation. A stale link, nil, has none.
func (l *link) up(r transport.Rail) bool {
	return l != nil && r.Index == 0 && r.Generation != 0 && r.Generation == l.live.Load()
}

func (l *link) gone(code errs.Code) *errs.Error {
	e := errs.New(code, Name, "the peer is not in this process").WithPeer(l.peer.Address, Name, "")
	return e.WithScope(errs.ScopeLink, errs.SideRemote)
}

// Attach dials nothing: the peer is here, or nowhere.
func (t *loop) Attach(peer transport.Peer) (transport.Link, error) {
	l := &link{peer: peer}
	for _, other := range here.All() {
		if other.self.Address == peer.Address && other.name == t.name {
			l.to = other
		}
	}
	switch {
	case t.life.Closed():
		return 0, kit.Closed("loop.attach")
	case l.to == nil:
		return 0, l.gone(errs.PeerUnreachable)
	case l.to.self.ID != peer.ID:
		return 0, l.gone(errs.PeerRestarted)
	}
	if _, err := t.links.Attach("loop.attach", func(n transport.Link) *link { l.number = n; return l }); err != nil {
		return 0, err
	}
	if t.rise(l, 1); l.to.life.Closed() { // its Close may have missed us
		t.fail(l)
	}
	return l.number, nil
}

func (t *loop) rise(l *link, generation uint32) {
	l.live.Store(generation)
	rail := transport.Rail{Link: l.number, Generation: generation}
	t.sink.RailUp(transport.RailInfo{Rail: rail, Local: t.self.Address, Remote: l.peer.Address, Node: -1})
}

// lower takes the rail down if it is up in a generation. Then nothing is accepted, and waiting slices have completed.
func (t *loop) lower(l *link, generation uint32, cause *errs.Error) bool {
	down := generation != 0 && l.live.CompareAndSwap(generation, 0)
	if down {
		t.Drop(cause, func(_ *transport.Slice, of *link) bool { return of == l })
	}
	return down
}

// fail takes the link down for good: its peer has closed.
func (t *loop) fail(l *link) {
	t.lower(l, l.live.Load(), l.gone(errs.PeerUnreachable))
	t.sink.LinkDown(l.number, l.gone(errs.PeerUnreachable))
}

func (t *loop) Detach(number transport.Link) {
	if l := t.links.Detach(number); l != nil {
		t.lower(l, l.live.Load(), l.gone(errs.Lost))
	}
}

func (t *loop) Stale() uint64 { return t.links.Stale() }
func (t *loop) Serve(context.Context, transport.Peer, []byte) ([]byte, error) {
	return nil, refused(errs.Protocol)
}

// Import takes the peer's key as it is: every slice is checked.
func (t *loop) Import(number transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	l, r := t.links.Lookup(number), kit.NewReader(d)
	owner, key := r.ID(), r.U64()
	switch {
	case l == nil:
		return 0, kit.StaleLink("loop.import", number)
	case !r.Whole() || owner != l.peer.ID:
		return 0, errs.New(errs.InvalidArgument, "loop.import", "not a descriptor of the peer: %d bytes", len(d))
	}
	return transport.RemoteKey(key), nil
}

// Forget has nothing to give back.
func (t *loop) Forget(number transport.Link, _ transport.RemoteKey) { t.links.Lookup(number) }

func (t *loop) Submit(list []*transport.Slice) int {
	return t.Accept(list, t.links.Lookup)
}

func (t *loop) Withdraw(list []*transport.Slice) {
	t.Drop(refused(errs.Withdrawn), func(s *transport.Slice, _ *link) bool { return slices.Contains(list, s) })
}

func (t *loop) Fence(rail transport.Rail) {
	if l := t.links.Lookup(rail.Link); l.up(rail) && t.lower(l, rail.Generation, refused(errs.Withdrawn)) {
		t.rise(l, rail.Generation+1)
	}
}

func refused(code errs.Code) *errs.Error {
	return errs.New(code, Name, "refused, or asked back").WithScope(errs.ScopeSlice, errs.SideUnknown)
}

// carry copies one slice, or returns why it must not.
func (t *loop) carry(s *transport.Slice, l *link) *errs.Error {
	local, remote := t.regions.Lookup(s.LocalKey), l.to.regions.Lookup(transport.LocalKey(s.RemoteKey))
	write := s.Op == transport.Write
	switch {
	case l.to.life.Closed():
		return l.gone(errs.PeerUnreachable)
	case remote == nil || local == nil || kit.CheckLocal(s, local.Addr, local.Size, local.ReadOnly) != errs.OK:
		return refused(errs.AddressNotRegistered)
	case remote.door.Admits(t.self.ID, s.Epoch) != kit.DoorOpen: // its task began before the last fence
		return transport.Fenced(Name)
	case !l.peer.Self && !remote.Permission.Allows(write) || write && remote.ReadOnly:
		return refused(errs.PermissionDenied)
	case !kit.InsideRemote(s, remote.Size):
		return refused(errs.InvalidArgument)
	}
	if t.platform != nil {
		return t.copies(s, remote.Addr)
	}
	if code, side := kit.Copy(s, remote.Addr); code != errs.OK {
		return refused(code).WithScope(errs.ScopeSlice, side)
	}
	return nil
}

// Notify calls the peer's sink on a goroutine of its own, so that neither engine's locks meet the other's.
func (t *loop) Notify(number transport.Link, message []byte, done func(*errs.Error)) bool {
	l, message := t.links.Lookup(number), bytes.Clone(message)
	return l != nil && t.life.Go(func() {
		var err *errs.Error
		if !l.to.sink.Notified(t.self, message) {
			err = refused(errs.TooManyRequests)
		}
		done(err)
	})
}

// Probe succeeds on a rail that is up: there is no way between the ends that could be broken.
func (t *loop) Probe(rail transport.Rail, done func(clock.Time, *errs.Error)) {
	var err *errs.Error
	if t.Heard(rail).Heard == 0 {
		err = refused(errs.StaleGeneration)
	}
	done(0, err)
}

// Heard returns now: a peer in our own process is heard at any time.
func (t *loop) Heard(rail transport.Rail) transport.Signs {
	if now := clock.Now(); t.links.Lookup(rail.Link).up(rail) {
		return transport.Signs{Heard: now, Moved: now, Spoke: now}
	}
	return transport.Signs{}
}
