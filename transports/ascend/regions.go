package ascend

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/ascend/acl"
	"github.com/tent-engine/tent/transports/ascend/hixl"
	"github.com/tent-engine/tent/transports/kit"
)

// region is registered memory.
type region struct {
	mem.Region
	key   transport.LocalKey
	entry *entryOf
	door  kit.Door

	mu     sync.Mutex
	guests map[*guest]bool // that learned of it
}

// entryOf is a registration of HIXL. Regions that lie inside of it share it: HIXL refuses ranges that overlap.
type entryOf struct {
	addr   uintptr
	size   uint64
	host   bool
	handle uint64
	serial uint64      // links that were made since see it
	users  int         // guarded by instance.mu
	gone   atomic.Bool // its pages were not there when it was to be registered again
}

func (e *entryOf) contains(addr uintptr, size uint64) bool {
	return addr >= e.addr && mem.Contains(e.size, uint64(addr-e.addr), size)
}

// registrationsMost is the number of regions that HIXL advises not to exceed.
const registrationsMost = 4096

// Register implements transport.Transport.
func (t *ascend) Register(_ context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	kind, ordinal, _ := m.Location.Parse()
	switch {
	case t.life.Closed():
		return 0, nil, kit.Closed("ascend.register")
	case !m.IsRange():
		return 0, nil, kit.NoMemory("ascend.register", &m)
	case m.Kind == mem.Host && !acl.Pinned(m.Addr, m.Size):
		return 0, nil, errs.New(errs.NotHere, "ascend.register",
			"HIXL takes memory of the host that aclrtMallocHost gave, and no other")
	case m.Kind != mem.Host && m.Kind != mem.Npu:
		return 0, nil, errs.New(errs.NotHere, "ascend.register", "%v memory is not an NPU's", m.Kind)
	case m.Kind == mem.Npu && (kind != mem.Npu || ordinal != t.instance.ordinal):
		return 0, nil, errs.New(errs.NotHere, "ascend.register", "%s is not %s, by which this engine moves bytes",
			m.Location, t.instance.where()).WithHint("transports/ascend_direct/device chooses it")
	}
	r := &region{Region: m, guests: map[*guest]bool{}}
	var err *errs.Error
	if r.entry, err = t.instance.register(m.Addr, m.Size, m.Kind == mem.Host); err != nil {
		return 0, nil, err
	}
	key := t.regions.Insert(func(k transport.LocalKey) *region { r.key = k; return r })
	return key, r.describe(t.self.ID), nil
}

// register takes a share of a registration, or makes one.
func (i *instance) register(addr uintptr, size uint64, host bool) (*entryOf, *errs.Error) {
	i.gate.RLock()
	defer i.gate.RUnlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, e := range i.entries {
		if e.contains(addr, size) && !e.gone.Load() && e.users > 0 {
			e.users++
			return e, nil
		}
		if addr < e.addr+uintptr(e.size) && e.addr < addr+uintptr(size) {
			return nil, errs.New(errs.NotHere, "ascend.register",
				"HIXL takes no region that overlaps another one, and one of %d bytes at %#x is there", e.size, e.addr).
				WithHint("register the larger region first; those inside of it share its registration")
		}
	}
	if len(i.entries) >= registrationsMost {
		return nil, errs.New(errs.NotHere, "ascend.register", "%d regions are registered with HIXL, which is the limit",
			registrationsMost)
	}
	e := &entryOf{addr: addr, size: size, host: host, users: 1}
	err := i.failed
	if i.engine != nil {
		err = i.enter(e)
	}
	if err != nil {
		return nil, errs.New(errs.NotHere, "ascend.register", "%s", err.Error())
	}
	e.serial = i.serial.Add(1)
	i.entries = append(i.entries, e)
	return e, nil
}

// enter registers a range with the engine. The caller holds gate and mu.
func (i *instance) enter(e *entryOf) (err error) {
	i.do(func() {
		handle, status := i.engine.Register(e.addr, e.size, e.host)
		e.handle = handle
		if e.gone.Store(status != hixl.Success); status != hixl.Success {
			err = status.Error("ascend.register", hixl.Report())
		}
	})
	return err
}

// drop forgets a registration.
func (i *instance) drop(e *entryOf) {
	i.mu.Lock()
	i.entries = slices.DeleteFunc(i.entries, func(known *entryOf) bool { return known == e })
	i.mu.Unlock()
}

// registerAgain registers everything with a new engine. The caller holds gate for writing.
func (i *instance) registerAgain() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, e := range i.entries {
		_ = i.enter(e) // its slices fail then
	}
}

// Deregister implements transport.Transport. HIXL ends a registration only when no link is there, at neither end.
func (t *ascend) Deregister(ctx context.Context, key transport.LocalKey) error {
	r := t.regions.Lookup(key)
	if r == nil {
		return kit.NoRegion("ascend.deregister", key)
	}
	if _, closed := r.door.Last(transport.ID{}); !closed { // to everybody
		t.revoke(ctx, r, nil, transport.ForGood)
	}
	t.regions.Delete(key)
	i, e := &t.instance, r.entry
	i.mu.Lock()
	e.users--
	last := e.users == 0
	i.mu.Unlock()
	if !last {
		return nil
	}
	err := t.apart(ctx, func(engine *hixl.Engine) *errs.Error { return leave(engine, e) })
	i.drop(e)
	if err != nil { // a link is left that HIXL alone knows
		i.replace(err.Error())
	}
	return nil
}

// leave ends a registration, while no link is there.
func leave(engine *hixl.Engine, e *entryOf) *errs.Error {
	if e.gone.Load() {
		return nil
	}
	if status := engine.Deregister(e.handle); status != hixl.Success {
		return status.Error("ascend.deregister", hixl.Report())
	}
	return nil
}

// Remap implements transport.Remapper: HIXL has pinned the pages of before. The descriptor stays, for links are made
// anew, and reach the new pages.
func (t *ascend) Remap(ctx context.Context, key transport.LocalKey, _ transport.Remapped) error {
	r := t.regions.Lookup(key)
	if r == nil {
		return kit.NoRegion("ascend.remap", key)
	}
	e := r.entry
	err := t.apart(ctx, func(engine *hixl.Engine) *errs.Error {
		if err := leave(engine, e); err != nil {
			return err
		}
		handle, status := engine.Register(e.addr, e.size, e.host)
		e.handle = handle
		e.gone.Store(status != hixl.Success) // slices of a region without pages fail
		return nil
	})
	if err != nil {
		t.instance.replace(err.Error()) // which registers everything anew
	}
	return nil
}
