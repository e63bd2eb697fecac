package shm

import (
	"context"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/kit"
)

// region is registered memory of ours. It is immutable but for its door.
type region struct {
	name   hazard.Region
	addr   uintptr
	size   uint64
	allows mem.Permission
	fixed  bool        // the buffer must not be written, not even by our own READs
	of     *allocation // the memory is part of it; nil for the user's own
	door   kit.Door    // for peers that attach later; those that are attached see their pages
}

// checkLocal checks a slice's own end.
func (t *Transport) checkLocal(s *transport.Slice) errs.Code {
	r := t.regions.Lookup(s.LocalKey)
	if r == nil {
		return errs.AddressNotRegistered
	}
	return kit.CheckLocal(s, r.addr, r.size, r.fixed)
}

// Register makes a region usable; it costs nothing per byte. Memory that is part of an allocation of ours, or of
// another sealed memfd, can be mapped by peers; other memory is reached through the kernel.
func (t *Transport) Register(_ context.Context, m mem.Region) (transport.LocalKey, transport.Descriptor, error) {
	if err := kit.CheckRegister("shm.register", &t.life, &m); err != nil {
		return 0, nil, err
	}
	name, err := t.Table.Add()
	if err != nil {
		return 0, nil, err
	}
	r := &region{name: name, addr: m.Addr, size: m.Size, allows: m.Permission, fixed: m.ReadOnly}
	listed := manifest.Region{Addr: uint64(m.Addr), Size: m.Size, Allows: m.Permission, Fixed: m.ReadOnly}
	t.share(&listed, &m, r)
	t.Manifest.Write(name.Index, name.Generation, &listed)
	key := t.regions.Insert(func(transport.LocalKey) *region { return r }) // has room: the hazard table had
	return key, descriptor(name, t.self.ID), nil
}

// Deregister forgets a region. Peers that still name it are refused.
func (t *Transport) Deregister(_ context.Context, key transport.LocalKey) error {
	r := t.regions.Delete(key)
	if r == nil {
		return kit.NoRegion("shm.deregister", key)
	}
	t.Manifest.Erase(r.name.Index) // before the index can be another region's
	t.Table.Remove(r.name)
	if r.of != nil {
		if _, held := t.Table.Held(r.name); !held {
			t.memory.forget(r.of, r.name)
		}
	}
	return nil
}

// Revoke is the owner's fence. From its start nothing new begins on the region, and it returns when no copier of the
// peers (or the one) is inside it any more: it needs nobody to answer. The hazard package says how, and its
// promises about peers that are killed or stopped: the error names a process that is still inside.
func (t *Transport) Revoke(ctx context.Context, key transport.LocalKey, peer *transport.Peer,
	epoch transport.Epoch) error {
	r := t.regions.Lookup(key)
	if r == nil {
		return kit.NoRegion("shm.revoke", key)
	}
	return t.Point.Revoke(ctx, &r.door, r.name, peer, epoch)
}
