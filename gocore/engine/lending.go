package engine

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/transport"
)

// The engine at both ends of an order (transport.Order). Here it lends memory to a peer, a pool for each that has been
// given an order; there it carries orders out. The transfer there has pools of its own: those of our requests wait for
// peers, which wait for theirs, so one pool for both would let two engines wait for each other for ever.

var _ transport.Deputy = (*port)(nil)

// Lent implements transport.Deputy.
func (p *port) Lent(key transport.LocalKey) (transport.Lent, bool) {
	r := p.keys.region(key)
	if r == nil || !r.lent {
		return transport.Lent{}, false
	}
	return transport.Lent{ID: r.ID, Addr: r.Addr, Size: r.Size, Descriptors: r.descriptors()}, true
}

// Confine implements transport.Deputy.
func (p *port) Confine(ctx context.Context, key transport.LocalKey, peer transport.Peer) error {
	if r := p.keys.region(key); r != nil {
		return p.engine.revoke(ctx, r, &peer, p.engine.nextEpoch())
	}
	return nil
}

// lentPool returns the pool that is lent to a peer, with as many slots as it carries out orders at once.
func (e *Engine) lentPool(p *peer, slots int) (*stagePool, *errs.Error) {
	pool, _, err := e.staging.lentTo(p)
	if pool != nil || err != nil {
		return pool, err
	}
	if pool, err = e.lendPool(p, slots); err != nil {
		return nil, err
	}
	if left := p.isLeft(); left != nil { // meanwhile: takeBack may have found nothing
		e.takeBack(p)
		return nil, errs.From("staging", left)
	}
	return pool, nil
}

// lendPool is lentPool for a peer that stays open.
func (e *Engine) lendPool(p *peer, slots int) (*stagePool, *errs.Error) {
	s := &e.staging
	s.making.Lock()
	defer s.making.Unlock()
	pool, used, err := s.lentTo(p)
	if pool != nil || err != nil { // another caller has lent it
		return pool, err
	}
	sizes := e.stageSizes()
	sizes.Slots = slots
	lend := func(r *region) {
		r.lent, r.Permission = true, mem.GlobalReadWrite
		theirs := transport.ProvedNames("", p.identity.ID) // identities change with certificates, and no blob has them
		r.Peers = &mem.Peers{Admit: func(names string) bool { return strings.HasSuffix(names, theirs) }}
	}
	if pool, err = e.newPool(poolKey{}, sizes, lend, used); err != nil {
		return nil, err
	}
	return e.keepPool(pool, used, func() {
		s.lent[p] = pool
		s.returned = slices.DeleteFunc(s.returned, func(o *stagePool) bool { return o == used })
	})
}

// lentTo returns the pool that is lent to a peer, else a used one for it, if there is any. The error is that of pools
// that are closed.
func (s *stagePools) lentTo(p *peer) (lent, used *stagePool, err *errs.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lent = s.lent[p]; lent != nil {
		return lent, nil, nil
	}
	if s.closed {
		return nil, nil, closedError()
	}
	if n := len(s.returned); n > 0 {
		used = s.returned[n-1]
	}
	return nil, used, nil
}

// takeBack ends the rights of a peer to the pool that is lent to it. Another one is lent the memory next. Others make
// pools meanwhile: a peer that does not answer keeps its own for as long as the transports wait for it.
func (e *Engine) takeBack(p *peer) {
	s := &e.staging
	pool, end := s.beginReturn(p)
	if pool == nil {
		return
	}
	defer close(end)
	ctx, cancel := context.WithTimeout(e.routines.ctx, undoLimit) // one of the engine's goroutines may be here
	defer cancel()
	err := e.endPool(ctx, pool)
	if err != nil {
		e.log.Warn("lent memory", "peer", p.identity.Address, "err", err)
	}
	s.endReturn(pool, end, err == nil)
}

// beginReturn takes the pool that is lent to a peer out of use. endReturn must follow, and the end be closed. A nil
// pool is none, or that of an engine that closes.
func (s *stagePools) beginReturn(p *peer) (*stagePool, chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pool := s.lent[p]
	if pool == nil || s.closed {
		return nil, nil
	}
	delete(s.lent, p)
	end := make(chan struct{})
	s.spoiled, s.leaving = append(s.spoiled, pool), append(s.leaving, end)
	return pool, end
}

// endReturn notes that a pool was taken from its peer, or could not be.
func (s *stagePools) endReturn(pool *stagePool, end chan struct{}, taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = slices.DeleteFunc(s.leaving, func(o chan struct{}) bool { return o == end })
	if taken {
		s.spoiled = slices.DeleteFunc(s.spoiled, func(o *stagePool) bool { return o == pool })
		s.returned = append(s.returned, pool)
	}
}

// throughPeer makes the plan of a copy and an order, for memory of a device of the peer.
func (p *peer) throughPeer(direct *plan.Plan, r *plan.Request, local *region,
	remote *remoteRegion, want request.Choice) (*plan.Plan, *errs.Error) {
	e := p.engine
	slots := 0
	for _, port := range e.ports {
		if port.info.Delegates && port.transport != nil {
			slots = port.info.SlicesMax
		}
	}
	if slots == 0 || !p.deputises(remote) {
		return nil, errs.New(errs.NoRoute, "plan", "the peer takes no orders for the region")
	}
	pool, err := e.lentPool(p, slots)
	if err != nil {
		return nil, err
	}
	wire := *r
	wire.Hint, wire.Policy = "", nil // the transports that carry the bytes are the peer's choice
	return p.twoHops(direct, r, &wire, local, remote, pool, want)
}

// deputises reports whether the peer takes orders for a region.
func (p *peer) deputises(remote *remoteRegion) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, port := range p.engine.ports {
		if port.info.Delegates && len(remote.descriptors[port.name]) > 0 {
			return true
		}
	}
	return false
}

// Execute implements transport.Deputy.
func (p *port) Execute(ctx context.Context, o *transport.Order) (dirty bool, err error) {
	e := p.engine
	if err := e.usable(); err != nil {
		return false, err
	}
	r := p.keys.region(o.Key)
	if err := r.grants(o); err != nil {
		return false, err
	}
	by, err := e.asker(o.From)
	if err != nil {
		return false, err
	}
	defer e.carriedOut(by)
	if err := by.peer.join(ctx); err != nil {
		return false, err
	}
	remote, failure := by.peer.borrow(&o.Lent)
	if failure != nil {
		return false, failure
	}
	defer by.peer.unborrow(remote)
	return e.execute(ctx, o, by.peer, r, remote.remote)
}

// grants returns why an order must not be carried out.
func (r *region) grants(o *transport.Order) *errs.Error {
	write := o.Op == transport.Write
	switch {
	case r == nil || r.life.state() != regionOpen || r.lent:
		return errs.New(errs.AddressNotRegistered, "order", "the region was closed by its owner")
	case !r.Permission.Allows(write) || write && r.ReadOnly || r.rule != nil && !r.rule.Admit(o.From.Names()):
		return errs.New(errs.PermissionDenied, "order", "%v of the region %s is not allowed: its permission is %s",
			o.Op, r.label(), r.Permission)
	}
	for _, at := range o.Places {
		if !mem.Contains(r.Size, at, o.Bytes) {
			return errs.New(errs.InvalidArgument, "order", "%d bytes at offset %d leave the region %s of %d bytes",
				o.Bytes, at, r.label(), r.Size)
		}
	}
	return nil
}

// execute is the transfer of an order.
func (e *Engine) execute(ctx context.Context, o *transport.Order, from *peer, r *region,
	lent *remoteRegion) (dirty bool, err error) {
	terms := Terms{Op: transport.Write, Class: o.Class, Intent: request.IntentStagingInternal}
	if o.Op == transport.Write {
		terms.Op = transport.Read
	}
	c, err := e.Begin(terms)
	if err != nil {
		return false, err
	}
	made, failure := from.planFor(r, lent, &terms, plan.NoPolicy)
	if failure != nil {
		c.Discard()
		return false, failure
	}
	c.local, c.remote, c.plan, c.peer = r, lent, made, from
	c.uses = append(c.uses, r)
	s := c.task(&terms)
	s.Local, s.Remote, s.Length = r.Addr, o.Offset, o.Length()
	if len(o.Places) == 1 {
		s.Local += uintptr(o.Places[0])
	} else {
		s.Parts = &transport.Pieces{LocalAt: o.Places, RemoteAt: make([]uint64, len(o.Places)), Bytes: o.Bytes}
		for i := range s.Parts.RemoteAt {
			s.Parts.RemoteAt[i] = uint64(i) * o.Bytes
		}
	}
	id, err := c.Commit(nil)
	if err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { _, _ = e.Cancel(id, -1) })
	defer stop()
	for !e.Wait(id, time.Minute).Terminal() { // its stall limit ends it
	}
	sum, err := e.Summary(id)
	if err == nil {
		err = e.FreeBatch(id)
	}
	switch {
	case err != nil:
		return true, err
	case sum.State == dispatch.Completed:
		return sum.Dirty, nil
	case sum.Err != nil:
		return sum.Dirty, sum.Err
	}
	return sum.Dirty, errs.New(errs.Canceled, "order", "the order was taken back")
}

// asker is a peer that gives orders. It is kept from its first one on, with a handle, until it is gone.
type asker struct {
	peer   *peer
	orders int // under way; guarded by stagePools.asking
}

// asker returns the peer that gives an order. Each call is followed by one of carriedOut.
func (e *Engine) asker(from transport.Peer) (*asker, error) {
	s := &e.staging
	s.asking.Lock()
	defer s.asking.Unlock()
	a := s.askers[from.ID]
	if a == nil || a.peer.gone.Load() != nil {
		to, err := e.reachable(from)
		if err != nil {
			return nil, err
		}
		for id, other := range s.askers {
			if other.peer.gone.Load() != nil {
				delete(s.askers, id)
				// It may wait for the peer's bytes under way, and orders of others must not.
				e.routines.start(func() { e.leavePeer(other.peer) })
			}
		}
		a = &asker{peer: e.peer(to)}
		s.askers[from.ID] = a
	}
	a.orders++
	return a, nil
}

// carriedOut ends an order of an asker. One that could never be called back is forgotten: it costs a caller nothing to
// be another engine with each order.
func (e *Engine) carriedOut(a *asker) {
	s := &e.staging
	s.asking.Lock()
	a.orders--
	id := a.peer.identity.ID
	unknown := a.orders == 0 && !a.peer.ready.Load() && s.askers[id] == a
	if unknown {
		delete(s.askers, id)
	}
	s.asking.Unlock()
	if unknown {
		e.leavePeer(a.peer)
	}
}

// borrowed is memory of a peer that it has lent to us.
type borrowed struct {
	remote *remoteRegion
	orders int // under way
}

// borrowedMost bounds the different regions that one peer lends us.
const borrowedMost = 4

// borrow returns memory that a peer has lent to us as a region of it.
func (p *peer) borrow(l *transport.Lent) (*borrowed, *errs.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.borrowed[l.ID]
	if b != nil && b.remote.Size == l.Size && maps.EqualFunc(b.remote.descriptors, l.Descriptors,
		func(a, b transport.Descriptor) bool { return bytes.Equal(a, b) }) {
		b.orders++
		return b, nil
	}
	for id, old := range p.borrowed {
		if old.orders == 0 && (id == l.ID || len(p.borrowed) >= borrowedMost) {
			p.forgetBorrowed(old)
			delete(p.borrowed, id)
		}
	}
	if len(p.borrowed) >= borrowedMost || p.borrowed[l.ID] != nil {
		return nil, errs.New(errs.TooManyRequests, "order", "the peer lends more than %d regions at once", borrowedMost)
	}
	if p.borrowed == nil {
		p.borrowed = make(map[mem.RegionID]*borrowed)
	}
	b = &borrowed{remote: p.engine.foreign(l), orders: 1}
	p.borrowed[l.ID] = b
	return b, nil
}

func (p *peer) unborrow(b *borrowed) {
	p.mu.Lock()
	b.orders--
	p.mu.Unlock()
}

// forgetBorrowed gives the keys of lent memory back that no transfer uses. The caller holds p.mu.
func (p *peer) forgetBorrowed(b *borrowed) {
	links := *p.links.Load()
	for i, key := range b.remote.keys {
		if key != 0 && i < len(links) && links[i].id != 0 {
			p.engine.ports[i].transport.Forget(links[i].link, key)
		}
	}
}
