package engine

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
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
// A lease is found by its name or its token, and never by an address: neither local operands nor addresses of peers
// mean it, which would make them end with it.

// leasedAt is the address of each lease in descriptions. No process has memory there, so no address of a peer means it.
const leasedAt = 1 << 63

// leasesMax bounds the leases of an engine that have not ended.
const leasesMax = 1 << 16

// Share describes a lease.
type Share struct {
	Offset, Size uint64 // of the part of the region
	Name         string // "": peers find it by its token alone

	// Permission of peers. LocalReadWrite, which would let none in, stands for that of the region; where that lets none
	// in either, for all that the buffer allows.
	Permission mem.Permission
	Peers      []string      // patterns of identities, as of Memory; nil: those of the region
	Expires    time.Duration // from now on; 0: it has no end of its own
}

// lease is the part of a region that makes it a lease.
type lease struct {
	of *region // that it is a part of

	// Guarded by leaseKeeper.mu.
	until clock.Time // Never: without an end of its own
	place int        // in the keeper's heap, -1 outside
	ended bool       // or about to: no renewal
}

// parts are the leases of a region that have not ended.
type parts struct {
	mu     sync.Mutex
	list   map[*region]struct{}
	remaps uint64 // of the region so far
}

// Share gives peers a part of an open region as a lease, and returns its ID, which CloseRegion, FenceRegion and Renew
// take. Closing it is the end of the lease: then no peer can touch the bytes by it any more. Registering may take as
// long as Register does.
func (e *Engine) Share(of mem.RegionID, s Share) (mem.RegionID, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	whole := e.regions.get(of)
	if whole == nil {
		return 0, errs.New(errs.AddressNotRegistered, "share", "the region is closed")
	}
	l, err := e.part(whole, &s)
	if err != nil {
		return 0, err
	}
	if err := e.leases.admit(); err != nil {
		return 0, err
	}
	if err := e.lend(whole, l); err != nil {
		e.leases.count.Add(-1)
		return 0, err
	}
	e.leases.keep(l, s.Expires)
	to := "all"
	if l.rule != nil {
		to = cmp.Or(l.rule.String(), "nobody")
	}
	e.announce(&event.Event{Kind: event.LeaseMade, Rail: l.Name, Note: to, Bytes: l.Size, Took: s.Expires})
	return l.ID, nil
}

// part makes the record of a lease.
func (e *Engine) part(whole *region, s *Share) (*region, error) {
	switch {
	case whole.lease != nil:
		return nil, errs.New(errs.InvalidArgument, "share", "a lease cannot be shared again").
			WithHint("share the region that it is a part of")
	case s.Size == 0 || !mem.Contains(whole.Size, s.Offset, s.Size):
		return nil, errs.New(errs.InvalidArgument, "share", "%d bytes at offset %d are not inside a region of %d",
			s.Size, s.Offset, whole.Size)
	case s.Expires < 0:
		return nil, errs.New(errs.InvalidArgument, "share", "the lease would end before it begins")
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
	l := &region{engine: e, rule: rule, platform: whole.platform, managed: whole.managed,
		lease: &lease{of: whole, until: clock.Never, place: -1}, Region: whole.Region}
	l.Name, l.Addr, l.Size = s.Name, whole.Addr+uintptr(s.Offset), s.Size
	l.FdOffset += s.Offset
	l.Permission, l.Peers = allowed, rule.peers()
	l.node.Store(whole.node.Load())
	if err := check(&l.Region); err != nil {
		return nil, err
	}
	return l, nil
}

// lend registers a lease and makes it visible. After an error nothing is left.
func (e *Engine) lend(whole, l *region) error {
	if err := e.regions.nameFree(l.Name); err != nil { // before the transports pin anything
		return err
	}
	remaps := whole.parts.remapped()
	if err := whole.use(); err != nil {
		return err
	}
	l.ID = e.regions.reserve()
	l.uses.Store(1)
	if err := e.install(l); err != nil {
		whole.unuse()
		return err
	}
	if err := e.publishLease(whole, l, remaps); err != nil {
		e.deregister(l)
		whole.unuse()
		return err
	}
	return nil
}

// publishLease makes a registered lease visible, unless its region has ended or changed meanwhile. A region that is
// closed finds every lease in its list, or keeps it from being seen at all.
func (e *Engine) publishLease(whole, l *region, remaps uint64) *errs.Error {
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
	if err := e.regions.add(l); err != nil {
		return err
	}
	if p.list == nil {
		p.list = make(map[*region]struct{})
	}
	p.list[l] = struct{}{}
	return nil
}

func (p *parts) remapped() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.remaps
}

// open returns the leases that have not ended. With remap, those that are being registered come too late.
func (p *parts) open(remap bool) []*region {
	p.mu.Lock()
	defer p.mu.Unlock()
	if remap {
		p.remaps++
	}
	list := make([]*region, 0, len(p.list))
	for l := range p.list {
		list = append(list, l)
	}
	return list
}

// partsAtOnce bounds the leases of a region that are closed, fenced or remapped at the same time.
const partsAtOnce = 16

// each calls the function for every lease, several at once, and returns the first error. A peer that is slow delays all
// of them once.
func each(list []*region, do func(*region) error) error {
	var first atomic.Pointer[error]
	var running sync.WaitGroup
	room := make(chan struct{}, partsAtOnce)
	for _, l := range list {
		room <- struct{}{}
		running.Go(func() {
			defer func() { <-room }()
			if err := do(l); err != nil {
				first.CompareAndSwap(nil, &err)
			}
		})
	}
	running.Wait()
	if err := first.Load(); err != nil {
		return *err
	}
	return nil
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
	case l == nil || !e.leases.renew(l, expires):
		return errs.New(errs.InvalidEntry, "renew", "the lease has ended").WithHint("share the range again")
	}
	return nil
}

// leaseEnded notes that no peer can touch the bytes of a lease any more by it.
func (e *Engine) leaseEnded(l *region, why string) {
	p := &l.lease.of.parts
	p.mu.Lock()
	delete(p.list, l)
	p.mu.Unlock()
	e.leases.count.Add(-1)
	e.announce(&event.Event{Kind: event.LeaseEnded, Rail: l.Name, Note: why, Bytes: l.Size})
}

// A token is text for a stack's own handshake: a name of the lease that holds within the whole cluster. It gives no
// rights. Its bytes are
//
//	id of the engine (16) + id of the lease (8) + size (8) + CRC-32C of those (4)
const (
	tokenPrefix = "lease1-"
	tokenBytes  = 36
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Token returns the token of a lease: at most 64 characters that pass through JSON, URLs and headers as they are.
func (e *Engine) Token(id mem.RegionID) (string, error) {
	l := e.regions.get(id)
	if l == nil || l.lease == nil {
		return "", errs.New(errs.InvalidEntry, "token", "no lease is open under this number")
	}
	b := make([]byte, 0, tokenBytes)
	self := e.credentials.ID()
	b = binary.LittleEndian.AppendUint64(append(b, self[:]...), uint64(id))
	b = binary.LittleEndian.AppendUint64(b, l.Size)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b), nil
}

// readToken reads a token. Any text may be given.
func readToken(text string) (owner transport.ID, id mem.RegionID, size uint64, err *errs.Error) {
	malformed := errs.New(errs.InvalidArgument, "lease", "this is no token of a lease, or it was damaged").
		WithHint("Region.share() makes leases, and their tokens travel as they are")
	if len(text) != len(tokenPrefix)+base64.RawURLEncoding.EncodedLen(tokenBytes) ||
		text[:len(tokenPrefix)] != tokenPrefix {
		return owner, 0, 0, malformed
	}
	b, failure := base64.RawURLEncoding.Strict().DecodeString(text[len(tokenPrefix):])
	if failure != nil || crc32.Checksum(b[:32], castagnoli) != binary.LittleEndian.Uint32(b[32:]) {
		return owner, 0, 0, malformed
	}
	id, size = mem.RegionID(binary.LittleEndian.Uint64(b[16:])), binary.LittleEndian.Uint64(b[24:])
	return transport.ID(b[:16]), id, size, nil
}

// FindLease returns the lease of a peer that a token names. It asks the peer where the lease is not known yet. The
// error is AddressNotRegistered for one that has ended, or that is for other peers: the owner does not tell which.
func (e *Engine) FindLease(ctx context.Context, id SegmentID, token string) (segment.Region, error) {
	owner, lease, size, failure := readToken(token)
	if failure != nil {
		return segment.Region{}, failure
	}
	h, failure := e.segments.get(id)
	switch {
	case failure != nil:
		return segment.Region{}, failure
	case h.base != 0 || h.peer.file != nil:
		return segment.Region{}, errs.New(errs.InvalidArgument, "lease", "the segment is a single region or a file").
			WithHint("open the peer as a whole")
	case owner != h.peer.identity.ID:
		return segment.Region{}, errs.New(errs.InvalidEntry, "lease", "the token is of another engine than %s",
			h.peer.identity.Address).WithHint("an engine that starts again is another one, and its leases have ended")
	}
	if err := h.peer.join(ctx); err != nil {
		return segment.Region{}, err
	}
	for asked := false; ; asked = true {
		if r := h.peer.regions.Load().byID[lease]; r != nil && r.Size == size {
			return *r.Region, nil
		}
		if asked {
			return segment.Region{}, errs.New(errs.AddressNotRegistered, "lease",
				"%s offers no such lease: it has ended, or it is for other peers", h.peer.identity.Address)
		}
		if err := h.peer.refresh(ctx); err != nil {
			return segment.Region{}, err
		}
	}
}

// OpenLease opens the lease that a token names as a segment of its own. Offsets on it count from 0.
// The errors are those of FindLease. Whichever of the two segments is closed, the other one stays.
func (e *Engine) OpenLease(ctx context.Context, id SegmentID, token string) (SegmentID, segment.Region, error) {
	lease, err := e.FindLease(ctx, id, token)
	if err != nil {
		return 0, lease, err
	}
	h, failure := e.segments.get(id)
	if failure != nil {
		return 0, lease, failure
	}
	p := e.peer(h.peer.identity)
	if err := p.join(ctx); err != nil {
		e.leavePeer(p)
		return 0, lease, err
	}
	return e.opened(&handle{peer: p, base: lease.ID, name: lease.Name}), lease, nil
}
