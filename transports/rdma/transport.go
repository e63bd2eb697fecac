package rdma

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// Name of this transport in settings, metrics and errors.
const Name = "rdma"

// Factory makes rdma transports; see transport.Factory.
type Factory struct{}

var (
	_ transport.Configured   = Factory{}
	_ transport.Listener     = (*Settings)(nil)
	_ transport.Homed        = (*Settings)(nil)
	_ transport.Surveyor     = Factory{}
	_ transport.Examiner     = Factory{}
	_ transport.Parker       = (*Transport)(nil)
	_ transport.Prober       = (*Transport)(nil)
	_ transport.Matcher      = (*Transport)(nil)
	_ transport.Remapper     = (*Transport)(nil)
	_ transport.Flusher      = (*Transport)(nil)
	_ transport.Disconnecter = (*Transport)(nil)
	_ transport.Visited      = (*Transport)(nil)
	_ transport.Explainer    = (*Transport)(nil)
)

// Name returns "rdma".
func (Factory) Name() string { return Name }

// Settings returns the struct with the keys as tags; see transport.Configured.
func (Factory) Settings() any { return Settings{} }

// Check returns why there is no RDMA here: no library, a damaged one, no device.
func (Factory) Check() error {
	library, err := verbs.Load("")
	if err == nil {
		_, err = library.Devices()
	}
	if err == nil {
		return nil
	}
	return errs.Wrap(errs.DeviceNotFound, "rdma.check", err).WithScope(errs.ScopeTransport, errs.SideLocal)
}

// Survey describes each device and its port.
func (Factory) Survey() (lines []string) {
	library, err := verbs.Load("")
	if err != nil {
		return []string{err.Error()}
	}
	names, err := library.Devices()
	if err != nil {
		return []string{err.Error()}
	}
	for _, name := range names {
		lines = append(lines, surveyOf(library, name))
	}
	return lines
}

func surveyOf(library *verbs.Library, name string) string {
	d, err := library.Open(name)
	if err != nil {
		return fmt.Sprintf("%s: %v", name, err)
	}
	defer func() { _ = d.Close() }()
	port, err := d.Port(1)
	if err != nil {
		return fmt.Sprintf("%s: %v", name, err)
	}
	state, kind := "down", "InfiniBand"
	if port.Active {
		state = "active"
	}
	if port.Ethernet {
		kind = "RoCE"
	}
	gids, _ := d.GIDs(1)
	return fmt.Sprintf("%s: %s, port 1 %s, MTU %d, %d addresses", name, kind, state, 128<<port.MTU, len(gids))
}

// Transport is one engine's RDMA. Any goroutine may call it.
type Transport struct {
	settings Settings
	host     transport.Host
	sink     transport.Sink
	self     transport.Peer
	library  *verbs.Library
	devices  atomic.Pointer[[]*device] // by index; written by Open and scan
	changing sync.Mutex                // one device comes or goes at a time
	changes  atomic.Uint64             // of the devices: registrations that met one look again
	flush    bool                      // WRITEs are flushed
	plan     lanePlan
	reach    reachTable
	matrix   matrix     // nil: distances count
	pairs    []railPair // nil: the i-th with the i-th

	life    kit.Lifecycle
	ctx     context.Context // ends when Close begins
	cancel  context.CancelFunc
	links   kit.Links[link]
	regions kit.Slots[transport.LocalKey, region]
	guests  guests
	batches batches
	closing sync.Map       // links that Close has to end
	calls   sync.WaitGroup // that use devices: Close waits for them
	emptied chan struct{}  // closed once Close has dismissed all guests

	polling atomic.Bool // a waiter takes completions
	births  atomic.Uint64
	flushes atomic.Uint64
}

// Open opens the devices. Those that fail are left out, unless all do.
func (Factory) Open(_ context.Context, config any, host transport.Host, sink transport.Sink) (transport.Transport,
	error,
) {
	settings, err := settled(config)
	if err != nil {
		return nil, err
	}
	t := &Transport{settings: settings, host: host, sink: sink, self: host.Self(), flush: settings.flushes(),
		emptied: make(chan struct{}),
		guests:  guests{byKey: map[guestKey]*guest{}, count: map[transport.ID]int{}, out: map[transport.ID]*exile{}}}
	if err := t.arrange(); err != nil {
		return nil, err
	}
	if t.library, err = verbs.Load(settings.Library); err != nil {
		return nil, errs.Wrap(errs.DeviceNotFound, "rdma.open", err).WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	names, err := t.library.Devices()
	if err != nil {
		return nil, errs.Wrap(errs.DeviceNotFound, "rdma.open", err).WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	var failed error
	var list []*device
	for _, name := range settings.chosen(names) {
		if len(list) == devicesMax {
			break
		}
		d, err := t.openDevice(len(list), name)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		list = append(list, d)
	}
	t.devices.Store(&list)
	if len(list) == 0 {
		t.cancel()
		return nil, errs.New(errs.DeviceNotFound, "rdma.open", "none of the devices %s can be used: %v",
			strings.Join(names, ", "), failed).WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	for _, d := range list {
		d.listenAndAttend()
	}
	t.life.Go(t.scan)
	return t, nil
}

// arrange reads the settings of rails and their queue pairs.
func (t *Transport) arrange() (err error) {
	var unknown []string
	if t.plan, unknown, err = t.settings.plan(); err != nil {
		return err
	}
	if len(unknown) > 0 {
		t.host.Log().Warn("rdma: pools of queue pairs are named high, medium or low; others are not made",
			"pools", unknown)
	}
	if t.matrix, err = t.settings.nearness(); err != nil {
		return err
	}
	t.pairs, err = t.settings.railPairs()
	return err
}

// reachable are the kinds of memory to which NICs have a way.
var reachable = [...]mem.Kind{mem.Host, mem.Cuda, mem.Rocm}

// Info implements transport.Transport.
func (t *Transport) Info() transport.Info {
	info := transport.Info{Name: Name, Versions: transport.Versions{First: protocol, Last: protocol}, Vectors: true,
		Pins: true, Replaces: true, Alignment: 1, SliceMax: 16 << 20, SliceBest: 1 << 20, SlicesMax: slicesMax}
	for _, here := range reachable { // whether a NIC takes memory of a device is seen when it is registered
		for _, there := range reachable {
			info.Pairs[here][there] = true
		}
	}
	return info
}

// Stale implements transport.Transport.
func (t *Transport) Stale() uint64 { return t.links.Stale() }

// Explain implements transport.Explainer.
func (t *Transport) Explain(number transport.Link) string {
	l := t.links.Lookup(number)
	if l == nil {
		return "no such link"
	}
	var b strings.Builder
	for _, r := range l.list() {
		r.mu.Lock()
		works, bytes := 0, uint64(0)
		for _, lane := range r.lanes {
			if lane.works {
				works++
			}
			bytes += lane.bytes
		}
		state := [...]string{"down", "announced", "up"}[r.state]
		if !r.wanted {
			state += ", not connected because it is not used"
		}
		fmt.Fprintf(&b, "rail %d %s: %s, generation %d, %d of %d queue pairs, %d slices wait, %d bytes are out",
			r.index, r.name(), state, r.generation, works, len(r.lanes), r.queue.Len(), bytes)
		if r.cause != nil {
			fmt.Fprintf(&b, ", down because of: %v", r.cause)
		}
		r.unlock()
		b.WriteString("\n")
	}
	if b.Len() == 0 {
		return "the peer has not answered yet"
	}
	return b.String()
}

// Close implements transport.Transport. Peers hear of it once nothing that they might send is carried out any more.
func (t *Transport) Close(ctx context.Context) error {
	t.cancel()
	for _, d := range t.nics() {
		d.wake()
	}
	return t.life.Close(ctx, func() error {
		return t.end(ctx)
	})
}

// enter begins a call that uses devices, unless the transport is closed. calls.Done ends it.
func (t *Transport) enter() bool { return t.life.Begin(func() { t.calls.Add(1) }) }

// end gives everything back: access of peers first, then our own links, then memory and devices. An error says that a
// peer may still reach memory.
func (t *Transport) end(ctx context.Context) (failed error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*silence)
	defer cancel()
	t.calls.Wait()
	heard := map[transport.ID]transport.Peer{}
	for _, g := range t.guests.all(transport.ID{}) {
		heard[g.key.id] = g.peer
		if err := t.dismiss(g); err != nil {
			failed = err
		}
	}
	if failed == nil {
		close(t.emptied)
	}
	for number, l := range t.links.All() {
		heard[l.peer.ID] = l.peer
		t.Detach(number)
	}
	var wait sync.WaitGroup
	for l := range t.closing.Range {
		wait.Go(func() {
			l.(*link).leave(ctx)
			l.(*link).abandon()
		})
	}
	wait.Wait()
	for _, peer := range heard {
		if !peer.Self && failed == nil { // it would take the end of the link for that of our queue pairs
			wait.Go(func() { _, _ = t.host.Call(ctx, peer, message(kindGoodbye, 0)) }) // it finds out by itself
		}
	}
	wait.Wait()
	for key, r := range t.regions.All() {
		t.regions.Delete(key)
		r.mu.Lock()
		r.ended = true
		last := r.keys.Load()
		r.mu.Unlock()
		failed = errors.Join(failed, r.endAll(last.remote))
		r.closeBuffer()
		r.users.Add(-ending) // no queue pair is left that could use them
		r.unpin()
	}
	for _, d := range t.nics() {
		if !d.given.Load() {
			d.take()
			d.close()
		}
	}
	return failed
}
