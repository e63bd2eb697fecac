package tcp

import (
	"encoding/binary"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// region is immutable but for its door.
type region struct {
	key    uint64
	addr   uintptr
	size   uint64
	allows mem.Permission
	peers  *mem.Peers // to which allows is given; nil: to all
	fixed  bool       // the buffer must not be written, not even by our own READs
	door   kit.Door
}

// regions maps keys to regions. Keys are random: one that a peer was given leads to no other, and one of another
// incarnation hits nothing.
type regions struct {
	kit.Keys[uint64, region]
}

// register enters memory under a new key; nil if there are too many regions.
func (t *regions) register(m mem.Region) (r *region) {
	t.Insert(func(key uint64) *region {
		r = &region{key: key, addr: m.Addr, size: m.Size, allows: m.Permission, peers: m.Peers,
			fixed: m.ReadOnly}
		return r
	})
	return r
}

// place checks the range that a lane's initiator asks for, in an epoch, and returns its address, or the verdict of the
// refusal. Permissions are for others: our own engine may reach all that it has registered.
func (l *responderLane) place(key, offset uint64, length uint32, epoch uint64, write bool) (uintptr, uint32) {
	r := l.t.regions.Lookup(key)
	if r == nil {
		return 0, uint32(errs.AddressNotRegistered)
	}
	switch answer := r.door.Admits(l.initiator, transport.Epoch(epoch)); {
	case answer == kit.DoorClosed:
		return 0, uint32(errs.AddressNotRegistered)
	case answer == kit.DoorFenced:
		return 0, verdictFenced
	case !l.own && (!r.allows.Allows(write) || !l.hasRight(r.peers)) || write && r.fixed:
		return 0, uint32(errs.PermissionDenied)
	case !mem.Contains(r.size, offset, uint64(length)):
		return 0, uint32(errs.InvalidArgument)
	}
	return r.addr + uintptr(offset), verdictApplied
}

// hasRight reports whether a rule admits the initiator. It remembers the last one that did: most regions of an owner
// have the same, and a look at its patterns takes longer than the rest of place.
func (l *responderLane) hasRight(rule *mem.Peers) bool {
	if rule == nil {
		return true
	}
	n := l.attachment.Load().names.Load()
	if rule == n.passes.Load() {
		return true
	}
	if !rule.Admit(n.proved) {
		return false
	}
	n.passes.Store(rule)
	return true
}

// checkLocal checks a slice's own end.
func (t *regions) checkLocal(s *transport.Slice) errs.Code {
	r := t.Lookup(uint64(s.LocalKey))
	if r == nil {
		return errs.AddressNotRegistered
	}
	return kit.CheckLocal(s, r.addr, r.size, r.fixed)
}

const (
	descriptorBytes   = 40
	descriptorVersion = 2
)

// describe makes the descriptor: version, permission, key, size, id of the owner.
func (r *region) describe(owner transport.ID) transport.Descriptor {
	b := make([]byte, 8, descriptorBytes)
	b[0], b[1] = descriptorVersion, byte(r.allows)
	b = binary.LittleEndian.AppendUint64(b, r.key)
	b = binary.LittleEndian.AppendUint64(b, r.size)
	return append(b, owner[:]...)
}

func readDescriptor(b transport.Descriptor, peer transport.ID) (transport.RemoteKey, *errs.Error) {
	if len(b) < descriptorBytes || b[0] != descriptorVersion {
		return 0, errs.New(errs.InvalidArgument, "tcp.import", "not a tcp descriptor of version %d", descriptorVersion)
	}
	key, owner := binary.LittleEndian.Uint64(b[8:]), transport.ID(b[24:40])
	switch {
	case key == 0:
		return 0, errs.New(errs.InvalidArgument, "tcp.import", "descriptor without a key")
	case !peer.IsZero() && owner != peer:
		return 0, errs.New(errs.PeerRestarted, "tcp.import", "region belongs to another incarnation of the peer").
			WithScope(errs.ScopeLink, errs.SideRemote)
	}
	return transport.RemoteKey(key), nil
}
