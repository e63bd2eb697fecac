package tcp

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Name of this transport in settings, metrics and errors.
const Name = "tcp"

// Factory makes tcp transports; see transport.Factory. The zero value is for this machine.
type Factory struct {
	Root      fs.FS                     // a file system with sys below it, for where NICs are; nil: this machine's
	Interface func(a netip.Addr) string // name of the interface that has an address, "" for none; nil: asks the kernel
}

var (
	_ transport.Factory    = Factory{}
	_ transport.Configured = Factory{}
	_ transport.Listener   = (*Settings)(nil)
	_ transport.Transport  = (*Transport)(nil)
	_ transport.Parker     = (*Transport)(nil)
	_ transport.Notifier   = (*Transport)(nil)
	_ transport.Prober     = (*Transport)(nil)
	_ transport.Witness    = (*Transport)(nil)
	_ transport.Explainer  = (*Transport)(nil)
	_ transport.Reacher    = (*Transport)(nil)
	_ transport.Visited    = (*Transport)(nil)
	_ transport.Renamer    = (*Transport)(nil)
)

// Name returns "tcp".
func (Factory) Name() string { return Name }

// Settings returns the struct with the keys as tags; see transport.Configured.
func (Factory) Settings() any { return Settings{} }

// Check reports why TCP sockets cannot work here: never, on a Linux that lets us make one.
func (Factory) Check() error {
	fd, err := newSocket(netip.IPv4Unspecified())
	if err != nil {
		return errs.Wrap(errs.DeviceNotFound, "tcp.check", err).WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	return unix.Close(fd)
}

// Open listens on the configured addresses and starts the workers. config is Settings, *Settings or nil.
func (f Factory) Open(_ context.Context, config any, host transport.Host, sink transport.Sink) (
	transport.Transport, error,
) {
	s, err := settled(config)
	if err != nil {
		return nil, err
	}
	return open(s, newPlaces(f), host, sink)
}

// Transport moves slices over TCP. All methods may be called from any goroutine.
type Transport struct {
	settings Settings
	host     transport.Host
	sink     transport.Sink
	self     transport.Peer
	ends     []netip.Addr // where data is accepted, and local ends of rails
	regions  *regions

	epfd, stopFd int
	bulkFd       int // epoll of the lanes that are not class 0's, itself in epfd; see turns.go
	listeners    []*listener
	workers      sync.WaitGroup
	running      sync.WaitGroup // links; Attach adds under life
	tasks        sync.WaitGroup // goroutines of single calls, see spawn
	quit         context.Context
	cancel       context.CancelFunc

	polling  [groupCount]atomic.Bool // waiters look at the initiator's lanes themselves
	sweeping atomic.Bool             // a sweep is due
	sweeper  *time.Timer
	spinning atomic.Int32
	spinners int32         // most at once
	spinTime time.Duration // of each, 0: never

	spareMu sync.Mutex
	spare   []*worker
	ending  bool // no new tasks

	conns    kit.Slots[connKey, conn]
	attended [groupCount]laneList // those of class 0 are looked at first
	nextLane atomic.Uint64

	links kit.Links[link]

	attachments attachments
	places      *places
	watch       watch // of our own ends
	strangers   strangers
	pulse       pulse
	epoch       atomic.Uint64 // the newest of a fence, see revoke.go
	life        kit.Lifecycle
	quiet       atomic.Bool // Close has come so far that nobody reads lanes of peers
}

func open(s Settings, where *places, host transport.Host, sink transport.Sink) (_ *Transport, err error) {
	t := &Transport{settings: s, host: host, sink: sink, self: host.Self(), regions: &regions{}, places: where,
		epfd: -1, stopFd: -1, bulkFd: -1, spinners: int32(runtime.GOMAXPROCS(0) / 2), spare: make([]*worker, 0, 8)}
	t.quit, t.cancel = context.WithCancel(context.Background())
	t.spinTime = max(s.Spin, s.BusyPoll)
	t.sweeper = time.AfterFunc(time.Hour, t.sweep)
	t.pulse.timer = time.AfterFunc(time.Hour, t.beat)
	if s.BusyPoll > 0 {
		t.spinners = min(t.spinners, int32(s.Workers)-1) // the others' lanes wait for no spinner
	}
	descriptors := descriptorLimit()
	t.attachments.init(t, max(lanesMin, descriptors/lanesShare))
	t.strangers.most = min(strangersMax, max(strangersOfHost, descriptors/strangersShare))
	defer func() {
		if err != nil {
			t.closeSockets()
			t.cancel()
		}
	}()
	if t.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, openError(err)
	}
	if t.bulkFd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, openError(err)
	}
	if t.stopFd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, openError(err)
	}
	event := taggedEvent(unix.EPOLLIN, tagStop, 0)
	if err = unix.EpollCtl(t.epfd, unix.EPOLL_CTL_ADD, t.stopFd, &event); err != nil {
		return nil, openError(err)
	}
	if err = t.watchBulk(unix.EPOLL_CTL_ADD); err != nil {
		return nil, openError(err)
	}
	if t.ends, err = t.settings.ends(host.Addresses()); err != nil {
		return nil, err
	}
	for i, a := range t.ends {
		if err = t.listen(i, a); err != nil {
			return nil, err
		}
	}
	if err = t.watchEnds(t.ends); err != nil {
		return nil, openError(err)
	}
	for range s.Workers {
		t.workers.Add(1)
		go t.work()
	}
	return t, nil
}

func openError(err error) error {
	return errs.Wrap(errs.Internal, "tcp.open", err).WithScope(errs.ScopeTransport, errs.SideLocal)
}

// Info describes the transport: host memory to host memory, any alignment.
func (t *Transport) Info() transport.Info {
	info := transport.Info{Name: Name, Versions: t.versions(), Checksums: true, Protects: true, Quiesces: true,
		Alignment: 1,
		SlicesMax: t.settings.CreditRequests, SliceMax: t.settings.SliceBytes,
		SliceBest: min(t.settings.SliceBytes, 1<<20)}
	info.Pairs[mem.Host][mem.Host] = true
	return info
}

// versions are those of the protocol that this engine speaks. Lanes of the first one have no protection.
func (t *Transport) versions() transport.Versions {
	if t.self.Protects > transport.Auth {
		return transport.Versions{First: version, Last: version}
	}
	return transport.Versions{First: versionFirst, Last: version}
}

func (t *Transport) speaks(v uint8) bool {
	of := t.versions()
	return of.First <= uint16(v) && uint16(v) <= of.Last
}

// Register makes a region of host memory usable; the descriptor holds no address.
func (t *Transport) Register(_ context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	if err := kit.CheckRegister("tcp.register", &t.life, &m); err != nil {
		return 0, nil, err
	}
	r := t.regions.register(m)
	if r == nil {
		return 0, nil, errs.New(errs.TooManyRequests, "tcp.register", "%d regions are registered, which is the limit",
			kit.SlotsMax).WithScope(errs.ScopeTransport, errs.SideLocal)
	}
	return transport.LocalKey(r.key), r.describe(t.self.ID), nil
}

// Deregister forgets a region. Peers that still name it are refused.
func (t *Transport) Deregister(_ context.Context, key transport.LocalKey) error {
	r := t.regions.Delete(uint64(key))
	if r == nil {
		return kit.NoRegion("tcp.deregister", key)
	}
	return nil
}

// Import reads a peer's descriptor.
func (t *Transport) Import(link transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	l := t.links.Lookup(link)
	if l == nil {
		return 0, kit.StaleLink("tcp.import", link)
	}
	key, err := readDescriptor(d, l.peer.ID)
	if err != nil {
		return 0, l.attribute(err)
	}
	return key, nil
}

// Forget implements transport.Transport. A key is the owner's own and takes nothing here.
func (t *Transport) Forget(link transport.Link, _ transport.RemoteKey) { t.links.Lookup(link) }

// Explain returns the rails of a link and their state, a line each.
func (t *Transport) Explain(link transport.Link) string {
	if l := t.links.Lookup(link); l != nil {
		return l.explain()
	}
	return fmt.Sprintf("tcp: link %v has ended", link)
}

// Stale implements transport.Transport.
func (t *Transport) Stale() uint64 { return t.links.Stale() }
