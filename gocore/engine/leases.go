package engine

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
)

// A lease gives peers a part of a region for a time (Gray and Cheriton, "Leases", 1989). It is a registration of its
// own: each transport has a key for it alone, with the rights of the lease, so no use of the key leads outside. Its end
// is that of a region, CloseRegion.
//
//	Share ──▶ open ──┬─ CloseRegion of it ─────────┐
//	           ▲ │   ├─ CloseRegion of its region ─┼──▶ revoked on every transport ──▶ ended
//	     renew └─┘   └─ its time is up ────────────┘
//
// The owner's clock alone says when the time is up (leaseKeeper). A lease holds a use of its region: no transport
// forgets the region, and no memory of Allocate is unmapped, before the lease has ended. A fence of the region covers
// its leases, and so does a remap.
//
// A lease may have several ranges, the pages of a table for example. Each is a registration, so a byte between two of
// them has no key. The first one is the lease: it has the name and the end. The others are leases of it, which end,
// are fenced and change their pages with it. Offsets of peers count through the ranges as if they lay side by side.
//
// A lease is found by its name or its token, and never by an address: neither local operands nor addresses of peers
// mean it, which would make them end with it. Descriptions give none.

const (
	leasesMax = 1 << 16 // ranges of the leases of an engine that have not ended
	rangesMax = 1 << 10 // of one lease; those that follow one another in memory are one
)

// Range is a part of a region.
type Range struct {
	Offset, Size uint64 // bytes
}

// Share describes a lease.
type Share struct {
	Offset, Size uint64  // of the part of the region
	Ranges       []Range // several parts instead, none overlapping another, in the order in which the lease has them
	Name         string  // "": peers find it by its token alone

	// Permission of peers. LocalReadWrite, which would let none in, stands for that of the region; where that lets none
	// in either, for all that the buffer allows.
	Permission mem.Permission
	Peers      []string      // patterns of identities, as of Memory; nil: those of the region
	Expires    time.Duration // from now on; 0: it has no end of its own
}

// lease is the part of a region that makes it a lease, or a range of one.
type lease struct {
	of    *region // that it is a part of; for a further range, the first one
	start uint64  // bytes of the ranges before it
	total uint64  // bytes of all ranges

	// Guarded by leaseKeeper.mu.
	until clock.Time // Never: without an end of its own
	place int        // in the keeper's schedule, -1 outside
	ended bool       // or about to: no renewal
	held  bool       // a peer did not let it go when its time was up
}

// parts are the leases of a region that have not ended.
type parts struct {
	mu     sync.Mutex
	list   map[*region]struct{}
	remaps uint64 // of the region so far
}

// Share gives peers a part of an open region as a lease, or several parts as one. The ID that it returns is taken by
// CloseRegion, FenceRegion and Renew. Closing it is the end of the lease: then no peer can touch the bytes by it any
// more. Registering each range may take as long as Register does.
func (e *Engine) Share(of mem.RegionID, s Share) (mem.RegionID, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	whole, closed := e.openRegion("share", of)
	if closed != nil {
		return 0, closed
	}
	list, err := e.partsOf(whole, &s)
	if err != nil {
		return 0, err
	}
	if err := e.leases.admit(len(list)); err != nil {
		return 0, err
	}
	if err := e.lend(whole, list); err != nil {
		e.leases.count.Add(-int64(len(list)))
		return 0, err
	}
	l := list[0]
	_ = e.leases.renew(l, s.Expires) // else it has ended already, with its region
	to := "all"
	if l.rule != nil {
		to = l.rule.String()
	}
	e.announce(&event.Event{Kind: event.LeaseMade, Rail: l.Name, Note: to, Bytes: l.lease.total, Took: s.Expires})
	return l.ID, nil
}

// joined returns the ranges of a lease with those that follow one another made one. The error is InvalidArgument for
// ranges outside the region, that overlap, or that are too many.
func (s *Share) joined(size uint64) (joined []Range, err *errs.Error) {
	list := s.Ranges
	if list == nil {
		list = []Range{{s.Offset, s.Size}}
	}
	for i, r := range list {
		if r.Size == 0 || !mem.Contains(size, r.Offset, r.Size) {
			return nil, errs.New(errs.InvalidArgument, "share", "range [%d]: %d bytes at offset %d are not inside a "+
				"region of %d", i, r.Size, r.Offset, size)
		}
		if last := len(joined) - 1; last >= 0 && joined[last].Offset+joined[last].Size == r.Offset {
			joined[last].Size += r.Size
		} else {
			joined = append(joined, r)
		}
	}
	switch {
	case len(joined) == 0:
		return nil, errs.New(errs.InvalidArgument, "share", "there are no ranges")
	case len(joined) > rangesMax:
		return nil, errs.New(errs.InvalidArgument, "share", "%d ranges that do not follow one another, a lease has at "+
			"most %d", len(joined), rangesMax).WithHint("make several leases of them")
	}
	sorted := slices.Clone(joined)
	slices.SortFunc(sorted, func(a, b Range) int { return cmp.Compare(a.Offset, b.Offset) })
	for i, r := range sorted[1:] {
		if before := sorted[i]; before.Offset+before.Size > r.Offset {
			return nil, errs.New(errs.InvalidArgument, "share", "the ranges at offsets %d and %d overlap",
				before.Offset, r.Offset)
		}
	}
	return joined, nil
}

// partsOf makes the records of a lease's ranges.
func (e *Engine) partsOf(whole *region, s *Share) ([]*region, error) {
	switch {
	case whole.lease != nil:
		return nil, errs.New(errs.InvalidArgument, "share", "a lease cannot be shared again").
			WithHint("share the region that it is a part of")
	case s.Expires < 0:
		return nil, errs.New(errs.InvalidArgument, "share", "the lease would end before it begins")
	}
	ranges, failure := s.joined(whole.Size)
	if failure != nil {
		return nil, failure
	}
	allowed := cmp.Or(s.Permission, whole.Permission, mem.GlobalReadWrite)
	if s.Permission == 0 && whole.ReadOnly {
		allowed = mem.GlobalReadOnly
	}
	rule, err := e.rules.of(e, Memory{Permission: allowed, Peers: s.Peers})
	if err != nil {
		return nil, err
	}
	if s.Peers == nil {
		rule = whole.rule
	}
	list := leasesOf(whole, s.Name, ranges, allowed, rule)
	if err := check(&list[0].Region); err != nil {
		return nil, err
	}
	return list, nil
}

// leasesOf makes the records of the ranges of a region.
func leasesOf(whole *region, name string, ranges []Range, allowed mem.Permission, rule *rule) []*region {
	list, total := make([]*region, len(ranges)), uint64(0)
	for i, r := range ranges {
		l := &region{engine: whole.engine, rule: rule, platform: whole.platform, managed: whole.managed,
			lease: &lease{of: whole, start: total, until: clock.Never, place: -1}, Region: whole.Region}
		l.Name, l.Addr, l.Size = "", whole.Addr+uintptr(r.Offset), r.Size
		l.FdOffset += r.Offset
		l.Permission, l.Peers = allowed, rule.peers()
		l.node.Store(whole.node.Load())
		l.uses.Store(1)
		if list[i] = l; i > 0 { // it holds a use of the first one, as that does of its region
			l.lease.of = list[0]
			list[0].uses.Add(1)
			list[0].parts.keep(l)
		}
		total += r.Size
	}
	list[0].Name, list[0].lease.total = name, total
	return list
}

// lend registers the ranges of a lease and makes them visible. After an error nothing is left.
func (e *Engine) lend(whole *region, list []*region) error {
	if err := e.regions.nameFree(list[0].Name); err != nil { // before the transports pin anything
		return err
	}
	remaps := whole.parts.remapped()
	if err := whole.use(); err != nil {
		return err
	}
	if err := e.installAll(list); err != nil {
		whole.unuse()
		return err
	}
	if err := e.publishLease(whole, list, remaps); err != nil {
		e.deregisterAll(list)
		whole.unuse()
		return err
	}
	return nil
}

func (e *Engine) installAll(list []*region) *errs.Error {
	for i, l := range list {
		e.enroll(l)
		if err := e.install(l); err != nil {
			e.deregisterAll(list[:i])
			return err
		}
	}
	return nil
}

func (e *Engine) deregisterAll(list []*region) {
	for _, l := range list {
		e.deregister(l)
	}
}

// publishLease makes a registered lease visible, unless its region has ended or changed meanwhile. A region that is
// closed finds every lease in its list, or keeps it from being seen at all.
func (e *Engine) publishLease(whole *region, list []*region, remaps uint64) *errs.Error {
	p := &whole.parts
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case whole.life.state() != regionOpen:
		return errs.New(errs.AddressNotRegistered, "share", "the region %s was closed", whole.label())
	case p.remaps != remaps:
		return errs.New(errs.InvalidEntry, "share", "other pages came behind the region %s meanwhile", whole.label()).
			WithHint("share it again")
	}
	if err := e.regions.add(list...); err != nil {
		return err
	}
	p.keepLocked(list[0])
	return nil
}

// keep adds a lease to the list.
func (p *parts) keep(l *region) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keepLocked(l)
}

func (p *parts) keepLocked(l *region) {
	if p.list == nil {
		p.list = make(map[*region]struct{})
	}
	p.list[l] = struct{}{}
}

func (p *parts) remapped() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.remaps
}

// open returns the leases that have not ended.
func (p *parts) open() []*region {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.list))
}

// remap is open behind a change of the region's pages: leases that are being registered come too late.
func (p *parts) remap() []*region {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remaps++
	return slices.Collect(maps.Keys(p.list))
}

// Renew gives a lease another end, counted from now on; 0 is none. It is InvalidEntry for one that has ended, also
// where its time was up a moment ago: then its end cannot be stopped.
func (e *Engine) Renew(id mem.RegionID, expires time.Duration) error {
	if err := e.usable(); err != nil {
		return err
	}
	l := e.regions.get(id)
	switch {
	case expires < 0:
		return errs.New(errs.InvalidArgument, "renew", "the lease would end in the past").
			WithHint("close() ends it now")
	case l != nil && l.lease == nil:
		return errs.New(errs.InvalidArgument, "renew", "the region %s is no lease", l.label())
	case l == nil || !l.isFirst() || !e.leases.renew(l, expires):
		return errs.New(errs.InvalidEntry, "renew", "the lease has ended").WithHint("share the range again")
	}
	return nil
}

// leaseEnded notes that no peer can touch the bytes of a lease, or of a range of one, any more by it.
func (e *Engine) leaseEnded(l *region, why string) {
	p := &l.lease.of.parts
	p.mu.Lock()
	delete(p.list, l)
	p.mu.Unlock()
	e.leases.count.Add(-1)
	if l.isFirst() {
		e.announce(&event.Event{Kind: event.LeaseEnded, Rail: l.Name, Note: why, Bytes: l.lease.total})
	}
}

// isFirst reports whether a range of a lease is its first one, which is the lease.
func (r *region) isFirst() bool { return r.lease.of.lease == nil }

// belongsTo reports whether a region has this number, or is a lease of it, or a range of one.
func (r *region) belongsTo(id mem.RegionID) bool {
	for ; r.lease != nil; r = r.lease.of {
		if r.ID == id {
			return true
		}
	}
	return r.ID == id
}
