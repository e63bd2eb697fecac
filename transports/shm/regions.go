package shm

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/shm/hazard"
)

// region is registered memory of ours. It is immutable but for its last two fields; the table replaces slots, never
// changes them.
type region struct {
	name     hazard.Region
	addr     uintptr
	size     uint64
	allows   mem.Permission
	fixed    bool        // the buffer must not be written, not even by our own READs
	of       *allocation // whose memory it is, nil for the user's
	deniedMu sync.Mutex
	denied   []string // addresses of peers for which it was revoked for good
}

// regions maps keys to regions. Readers load one pointer and index it; the owner's calls copy the table under mu. The
// index and the generation of a key are those of the hazard table.
type regions struct {
	slots atomic.Pointer[[]*region]
	mu    sync.Mutex
}

func keyOf(name hazard.Region) transport.LocalKey {
	return transport.LocalKey(name.Generation)<<32 | transport.LocalKey(name.Index+1)
}

func (t *regions) add(r *region) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slots := *t.slots.Load()
	if int(r.name.Index) < len(slots) {
		slots = append([]*region(nil), slots...)
	}
	for int(r.name.Index) >= len(slots) { // room beyond the length is seen by nobody who holds the old slice
		slots = append(slots, nil)
	}
	slots[r.name.Index] = r
	t.slots.Store(&slots)
}

func (t *regions) remove(key transport.LocalKey) *region {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.find(key)
	if r == nil {
		return nil
	}
	slots := append([]*region(nil), *t.slots.Load()...)
	slots[r.name.Index] = nil
	t.slots.Store(&slots)
	return r
}

// find returns the region of a key, nil if there is none. Hot: no lock, no map.
func (t *regions) find(key transport.LocalKey) *region {
	slots := *t.slots.Load()
	if i := uint64(uint32(key)) - 1; i < uint64(len(slots)) {
		if r := slots[i]; r != nil && r.name.Generation == uint32(key>>32) {
			return r
		}
	}
	return nil
}

// local checks a slice's own end; the core has checked the pieces of one that has many.
func (t *regions) local(s *transport.Slice) errs.Code {
	r := t.find(s.LocalKey)
	switch {
	case r == nil || s.Local < r.addr:
		return errs.AddressNotRegistered
	case s.Pieces == nil && !mem.Contains(r.size, uint64(s.Local-r.addr), s.Length):
		return errs.AddressNotRegistered
	case s.Op == transport.Read && r.fixed:
		return errs.PermissionDenied
	}
	return errs.OK
}

// Register makes a region usable; it costs nothing per byte. Memory that is part of an allocation of ours, or of another
// sealed memfd, can be mapped by peers; other memory is reached through the kernel.
func (t *Transport) Register(_ context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	switch {
	case t.closed.Load():
		return 0, nil, closedError("shm.register")
	case m.Kind != mem.Host:
		return 0, nil, errs.New(errs.InvalidArgument, "shm.register", "%v memory cannot be shared by processes", m.Kind)
	case m.Addr == 0 || m.Size == 0 || uint64(m.Addr)+m.Size < m.Size:
		return 0, nil, errs.New(errs.InvalidArgument, "shm.register", "no memory at %#x with %d bytes", m.Addr, m.Size)
	}
	name, err := t.table.Add()
	if err != nil {
		return 0, nil, err
	}
	r := &region{name: name, addr: m.Addr, size: m.Size, allows: m.Permission, fixed: m.ReadOnly}
	d := described{name: name, allows: m.Permission, fixed: m.ReadOnly, addr: uint64(m.Addr), size: m.Size, owner: t.self.Incarnation}
	t.share(&d, &m, r)
	t.regions.add(r)
	return keyOf(name), d.append(nil), nil
}

// Deregister forgets a region. Peers that still name it are refused.
func (t *Transport) Deregister(_ context.Context, key transport.LocalKey) error {
	r := t.regions.remove(key)
	if r == nil {
		return errs.New(errs.AddressNotRegistered, "shm.deregister", "no region with key %#x", uint64(key))
	}
	t.table.Remove(r.name)
	if r.of != nil {
		if _, held := t.table.Held(r.name); !held {
			t.memory.forget(r.of, r.name)
		}
	}
	return nil
}

// Revoke is the owner's fence. From its start nothing new begins on the region, and it returns when no copier of the peers
// (or the one) is inside it any more: it needs nobody to answer. The hazard package says how, and what it promises about
// peers that are killed or stopped: the error names who is still inside.
func (t *Transport) Revoke(ctx context.Context, key transport.LocalKey, peer *transport.Peer, keep bool) error {
	r := t.regions.find(key)
	if r == nil {
		return errs.New(errs.AddressNotRegistered, "shm.revoke", "no region with key %#x", uint64(key))
	}
	ctx, cancel := bounded(ctx, revokeLimit)
	defer cancel()
	if peer == nil {
		return t.table.Revoke(ctx, r.name, nil, keep) // again: waits again for who is inside, and opens nothing
	}
	var first error
	for _, a := range t.attachments.of(peer, r, keep) {
		if err := t.table.Revoke(ctx, r.name, a.page, keep); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// deny closes the region for a peer's future attachments.
func (r *region) deny(address string) {
	r.deniedMu.Lock()
	r.denied = append(r.denied, address)
	r.deniedMu.Unlock()
}

func (r *region) denies(address string) bool {
	r.deniedMu.Lock()
	defer r.deniedMu.Unlock()
	for _, a := range r.denied {
		if a == address {
			return true
		}
	}
	return false
}
