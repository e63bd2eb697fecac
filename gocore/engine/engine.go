package engine

import (
	"context"
	"log/slog"
	"math"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/audit"
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/meta"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/transport"
)

// Version of the engine and of its messages on the wire; major versions must agree.
const Version = control.Version

// Release is the version of the package; builds of the extension and of the C library set it (-ldflags=-X).
var Release = "unreleased"

// Options of an engine.
type Options struct {
	Config     *config.Config // nil: defaults
	Transports []Plug
	// Platforms find the device of memory that is registered. Those that cannot work here are left out.
	Platforms []device.Platform
	// Dial makes the control plane's connections; nil is net.Dialer's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Engine is one process's instance. Two engines in one process share nothing.
type Engine struct {
	config   *config.Config
	log      *slog.Logger
	policies plan.Policies
	store    meta.Store // of names

	// Our identity for peers.
	name        string
	host        meta.Host
	address     string   // of the control plane
	others      []string // beside address
	port        int
	machine     string
	network     string
	credentials *security.Credentials
	protection  transport.Protection // of bytes between hosts, at least

	// The core and its mirrors.
	mu       sync.Mutex
	core     *dispatch.Core
	batches  []*batch // by slot
	active   int      // batches that have not ended
	unshown  int      // of these, those that the page may not show before they end; see show
	refuses  bool     // batches take no calls any more
	gone     bool     // Close has ended
	waiters  waiterPool
	taken    inbox // the emptied other half of inbox
	links    linkTable
	armed    clock.Time // when the progress goroutine runs a step
	deferred deferredWork
	tails    tails

	inbox        inbox
	again        atomic.Bool // the core wants another step at once
	progressWake chan struct{}
	idle         chan struct{} // active has become 0, for Close
	page         *page
	hints        []hint // of batches, by slot
	spinner      spinner
	ring         ring
	signal       *signal // completions of watched batches, log records

	ports   []*port // one a plug, also for those that are not open
	pollers pollers

	// Our memory.
	numa        numa
	platforms   platforms
	gates       gates
	regions     regionTable
	allocations allocations
	staging     stagePools
	grids       gridTable
	offers      offers
	rules       rules
	leases      *leaseKeeper
	fences      atomic.Uint64 // of all our regions so far, see fences.go

	// Peers.
	segments  segmentTable
	planEpoch atomic.Uint64 // grows when links or keys for all peers change: plans of before are made anew
	server    *control.Server
	client    *control.Client
	visitors  visitors
	notifier  *notifier
	notes     *notes
	reporter  *reporter
	changes   *changes
	renewals  *renewals
	shared    sharing

	// For operators.
	history  history
	logs     logs
	refusals *refusals
	audit    *audit.Log // nil without security/audit
	served   endpoints

	routines background    // those that have no part of their own
	closed   atomic.Bool   // Close was called
	ended    chan struct{} // it has ended
	held     []string      // its result; read behind ended
}

// Open starts an engine. When a part cannot start, it takes back the others before it returns the error.
func Open(ctx context.Context, o Options) (*Engine, error) {
	e, err := start(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := e.openNames(ctx); err != nil { // peers may come as soon as they find the name, so it is the last step
		e.Close(0, true)
		_ = e.Forget()
		return nil, err
	}
	return e, nil
}

// start starts everything but the name. Each part may use those before it.
func start(ctx context.Context, o Options) (_ *Engine, err error) {
	if o.Config == nil {
		if o.Config, err = config.Load(config.Options{Transports: tableOf(o.Transports)}); err != nil {
			return nil, err
		}
	}
	e, undo := newEngine(o), &steps{}
	defer func() {
		if err != nil {
			undo.run()
		}
	}()
	c := &o.Config.Engine
	if e.credentials, err = security.Open(securityOf(c)); err != nil {
		return nil, err
	}
	if err = e.openAudit(c.Audit); err != nil {
		return nil, err
	}
	undo.add(e.closeAudit)
	if err = e.openSignals(undo); err != nil {
		return nil, err
	}
	undo.add(e.notifier.close)
	undo.add(e.endTalk)
	if err = e.listen(o, undo); err != nil {
		return nil, err
	}
	e.core = dispatch.New(e.coreOptions(o))
	if err = e.plugIn(ctx, o, undo); err != nil {
		return nil, err
	}
	if err = e.openSharing(ctx, undo); err != nil {
		return nil, err
	}
	e.logInactive()
	if c.Insecure {
		e.announce(&event.Event{Kind: event.Insecure})
	}
	e.openSelf()
	e.server.Start((*answers)(e))
	e.startRoutines()
	e.serveConfigured()
	e.auditOpened()
	return e, nil
}

// newEngine makes an engine of which nothing has started.
func newEngine(o Options) *Engine {
	c := &o.Config.Engine
	e := &Engine{config: o.Config, protection: protectionOf(c), name: c.Name,
		machine: meta.MachineID(), network: meta.NetworkID(), numa: readNUMA(),
		spinner: spinner{cores: runtime.NumCPU(), busyPoll: c.BusyPoll},
		armed:   clock.Never, tails: tails{syncs: syncing{limit: clock.Never}, notes: noteLimits{next: clock.Never}},
		progressWake: make(chan struct{}, 1), idle: make(chan struct{}, 1), ended: make(chan struct{}),
		page: newPage(c.MaxBatches), batches: make([]*batch, c.MaxBatches), hints: make([]hint, c.MaxBatches),
		store: meta.PeerToPeer{}}
	if !c.LegacySelection {
		e.policies = plan.NewPolicies(c.Policies)
	}
	e.logs.engine, e.logs.level = e, logLevel(c.LogLevel)
	e.log = slog.New(&handler{logs: &e.logs})
	e.allocations.init()
	e.staging.init()
	e.grids.byID = make(map[GridID]*grid)
	e.segments.peers = make(map[peerKey]*peer)
	e.routines.init()
	e.refusals, e.leases, e.notifier = newRefusals(e, o.Transports), newLeaseKeeper(e), newNotifier(e)
	e.reporter, e.changes, e.renewals = newReporter(e.sendReports), newChanges(e.tellChange), newRenewals()
	return e
}

// openSignals makes the descriptors that event loops of the program watch.
func (e *Engine) openSignals(undo *steps) (err error) {
	if e.signal, err = newSignal(); err != nil {
		return err
	}
	undo.add(func() { _ = e.signal.close() })
	c := &e.config.Engine
	e.notes, err = newNotes(c.NotificationQueue, int(c.NotificationBytes),
		func(id transport.ID) bool { return e.server.Connected(id) })
	if err != nil {
		return err
	}
	undo.add(e.notes.close)
	return nil
}

// securityOf returns the settings of security.
func securityOf(c *config.Engine) security.Settings {
	return security.Settings{ClusterKey: c.ClusterKey, LocalUsers: c.LocalUsers, Allow: c.Allow, Insecure: c.Insecure,
		Files: security.Files{Certificate: c.Certificate, Key: c.Key, Authorities: c.Authorities}}
}

// startRoutines starts the goroutines that Close stops.
func (e *Engine) startRoutines() {
	keep := []func(context.Context){e.progress, e.keepTraps}
	if e.gates.streams != nil {
		keep = append(keep, e.keepGates)
	}
	if e.credentials.Mode() == security.MTLS {
		keep = append(keep, e.keepCredentials)
	}
	for _, f := range keep {
		e.routines.start(func() { f(e.routines.ctx) })
	}
}

// steps undoes the steps of Open, last first.
type steps struct{ list []func() }

func (s *steps) add(f func()) { s.list = append(s.list, f) }

func (s *steps) run() {
	for i := len(s.list) - 1; i >= 0; i-- {
		s.list[i]()
	}
}

func (e *Engine) closeServer() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := e.server.Close(ctx); err != nil {
		e.log.Warn("control server", "err", err)
	}
}

// logInactive logs once which settings have no effect, since somebody set them for a reason.
func (e *Engine) logInactive() {
	for _, s := range e.config.Inactive() {
		e.log.Warn("a setting has no effect", "key", s.Key, "why", s.Why)
	}
}

// openSelf makes our own memory segment 0. Its links are attached at its first use.
func (e *Engine) openSelf() {
	identity := e.Self()
	identity.Self = true
	p := e.peer(identity)
	e.segments.mu.Lock()
	e.segments.add(&handle{peer: p})
	e.segments.mu.Unlock()
}

func logLevel(name string) slog.Level {
	return map[string]slog.Level{"debug": slog.LevelDebug, "warning": slog.LevelWarn, "error": slog.LevelError,
		"off": math.MaxInt}[name]
}

// usable is the first look of every call.
func (e *Engine) usable() error {
	if e.closed.Load() {
		return closedError()
	}
	return nil
}

// closedError is the error of every call after Close began.
func closedError() *errs.Error {
	return errs.New(errs.EngineClosed, "engine", "the engine is closed")
}

// Address is all that a peer needs to know: "host:port" of the control plane.
func (e *Engine) Address() string { return e.address }

// Name is the one from the settings, else the address.
func (e *Engine) Name() string { return e.name }

// Self describes this engine as peers see it.
func (e *Engine) Self() transport.Peer {
	return transport.Peer{Address: e.address, Name: e.name, MachineID: e.machine, Network: e.network,
		ID: e.credentials.ID(), Protects: e.protection}
}

// Port of the control plane.
func (e *Engine) Port() int { return e.port }

// Config returns the effective settings.
func (e *Engine) Config() *config.Config { return e.config }

// Transports returns the names by the index that statuses carry.
func (e *Engine) Transports() []string {
	names := make([]string, len(e.ports))
	for i, p := range e.ports {
		names[i] = p.name
	}
	return names
}

// EventFd becomes readable when a watched batch has ended or a log record waits. It is -1 behind Close.
func (e *Engine) EventFd() int { return e.signal.number() }

// NoteFd is readable while notifications wait. It is -1 behind Close.
func (e *Engine) NoteFd() int { return e.notes.signal.number() }
