package engine

import (
	"cmp"
	"context"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/gocore/vmem"
)

// region is a registered range of this process. The caller owns its memory, and keeps it mapped until CloseRegion has
// returned and every transfer that uses it locally has ended; uses counts those.
type region struct {
	mem.Region
	on          []atomic.Pointer[registration] // by transport; nil: not asked, or no answer yet
	registering registering
	registered  clock.Time      // when its registration began
	lent        bool            // to one peer, for its orders; see lending.go
	owner       freer           // of memory of tent, which takes it back; nil: it is the caller's
	node        atomic.Int32    // NUMA node plus one, see node.go
	platform    device.Platform // that has the memory; nil: the host, or nobody could say
	managed     bool            // the platform moves its pages
	rule        *rule           // the peers to which its permission is given; nil: all of them
	lease       *lease          // it is one, and no region by itself; nil: it is a region
	parts       parts           // its leases
	out         atomic.Bool     // no peer can reach it any more
	pinned      bool            // it is for a transport that pins pages

	// uses counts local transfers, +1 while the region is open; the call that takes it to 0 deregisters.
	uses   atomic.Int64
	engine *Engine
	life   regionLife
}

// freer takes back memory that the engine got from it.
type freer interface{ Free(mem.Region) error }

// use takes a use for a batch; an error when the region was closed.
func (r *region) use() *errs.Error {
	for {
		n := r.uses.Load()
		if n <= 0 || r.life.state() != regionOpen {
			return errs.New(errs.AddressNotRegistered, "submit", "the region %s was closed", r.label())
		}
		if r.uses.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

func (r *region) unuse() {
	if r.uses.Add(-1) == 0 {
		r.engine.retire(r)
	}
}

// holds reports whether a range is inside a region; nil holds none.
func (r *region) holds(addr uintptr, length uint64) bool {
	return r != nil && addr >= r.Addr && mem.Contains(r.Size, uint64(addr-r.Addr), length)
}

func (r *region) label() string {
	if r.Name != "" {
		return `"` + r.Name + `"`
	}
	return "at its address"
}

// Memory describes a range to register.
type Memory struct {
	Addr       uintptr
	Size       uint64
	ReadOnly   bool // the buffer itself must not be written
	Name       string
	Location   mem.Location
	Permission mem.Permission
	Peers      []string // patterns of identities that have the permission (security.Names); nil: all
	Growable   bool     // Register: pages may be missing, as of a reservation; RemapRegion says that pages came or went
	Prefault   bool     // Allocate: make the pages present now, not at their first use
	HugePages  bool     // Allocate: pages of the kernel's pool of huge pages, present now
}

// Register makes memory usable as a local operand and, as far as its permission goes, by peers. It looks at the range
// first: memory that is not mapped is an error, and so is a WRITE permission on memory that is mapped for reading only.
// An error of one transport undoes all. One that cannot use the memory here is only a reason (registration.go). It
// returns when all transports have answered, or after register_wait when one is ready: the region is usable on those
// that are, and becomes usable on the others as they answer.
func (e *Engine) Register(m Memory) (mem.RegionID, error) {
	rule, err := e.rules.of(e, m)
	if err != nil {
		return 0, err
	}
	return e.register(&region{rule: rule, Region: mem.Region{Name: m.Name, Addr: m.Addr, Size: m.Size,
		Location: m.Location, Permission: m.Permission, Peers: rule.peers(), ReadOnly: m.ReadOnly,
		Growable: m.Growable, Fd: -1}})
}

func (e *Engine) register(r *region) (mem.RegionID, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	if err := check(&r.Region); err != nil {
		return 0, err
	}
	if err := e.locate(r); err != nil {
		return 0, err
	}
	if err := checkMapping(r); err != nil {
		return 0, err
	}
	if err := e.awaitFormer(r); err != nil {
		return 0, err
	}
	e.lookAtTraps()
	if err := e.regions.nameFree(r.Name); err != nil { // before the transports pin anything
		return 0, err
	}
	r.engine = e
	e.numa.place(r)
	e.enroll(r)
	r.registered = clock.Now()
	r.uses.Store(1)
	if err := e.install(r); err != nil {
		return 0, err
	}
	if err := e.regions.add(r); err != nil {
		e.deregister(r)
		return 0, err
	}
	if err := e.usable(); err != nil { // Close may have looked at the regions before, and nobody ends this one then
		ctx, done := context.WithTimeout(context.Background(), closeGrace)
		defer done()
		return 0, cmp.Or(e.CloseRegion(ctx, r.ID), err)
	}
	return r.ID, nil
}

func check(r *mem.Region) *errs.Error {
	kind, _, err := r.Location.Parse()
	switch {
	case err != nil:
		return errs.Wrap(errs.InvalidArgument, "register", err)
	case r.Size == 0:
		return errs.New(errs.InvalidArgument, "register", "the size is 0").WithHint("a region has at least one byte")
	case r.Addr == 0:
		return errs.New(errs.InvalidArgument, "register", "the address is 0")
	case uint64(r.Addr)+r.Size < r.Size || r.Size > 1<<62:
		return errs.New(errs.InvalidArgument, "register", "%d bytes at %#x wrap around 2^64", r.Size, r.Addr)
	case r.Permission > mem.GlobalReadWrite:
		return errs.New(errs.InvalidArgument, "register", "permission %d is not 0, 1 or 2", r.Permission)
	case r.ReadOnly && r.Permission == mem.GlobalReadWrite:
		return errs.New(errs.PermissionDenied, "register",
			"the buffer is read-only, so peers cannot be allowed to write to it").
			WithHint("permission=Permission.GLOBAL_READ_ONLY, or a writable buffer")
	case len(r.Name) > segment.NameMax:
		return errs.New(errs.InvalidArgument, "register", "the name has %d bytes, at most %d are allowed", len(r.Name),
			segment.NameMax)
	}
	r.Kind = kind
	return nil
}

// checkMapping returns why memory of the host cannot be used. A range that the kernel maps for reading only makes a
// region that is read-only. Memory of a device is not looked at: its transports know its addresses.
func checkMapping(r *region) *errs.Error {
	if r.Kind != mem.Host {
		return nil
	}
	const cure = "register memory that is there, and keep it until its region is closed, or register it as growable"
	use, at := vmem.Range(r.Addr, r.Size)
	switch {
	case r.Growable && use < vmem.ReadOnly: // a transfer that needs bytes without pages fails
		return nil
	case use == vmem.Unmapped:
		return errs.New(errs.InvalidArgument, "register", "%d bytes at %#x are not all mapped: nothing is at %#x",
			r.Size, r.Addr, at).WithHint(cure)
	case use == vmem.NoAccess:
		return errs.New(errs.InvalidArgument, "register",
			"%d bytes at %#x cannot all be read by this process, not at %#x", r.Size, r.Addr, at).
			WithHint("%s; memory of a device needs its location, such as cuda:0", cure)
	case use == vmem.ReadOnly && r.Permission == mem.GlobalReadWrite:
		return errs.New(errs.PermissionDenied, "register",
			"%d bytes at %#x are mapped for reading only at %#x, so peers cannot be allowed to write to them", r.Size,
			r.Addr, at).WithHint("permission=Permission.GLOBAL_READ_ONLY, or writable memory")
	}
	r.ReadOnly = r.ReadOnly || use == vmem.ReadOnly
	return nil
}

// openRegion returns an open region or lease for an operation on it.
func (e *Engine) openRegion(op string, id mem.RegionID) (*region, *errs.Error) {
	if r := e.regions.get(id); r != nil {
		return r, nil
	}
	return nil, errs.New(errs.AddressNotRegistered, op, "the region is closed")
}

// CloseRegion ends remote access and returns when no peer can touch the bytes any more, and no driver has them pinned.
// Local transfers that use the region go on; their memory must stay until they end, and drivers let it go behind them.
// Closing twice is no mistake. After an error, which names the peer that may still touch the bytes, or a driver that
// holds them, the region is closed and the memory is not the caller's yet: the next call asks again.
//
// The leases of a region end with it, or before it.
func (e *Engine) CloseRegion(ctx context.Context, id mem.RegionID) error {
	return e.closeRegion(ctx, id, "closed")
}

// closeRegion closes a region, and says why if it is a lease.
func (e *Engine) closeRegion(ctx context.Context, id mem.RegionID, why string) error {
	r := e.regions.leave(id)
	if r == nil {
		return e.awaitDrivers(ctx, e.regions.retire.find(func(r *region) bool { return r.ID == id }))
	}
	r.life.advance(eventClosed)
	if r.lease != nil {
		e.leases.end(r)
	}
	err := each(r.parts.open(), func(l *region) error { return e.closeRegion(ctx, l.ID, "region closed") })
	late := e.finishRegistering(ctx, r)
	// One peer that a lease waits for, or one transport that hangs, lets no other peer stay in.
	err = cmp.Or(err, late, e.revoke(ctx, r, nil, transport.ForGood))
	if err == nil && !e.regions.outOfReach(r) {
		return nil
	}
	if r.lease == nil || err != nil {
		e.announce(&event.Event{Kind: event.RegionClosed, Rail: r.Name, Err: errs.From("close region", err)})
	}
	if err != nil {
		return err
	}
	if r.lease != nil {
		e.leaseEnded(r, why)
	}
	r.unuse()
	return e.awaitDrivers(ctx, r)
}

// awaitDrivers waits for the transports that are forgetting a region, if one pins pages; nil is none. Pages that a
// driver has pinned are not the caller's: the driver would copy them in place of others that come to their addresses.
func (e *Engine) awaitDrivers(ctx context.Context, r *region) error {
	if r == nil || !r.pinned {
		return nil
	}
	return e.awaitForgotten(ctx, r)
}

// awaitForgotten waits for the transports that are forgetting a region.
func (e *Engine) awaitForgotten(ctx context.Context, r *region) error {
	ctx, cancel := context.WithTimeout(ctx, e.regions.retire.limit(r))
	defer cancel()
	if e.regions.retire.waitFor(ctx, r) {
		return nil
	}
	return errs.New(errs.Timeout, "close region", "a driver has not let the region %s go", r.label()).
		WithScope(errs.ScopeTransport, errs.SideLocal).
		WithHint("keep its memory as it is, and close it again; the event region_held names the transport")
}

// awaitFormer waits for the transports that are forgetting a closed region of the same memory. One that finds pages
// pinned takes them for those of now.
func (e *Engine) awaitFormer(now *region) *errs.Error {
	former := func(r *region) bool {
		return r.pinned && r.lease == nil && r.life.state() != regionOpen && r.life.state() != regionNew &&
			r.Addr < now.Addr+uintptr(now.Size) && now.Addr < r.Addr+uintptr(r.Size)
	}
	r := e.regions.retire.find(former)
	if r == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.regions.retire.limit(now))
	defer cancel()
	for ; r != nil; r = e.regions.retire.find(former) {
		if !e.regions.retire.waitFor(ctx, r) {
			return errs.New(errs.Timeout, "register",
				"a driver has not let the closed region %s go, of the same memory", r.label()).
				WithScope(errs.ScopeTransport, errs.SideLocal).
				WithHint("the event region_held names its transport")
		}
	}
	return nil
}

// retire ends a region for good: it has no users. It may be called with the engine's mutex held, so another goroutine
// deregisters it, which may take time; Close waits for that, within its limit.
func (e *Engine) retire(r *region) {
	e.regions.retire.start(r, func() {
		e.deregister(r)
		e.advance(r, eventRetired)
		if r.lease != nil {
			r.lease.of.unuse()
		}
	})
}
