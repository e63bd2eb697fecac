package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/staging"
	"github.com/tent-engine/tent/gocore/transport"
)

// The engine has the memory of package staging: a pool for each NUMA node near which memory of a device has asked for
// one. A pool is made with the first plan that needs it, and stays until Close. Its region is in no table: no peer
// hears of it, its permission is ours alone, and CloseRegion cannot reach it.

// stagePools are the pools of an engine.
type stagePools struct {
	making sync.Mutex // a pool is registered under it, once, and however long that takes

	mu       sync.Mutex // behind making
	pools    map[poolKey]*stagePool
	lent     map[*peer]*stagePool
	returned []*stagePool    // by peers that have left; registered nowhere
	spoiled  []*stagePool    // that a transport did not give back, or not yet
	leaving  []chan struct{} // of pools that are being taken from a peer; closed behind that
	closed   bool

	asking sync.Mutex
	askers map[transport.ID]*asker // by the ID that their connections prove
}

func (s *stagePools) init() {
	s.pools, s.lent = make(map[poolKey]*stagePool), make(map[*peer]*stagePool)
	s.askers = make(map[transport.ID]*asker)
}

// poolKey names a pool of our own.
type poolKey struct {
	node   int  // its number plus one, 0 for any
	inward bool // for orders of peers
}

// stagePool is memory between two hops. It is immutable.
type stagePool struct {
	region *region
	seen   *remoteRegion // the region as links to our own engine name it
	stage  plan.StageID

	forgotten bool // its transports have been told to forget it; one call of endPool at a time has it
}

// stageSizes are those of each pool.
func (e *Engine) stageSizes() staging.Sizes {
	return staging.Sizes{Slots: e.config.Engine.StagingSlots, SlotBytes: e.config.Engine.StagingSlotBytes}
}

// poolAt returns a pool of our own.
func (e *Engine) poolAt(key poolKey) (*stagePool, *errs.Error) {
	s := &e.staging
	if pool, err := s.own(key); pool != nil || err != nil {
		return pool, err
	}
	s.making.Lock()
	defer s.making.Unlock()
	if pool, err := s.own(key); pool != nil || err != nil { // another caller has made it
		return pool, err
	}
	pool, err := e.newPool(key, e.stageSizes(), func(*region) {}, nil)
	if err != nil {
		return nil, err
	}
	return e.keepPool(pool, nil, func() { s.pools[key] = pool })
}

// own returns a pool of our own, nil if there is none yet. The error is that of pools that are closed.
func (s *stagePools) own(key poolKey) (*stagePool, *errs.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pool := s.pools[key]; pool != nil || !s.closed {
		return pool, nil
	}
	return nil, closedError()
}

// keepPool puts a new pool into its place, which may have the memory of a used one. If the pools have been closed
// meanwhile, it is taken from the transports again.
func (e *Engine) keepPool(pool, used *stagePool, put func()) (*stagePool, *errs.Error) {
	s := &e.staging
	s.mu.Lock()
	closed := s.closed
	if !closed {
		put()
	}
	s.mu.Unlock()
	if !closed {
		return pool, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoLimit)
	defer cancel()
	if err := e.endPool(ctx, pool); err != nil {
		e.log.Warn("staging", "err", err)
	}
	if used == nil {
		e.advance(pool.region, eventFreed)
	}
	return nil, closedError()
}

// poolWait bounds the wait for transports that pin pages. A plan that asks for a pool may have no way but theirs, and
// an order of a peer ends without one.
const poolWait = 5 * time.Second

// newPool registers memory and makes the core know its slots. The memory is new, or that of a used pool, which keeps it
// after an error. Rights may change its region before that is registered.
func (e *Engine) newPool(key poolKey, sizes staging.Sizes, rights func(*region),
	used *stagePool) (pool *stagePool, err *errs.Error) {
	pool = &stagePool{}
	if used != nil {
		pool.region = &region{Region: used.region.Region, owner: used.region.owner}
		pool.stage = used.stage
	} else if pool.region, err = e.mapPool(key.node, sizes); err != nil {
		return nil, err
	}
	r := pool.region
	r.engine = e
	r.Kind, r.Permission = mem.Host, mem.LocalReadWrite
	rights(r)
	e.numa.place(r)
	e.enroll(r)
	r.uses.Store(1)
	if err := e.install(r); err != nil {
		if used == nil {
			e.advance(r, eventFreed)
		}
		return nil, err
	}
	settling, cancel := context.WithTimeout(context.Background(), poolWait)
	_ = r.awaitSettled(settling) // one that takes longer is left out of the first plans
	cancel()
	r.life.advance(eventPublished)
	if used == nil {
		e.mu.Lock()
		pool.stage, err = e.core.AddStage(dispatch.StageSpec{Slots: sizes.Slots, SlotBytes: sizes.SlotBytes,
			Local: r.Addr, Shared: key.inward})
		e.unlockAndDrain()
	}
	pool.seen = e.foreign(&transport.Lent{ID: r.ID, Addr: r.Addr, Size: r.Size, Descriptors: r.descriptors()})
	return pool, err
}

// mapPool maps memory for a pool near a node.
func (e *Engine) mapPool(node int, sizes staging.Sizes) (*region, *errs.Error) {
	at := mem.Wildcard
	if node > 0 {
		at = mem.Location(fmt.Sprintf("%v:%d", mem.Host, node-1))
	}
	r, err := e.mapFor(Memory{Size: sizes.Bytes(), Location: at}, mem.Host, node-1)
	if err != nil {
		return nil, errs.From("staging", err).WithHint("staging/slots and staging/slot_bytes are the size of a pool")
	}
	return r, nil
}

// foreign makes a region of a peer from memory of the host that no description lists.
func (e *Engine) foreign(l *transport.Lent) *remoteRegion {
	return &remoteRegion{Region: &segment.Region{ID: l.ID, Addr: uint64(l.Addr), Size: l.Size, Kind: mem.Host,
		Location: mem.Wildcard, Permission: mem.GlobalReadWrite},
		keys: make([]transport.RemoteKey, len(e.ports)), descriptors: l.Descriptors}
}

// staged adds routes through host memory to a plan. It is given the direct one, or the error of there being none, and
// returns the one that is in force: without a way through host memory, that is the same, with the reasons. Between two
// memories of this engine a direct way is all there is to gain, so only its absence is made up for.
func (p *peer) staged(direct *plan.Plan, cause *errs.Error, r *plan.Request, local *region, remote *remoteRegion,
	want request.Choice) (*plan.Plan, *errs.Error) {
	inward := want.Intent == request.IntentStagingInternal
	own := p.identity.Self && p.file == nil
	far := remote.Kind != mem.Host && p.file == nil && !inward && !own
	if !far && !staging.Helps(local.Kind) || own && cause == nil || !p.engine.config.Engine.Staging {
		return direct, cause
	}
	made := direct
	var reasons []*errs.Error
	add := func(next *plan.Plan, err *errs.Error) {
		if err != nil {
			reasons = append(reasons, err)
		} else {
			made = next
		}
	}
	if staging.Helps(local.Kind) {
		add(p.throughHost(made, r, local, remote, want, inward))
	}
	if far {
		add(p.throughPeer(made, r, local, remote, want))
	}
	if made == nil || len(made.Routes) == 0 {
		full := *cause
		for _, reason := range reasons {
			full.Cause += "; staged through host memory: " + reason.Error()
		}
		return nil, &full
	}
	next := *made
	next.Rejected = slices.Clone(made.Rejected)
	for _, reason := range reasons {
		next.Rejected = append(next.Rejected, plan.Rejected{Transport: "staging", Reason: reason.Error()})
	}
	return &next, nil
}

// throughHost makes the plan of a copy and a wire.
func (p *peer) throughHost(direct *plan.Plan, r *plan.Request, local *region, remote *remoteRegion,
	want request.Choice, inward bool) (*plan.Plan, *errs.Error) {
	pool, err := p.engine.poolAt(poolKey{r.Local.Node, inward})
	if err != nil {
		return nil, err
	}
	wire := *r
	if direct != nil && len(direct.Routes) > 0 {
		wire.Hint = "" // a direct route is as it asks, and these are its failover
	}
	return p.twoHops(direct, r, &wire, local, remote, pool, want)
}

// twoHops makes the plan of a copy to a pool, and of the way on from there, which is the wire's request.
func (p *peer) twoHops(direct *plan.Plan, r, wire *plan.Request, local *region, remote *remoteRegion, pool *stagePool,
	want request.Choice) (*plan.Plan, *errs.Error) {
	e := p.engine
	own, err := e.segments.get(Local)
	if err != nil {
		return nil, err
	}
	self := own.peer
	if err := self.joinBy(clock.Never); err != nil {
		return nil, errs.From("staging", err)
	}
	here := plan.End{Kind: mem.Host, Location: pool.region.Location, Node: e.numa.nodeOfPlan(pool.region)}
	near := *r
	near.Hint, near.Policy, near.Remote = "", nil, here // the peer is chosen by them, and this hop is ours
	copied, err := plan.Build(&near, self.candidates(local, pool.seen,
		request.Choice{Op: want.Op, Integrity: want.Integrity}))
	if err != nil {
		return nil, err
	}
	wire.Local = here
	crossing, err := plan.Build(wire, p.candidates(pool.region, remote, want))
	if err != nil {
		return nil, err
	}
	return staging.Add(direct, r.Ordered(), r.Op, copied, crossing, pool.stage), nil
}

// all yields every pool. The caller holds mu.
func (s *stagePools) all() iter.Seq[*stagePool] {
	return func(yield func(*stagePool) bool) {
		for _, list := range []iter.Seq[*stagePool]{maps.Values(s.pools), maps.Values(s.lent),
			slices.Values(s.returned), slices.Values(s.spoiled)} {
			for pool := range list {
				if !yield(pool) {
					return
				}
			}
		}
	}
}

// endPool takes a pool from all transports. After an error it may be called again.
func (e *Engine) endPool(ctx context.Context, pool *stagePool) error {
	if now, _ := pool.region.life.advance(eventClosed); now != regionClosed { // it was taken before
		return nil
	}
	if pool.forgotten {
		return e.awaitForgotten(ctx, pool.region)
	}
	if err := e.finishRegistering(ctx, pool.region); err != nil {
		return err
	}
	if err := e.revoke(ctx, pool.region, nil, transport.ForGood); err != nil {
		return err
	}
	pool.forgotten = true
	e.regions.retire.start(pool.region, func() {
		e.deregister(pool.region)
		e.advance(pool.region, eventRetired)
	})
	return e.awaitForgotten(ctx, pool.region)
}

// closeStaging ends the use of pools by transports. No transfer is under way, and no pool comes or goes any more.
func (e *Engine) closeStaging(ctx context.Context) error {
	s := &e.staging
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if err := s.awaitLeaving(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	pools := slices.Collect(s.all())
	s.mu.Unlock()
	failures := make(chan error, len(pools))
	sideBySide(pools, closingAtOnce, func(pool *stagePool) { failures <- e.endPool(ctx, pool) })
	close(failures)
	var failed error
	for err := range failures {
		failed = errors.Join(failed, err)
	}
	return failed
}

// awaitLeaving waits until no pool is being taken from a peer. No further one is, since the pools are closed.
func (s *stagePools) awaitLeaving(ctx context.Context) error {
	s.mu.Lock()
	leaving := slices.Clone(s.leaving)
	s.mu.Unlock()
	for _, taken := range leaving {
		select {
		case <-taken:
		case <-ctx.Done():
			return errs.New(errs.Timeout, "staging", "memory is still taken back from a peer that has left")
		}
	}
	return nil
}

// freeStaging unmaps the pools. Every transport is closed, and has taken all back.
func (e *Engine) freeStaging() {
	s := &e.staging
	s.mu.Lock()
	defer s.mu.Unlock()
	for pool := range s.all() {
		e.advance(pool.region, eventFreed)
	}
}

// stagedBy says in words how a route goes through host memory, "" for one that does not.
func (e *Engine) stagedBy(r *plan.Route) string {
	if len(r.Hops) < 2 {
		return ""
	}
	words, sizes := ", copied by ", e.stageSizes()
	if port := e.links.port(r.Hops[1-r.Crossing].Link); port != nil {
		words += port.name
	}
	if info := &e.ports[r.Transport].info; info.Delegates {
		sizes.Slots = info.SlicesMax
		words += "; the peer's engine moves the bytes between there and its device"
	}
	return "staged through host memory: " + sizes.String() + words
}
