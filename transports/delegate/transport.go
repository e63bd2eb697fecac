package delegate

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Name stands in settings, metrics and errors.
const Name = "delegate"

// Settings is the branch transports/delegate: each tagged field is a key.
type Settings struct {
	Lanes int `key:"lanes" takes:"1..16" default:"8" help:"Orders that a peer carries out for us at once. Memory of as many slots of staging/slot_bytes is lent to each such peer."`
}

// Factory makes the transport; see transport.Factory.
type Factory struct{}

// Settings implements transport.Configured.
func (Factory) Settings() any { return Settings{} }

// Name returns "delegate".
func (Factory) Name() string { return Name }

// Check returns nil: every engine can ask another one.
func (Factory) Check() error { return nil }

// Open starts nothing: lanes start with their links.
func (Factory) Open(_ context.Context, given any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	s, err := config.Settled[Settings](given, Name)
	if err != nil {
		return nil, err
	}
	deputy, is := host.(transport.Deputy)
	if !is {
		deputy = nobody{}
	}
	t := &delegate{settings: s, host: host, deputy: deputy, sink: sink, self: host.Self()}
	t.alive, t.end = context.WithCancel(context.Background())
	return t, nil
}

// delegate is one engine's transport. Any goroutine may call it.
type delegate struct {
	settings Settings
	host     transport.Host
	deputy   transport.Deputy
	sink     transport.Sink
	self     transport.Peer
	life     kit.Lifecycle
	alive    context.Context // of lanes
	end      context.CancelFunc
	links    kit.Links[link]
	regions  kit.Slots[transport.LocalKey, region]
	desk     desk
	newest   atomic.Uint64 // epoch of a fence: peers that greet us later hear of it
}

// region is registered memory: that of a device, or lent.
type region struct {
	lent bool
	door kit.Door
}

func (t *delegate) Info() transport.Info {
	info := transport.Info{Name: Name, Versions: transport.Versions{First: version, Last: version}, Vectors: true,
		Delegates: true, Alignment: 1, SliceMax: bytesMost, SlicesMax: t.settings.Lanes}
	for kind := range info.Pairs[mem.Host] {
		info.Pairs[mem.Host][kind] = mem.Kind(kind) != mem.Host
	}
	return info
}

// Register describes a region by our ID and its key. Lent memory has no descriptor: nobody gives orders for it.
func (t *delegate) Register(_ context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	if t.life.Closed() {
		return 0, nil, kit.Closed("delegate.register")
	}
	key := t.regions.Insert(func(transport.LocalKey) *region { return &region{lent: m.Kind == mem.Host} })
	if m.Kind == mem.Host {
		return key, nil, nil
	}
	return key, binary.LittleEndian.AppendUint64(slices.Clone(t.self.ID[:]), uint64(key)), nil
}

// Revoke shuts the region and ends orders for it.
func (t *delegate) Revoke(ctx context.Context, key transport.LocalKey, peer *transport.Peer,
	epoch transport.Epoch) error {
	r := t.regions.Lookup(key)
	if r == nil {
		return kit.NoRegion("delegate.revoke", key)
	}
	r.door.Shut(peer, epoch)
	if epoch != transport.ForGood {
		for before := t.newest.Load(); uint64(epoch) > before; before = t.newest.Load() {
			t.newest.CompareAndSwap(before, uint64(epoch))
		}
		t.tell(ctx, key, peer, epoch) // before its orders fail: the next ones have the epoch
	}
	return t.desk.halt(ctx, func(from transport.ID, s *served) bool {
		return s.key == key && r.door.Admits(from, s.epoch) != kit.DoorOpen
	})
}

// tell lets peers know of a fence, all side by side.
func (t *delegate) tell(ctx context.Context, key transport.LocalKey, peer *transport.Peer, epoch transport.Epoch) {
	ctx, cancel := context.WithTimeout(ctx, transport.HearingLimit)
	defer cancel()
	m := message{kind: fenced, lane: uint64(key), seq: uint64(epoch)}
	var calls sync.WaitGroup
	for _, to := range t.desk.listening(peer) {
		calls.Go(func() { _, _ = t.host.Call(ctx, to, m.encode(nil)) }) // a silent one is refused by the door
	}
	calls.Wait()
}

// Deregister forgets a region.
func (t *delegate) Deregister(ctx context.Context, key transport.LocalKey) error {
	defer t.regions.Delete(key)
	return t.Revoke(ctx, key, nil, transport.ForGood)
}

// Close cancels the orders of peers, and ends our links.
func (t *delegate) Close(ctx context.Context) error {
	halted := t.desk.halt(ctx, func(transport.ID, *served) bool { return true })
	for number := range t.links.All() {
		t.Detach(number)
	}
	t.end()
	closed := t.life.Close(ctx, func() error { return nil })
	if halted != nil {
		return halted
	}
	return closed
}

// link is an attached peer with its lanes. Its rail comes up with the first descriptor, since most peers have no memory
// of devices; whether the peer can be called shows at a call.
type link struct {
	t      *delegate
	number transport.Link
	peer   transport.Peer

	greeting sync.Once

	mu         sync.Mutex
	generation uint32 // that is up
	idle       []*lane
	lanes      []*lane
	left       bool
	starved    bool // Submit took less than it was given
}

// lane carries one order at a time. The link's mutex guards it but for its name.
type lane struct {
	link     *link
	name     uint64
	seq      uint64
	slice    *transport.Slice // nil: idle
	rail     transport.Rail
	id       uint64
	canceled bool
	wake     chan struct{} // of one: a pause may end
}

// Attach makes lanes; each has a goroutine while it carries an order.
func (t *delegate) Attach(peer transport.Peer) (transport.Link, error) {
	l := &link{t: t, peer: peer, generation: 1}
	for range t.settings.Lanes {
		l.lanes = append(l.lanes, &lane{link: l, name: rand.Uint64(), wake: make(chan struct{}, 1)})
	}
	l.idle = slices.Clone(l.lanes)
	if t.life.Closed() {
		return 0, kit.Closed("delegate.attach")
	}
	return t.links.Attach("delegate.attach", func(n transport.Link) *link { l.number = n; return l })
}

// railLocked is the link's one rail. The caller holds mu.
func (l *link) railLocked() transport.Rail {
	return transport.Rail{Link: l.number, Generation: l.generation}
}

func (l *link) rise(rail transport.Rail) {
	l.t.sink.RailUp(transport.RailInfo{Rail: rail,
		Local: l.t.self.Address, Remote: l.peer.Address, Node: -1, BytesMax: uint64(l.t.settings.Lanes) * bytesUsual,
		SlicesMax: l.t.settings.Lanes})
}

// bytesUsual is the usual length of a slice, for the window of a rail.
const bytesUsual = 64 << 20

// Import takes the peer's key as it is: the peer checks each order.
func (t *delegate) Import(number transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	l, r := t.links.Lookup(number), kit.NewReader(d)
	owner, key := r.ID(), r.U64()
	switch {
	case l == nil:
		return 0, kit.StaleLink("delegate.import", number)
	case !r.Whole() || owner != l.peer.ID || key == 0:
		return 0, errs.New(errs.InvalidArgument, "delegate.import", "not a descriptor of the peer: %d bytes", len(d))
	}
	l.greeting.Do(func() {
		t.life.Go(func() {
			l.rise(transport.Rail{Link: number, Generation: 1})
			_, _ = l.call((&message{kind: hello, seq: 1}).encode(nil)) // its first order is one, too
		})
	})
	return transport.RemoteKey(key), nil
}

// Forget has nothing to give back.
func (t *delegate) Forget(number transport.Link, _ transport.RemoteKey) { t.links.Lookup(number) }

// Stale implements transport.Transport.
func (t *delegate) Stale() uint64 { return t.links.Stale() }

// Submit gives slices to idle lanes.
func (t *delegate) Submit(list []*transport.Slice) (n int) {
	if len(list) == 0 {
		return 0
	}
	l := t.links.Lookup(list[0].Rail.Link)
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left || list[0].Rail != l.railLocked() {
		return 0
	}
	for _, s := range list {
		if len(l.idle) == 0 {
			l.starved = true
			return n
		}
		a := l.idle[len(l.idle)-1]
		a.seq++
		a.slice, a.rail, a.id, a.canceled = s, s.Rail, s.Id, false
		m := message{kind: begin, lane: a.name, seq: a.seq, order: orderOf(s)}
		key := s.LocalKey
		if !t.life.Go(func() { a.carry(m, key) }) {
			a.slice = nil
			return n
		}
		l.idle = l.idle[:len(l.idle)-1]
		n++
	}
	return n
}

// orderOf makes an order of a slice, but for the lent memory.
func orderOf(s *transport.Slice) (o transport.Order) {
	o = transport.Order{Op: s.Op, Class: s.Class, Epoch: s.Epoch, Key: transport.LocalKey(s.RemoteKey), Bytes: s.Length,
		Offset: uint64(s.Local)}
	if s.Pieces == nil {
		o.Places = []uint64{s.Remote}
		return o
	}
	o.Bytes = s.Pieces.Bytes
	o.Offset += s.Pieces.LocalAt[s.First]
	for _, at := range s.Pieces.RemoteAt[s.First:][:s.Length/o.Bytes] {
		o.Places = append(o.Places, s.Remote+at)
	}
	return o
}

// Withdraw cancels orders. Their slices complete when the peer has answered.
func (t *delegate) Withdraw(list []*transport.Slice) {
	for _, s := range list {
		if l := t.links.Peek(s.Rail.Link); l != nil {
			l.cancel(func(a *lane) bool { return a.slice == s })
		}
	}
}

// Fence ends the rail's generation, cancels all, and brings the next one up.
func (t *delegate) Fence(rail transport.Rail) {
	l := t.links.Lookup(rail.Link)
	if l == nil {
		return
	}
	l.mu.Lock()
	if rail != l.railLocked() {
		l.mu.Unlock()
		return
	}
	l.generation++
	next := l.railLocked()
	l.mu.Unlock()
	l.cancel(func(a *lane) bool { return a.rail == rail })
	t.sink.RailDown(rail, withdrawn())
	l.rise(next)
}

// Detach ends a link. Orders under way are cancelled; lanes go on until the peer has answered, or has ended.
func (t *delegate) Detach(number transport.Link) {
	l := t.links.Detach(number)
	if l == nil {
		return
	}
	l.mu.Lock()
	l.left = true
	l.mu.Unlock()
	l.cancel(func(*lane) bool { return true })
}

// cancel takes back the orders of lanes.
func (l *link) cancel(meant func(*lane) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.lanes {
		if a.slice == nil || a.canceled || !meant(a) {
			continue
		}
		a.canceled = true
		select {
		case a.wake <- struct{}{}:
		default:
		}
		m := message{kind: cancel, lane: a.name, seq: a.seq}
		l.t.life.Go(func() { _, _ = l.call(m.encode(nil)) }) // the lane's own call has the answer
	}
}

// Limits of calls.
const (
	callLimit = 3 * time.Second
	pauseMost = 500 * time.Millisecond
	pauseBusy = 2 * time.Millisecond
)

func (l *link) call(b []byte) (*answer, *errs.Error) {
	ctx, done := context.WithTimeout(l.t.alive, callLimit)
	defer done()
	got, err := l.t.host.Call(ctx, l.peer, b)
	if err != nil {
		return nil, errs.From(Name, err)
	}
	return readAnswer(got)
}

// carry gives the peer an order and completes its slice with the end.
func (a *lane) carry(m message, key transport.LocalKey) {
	l := a.link
	lent, is := l.t.deputy.Lent(key)
	if !is {
		a.complete(errs.New(errs.AddressNotRegistered, Name, "the memory is lent to nobody").
			WithScope(errs.ScopeSlice, errs.SideLocal))
		return
	}
	m.order.Lent = lent
	m.order.Offset -= uint64(lent.Addr)
	pause := pauseBusy
	for {
		got, err := l.call(m.encode(nil))
		switch {
		case err != nil && err.EndsPeer():
			a.complete(err)
			l.t.sink.LinkDown(l.number, err)
			return
		case err != nil && final(err):
			a.complete(err)
			return
		case err != nil && l.t.alive.Err() != nil:
			a.complete(errs.New(errs.Lost, Name, "the engine was closed before the peer had answered").
				WithScope(errs.ScopeLink, errs.SideLocal))
			return
		case err != nil:
			pause = min(2*pause, pauseMost)
			a.rest(pause)
			m.kind = a.next(m.kind)
		case got.state == busy || got.state == unknown:
			a.rest(pauseBusy)
			m.kind = a.next(begin)
		case got.state == pending:
			l.t.sink.Progress(a.rail)
			m.kind = a.next(ask)
		default:
			if got.dirty {
				l.confine(key)
			}
			a.complete(got.err)
			return
		}
	}
}

// final reports an error by which the peer says that no order of ours is under way there: it has ended those that were.
func final(err *errs.Error) bool {
	switch err.Code {
	case errs.NotImplemented, errs.EngineClosed, errs.PeerNotAdmitted, errs.Protocol:
		return true
	}
	return false
}

// next is the kind of the next message: an order that was taken back is cancelled.
func (a *lane) next(kind uint8) uint8 {
	a.link.mu.Lock()
	defer a.link.mu.Unlock()
	if a.canceled {
		return cancel
	}
	return kind
}

func (a *lane) rest(pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.wake:
	case <-a.link.t.alive.Done():
	}
}

// confine takes the peer's rights to the lent memory back, for a transfer of its that has left slices.
func (l *link) confine(key transport.LocalKey) {
	ctx, done := context.WithTimeout(context.Background(), callLimit)
	defer done()
	if err := l.t.deputy.Confine(ctx, key, l.peer); err != nil {
		l.t.host.Log().Warn("a peer may still touch memory that was lent to it", "peer", l.peer.Address, "err", err)
	}
}

// complete ends the lane's slice.
func (a *lane) complete(err *errs.Error) {
	l := a.link
	l.mu.Lock()
	done := transport.Completion{Slice: a.slice, Id: a.id, Err: err}
	if err == nil {
		done.Bytes = a.slice.Length
	}
	a.slice = nil
	l.idle = append(l.idle, a)
	starved, rail := l.starved, l.railLocked() // the slice's may be over
	l.starved = false
	l.mu.Unlock()
	l.t.sink.Complete([]transport.Completion{done})
	if starved {
		l.t.sink.Ready(rail)
	}
}
