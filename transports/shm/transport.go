package shm

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/shm/copying"
)

// Name of this transport in settings, metrics and errors.
const Name = "shm"

// regionsMax bounds the regions of one engine. A page of a peer has a word for each; words that are not used cost
// nothing.
const regionsMax = 1 << 18

// Factory makes shm transports; see transport.Factory.
type Factory struct{}

var (
	_ transport.Factory    = Factory{}
	_ transport.Configured = Factory{}
	_ transport.Transport  = (*Transport)(nil)
	_ transport.Poller     = (*Transport)(nil)
	_ transport.Inliner    = (*Transport)(nil)
	_ transport.Allocator  = (*Transport)(nil)
	_ transport.Explainer  = (*Transport)(nil)
	_ transport.Visited    = (*Transport)(nil)
)

// Name returns "shm".
func (Factory) Name() string { return Name }

// Settings returns the struct with the keys as tags; see transport.Configured.
func (Factory) Settings() any { return Settings{} }

// Check reports why memory cannot be shared here: no /proc, or a kernel before 5.10 (memfd_create, pidfd_open).
func (Factory) Check() error {
	me, err := vm.Self()
	if err != nil {
		return errs.Wrap(errs.DeviceNotFound, "shm.check", err).WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	p, err := vm.Open(me.PID, me.Started)
	if err != nil {
		return errs.Wrap(errs.DeviceNotFound, "shm.check", err).WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	p.Close()
	fd, err := unix.MemfdCreate("tent-check", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return errs.New(errs.DeviceNotFound, "shm.check", "memfd_create: %v", err).
			WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	return unix.Close(fd)
}

// Open starts the copy workers. given is Settings, *Settings or nil.
func (Factory) Open(_ context.Context, given any, host transport.Host,
	sink transport.Sink) (transport.Transport, error) {
	s, err := config.Settled[Settings](given, Name)
	if err != nil {
		return nil, err
	}
	return open(s, host, sink)
}

// Transport copies slices between memories of this host. All methods may be called from any goroutine.
type Transport struct {
	*access.Point // peers that we let in, and our way in elsewhere

	settings Settings
	sink     transport.Sink
	self     transport.Peer
	regions  kit.Slots[transport.LocalKey, region]
	memory   memory
	copier   *copying.Copier
	mapped   atomic.Int64 // bytes of files of peers

	queue    queue
	crew     crew
	polling  atomic.Bool // a waiter copies queued slices
	inlining atomic.Bool // a submitter does

	life  kit.Lifecycle
	links kit.Links[link]
}

func open(s Settings, host transport.Host, sink transport.Sink) (*Transport, error) {
	t := &Transport{settings: s, sink: sink, self: host.Self(), copier: copying.New()}
	c := access.Config{Name: Name, Version: version, Regions: regionsMax, Host: host, Sink: sink, Life: &t.life,
		Own: t.own, Links: t.ends, Shut: t.shut, Welcome: t.welcome, Ended: tracers.release}
	if s.Trust == TrustNone {
		c.Trust = errors.New("transports/shm/trust is none")
	}
	err := t.memory.checkFolder(s.CXLMountPath)
	if err != nil {
		return nil, err
	}
	if t.Point, err = access.Open(c); err != nil {
		return nil, err
	}
	t.queue.init()
	t.crew.start(t, s.Workers)
	return t, nil
}

// Serve answers a peer's transport: somebody greets us, has left our memory, or closes.
func (t *Transport) Serve(ctx context.Context, from transport.Peer, message []byte) ([]byte, error) {
	return t.Answer(ctx, from, message)
}

// ends yields the links.
func (t *Transport) ends() iter.Seq[*access.Link] {
	return func(yield func(*access.Link) bool) {
		for _, l := range t.links.All() {
			if !yield(&l.Link) {
				return
			}
		}
	}
}

// shut yields the regions that were shut for a peer alone.
func (t *Transport) shut(peer transport.ID) iter.Seq2[hazard.Region, transport.Epoch] {
	return func(yield func(hazard.Region, transport.Epoch) bool) {
		for _, r := range t.regions.All() {
			if epoch, was := r.door.Alone(peer); was && !yield(r.name, epoch) {
				return
			}
		}
	}
}

// welcome names the one process to which we gave ourselves under Yama's scope 1, vm.AnyTracer for all.
func (t *Transport) welcome(g *access.Grant) int32 { return tracers.admit(g, t.settings.AnyTracer) }

// own reports whether a peer is our own engine. Its memory is ours to copy. Another engine of this process counts as
// any other process: its words came over the network.
func (t *Transport) own(peer transport.Peer) bool { return peer.Self && t.settings.reach == reachAll }

// Info describes the transport: host memory to host memory of this machine, any alignment.
func (t *Transport) Info() transport.Info {
	info := transport.Info{Name: Name, Versions: transport.Versions{First: version, Last: version}, Vectors: true,
		SameHost: true, Copies: true, SliceMax: 16 << 20, SliceBest: 4 << 20, Alignment: 1,
		SlicesMax: slicesMax}
	info.Pairs[mem.Host][mem.Host] = true
	return info
}

// Stale implements transport.Transport.
func (t *Transport) Stale() uint64 { return t.links.Stale() }

// Explain returns how the peer's memory is reached, or why not.
func (t *Transport) Explain(number transport.Link) string {
	l := t.links.Lookup(number)
	if l == nil {
		return fmt.Sprintf("shm: link %v has ended", number)
	}
	return l.explain()
}

func (l *link) explain() string {
	if cause := l.Gone(); cause != nil {
		return "shm: down: " + cause.Error()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.met:
		return "shm: the peer has not answered our greeting yet"
	case l.t.own(l.Peer):
		return "shm: our own engine"
	case l.foreign != nil:
		return fmt.Sprintf("shm: memory that tent allocated is mapped from process %d; other memory is out of "+
			"reach: %v", l.pid, l.foreign)
	}
	return fmt.Sprintf("shm: memory that tent allocated is mapped from process %d, other memory is read and written "+
		"by process_vm_readv and process_vm_writev; %d files are mapped", l.pid, len(l.mappings))
}

// Close ends everything. Slices are completed, peers told, and the memory of this process is left alone by all of them,
// or the error names the copies and the peers that cannot be waited for. Memory from Allocate stays until it is freed.
func (t *Transport) Close(ctx context.Context) error {
	return t.life.Close(context.Background(), func() error { // each step is bounded, by ctx or by access.RevokeLimit
		ctx, cancel := access.Bounded(ctx)
		defer cancel()
		for number := range t.links.All() {
			t.Detach(number)
		}
		t.Wait() // each link's end is bounded
		var stuck error
		if !t.crew.stop(leaveLimit) {
			stuck = t.queue.stuck()
		}
		err := t.Point.Close(ctx)
		if err != nil {
			t.memory.keepAll()
		}
		t.memory.closeFiles()
		return errors.Join(stuck, err)
	})
}
