package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// region is registered memory of a node.
type region struct {
	mem.Region
	key  transport.LocalKey
	door kit.Door
	file *file   // the bytes are this file's; nil for memory
	held uintptr // where the pages of Settings.Holds are mapped once more; 0: there are none

	version uint32 // of its descriptor; counts Replace
	oldest  uint32 // version that is still served
}

// imported is a peer's region as a descriptor named it.
type imported struct {
	key     transport.LocalKey
	version uint32
}

// Replace gives a region another descriptor, as a NIC that comes or goes does, or pages that move. Slices that come by
// an older one are served with serve, else refused as Replaced. The host hears of it.
func (t *Transport) Replace(key transport.LocalKey, serve bool) {
	t.network.mu.Lock()
	defer t.network.leave()
	r := t.regions.Lookup(key)
	if r == nil {
		return
	}
	if r.version++; !serve {
		r.oldest = r.version
	}
	t.replaced(r)
}

// replaced informs the host that a region has a new descriptor.
func (t *Transport) replaced(r *region) {
	t.emit(delivery{news: called, do: func() { t.host.Describe(r.key, t.encode(r)) }})
}

const descriptorMagic = "sim2"

// encode makes a descriptor: magic, id of the owner, key, version, kind, and the name of the transport.
func (t *Transport) encode(r *region) transport.Descriptor {
	d := append([]byte(nil), descriptorMagic...)
	d = append(d, t.self.ID[:]...)
	d = binary.LittleEndian.AppendUint64(d, uint64(r.key))
	d = binary.LittleEndian.AppendUint32(d, r.version)
	return append(append(d, byte(r.Kind)), t.name...)
}

// decode checks a descriptor of a peer and returns the region that it names.
func (l *link) decode(d transport.Descriptor) (imported, *errs.Error) {
	if l.owner.settings.Files {
		key, err := l.openFile(d)
		return imported{key: key}, err
	}
	const head = len(descriptorMagic) + 29
	if len(d) < head || !bytes.HasPrefix(d, []byte(descriptorMagic)) || d[head-1] >= byte(mem.KindCount) ||
		string(d[head:]) != l.owner.name {
		return imported{}, errs.New(errs.InvalidArgument, "sim.import", "not a descriptor of transport %q: %d bytes",
			l.owner.name, len(d))
	}
	if made := transport.ID(d[4:20]); made != l.peer.ID {
		return imported{}, l.attribute(errs.New(errs.PeerRestarted, "sim.import",
			"the descriptor is of %v, the link of %v", made, l.peer.ID).WithScope(errs.ScopeLink, errs.SideRemote))
	}
	return imported{transport.LocalKey(binary.LittleEndian.Uint64(d[20:])), binary.LittleEndian.Uint32(d[28:])}, nil
}

// ends finds the two regions of a slice: where Slice.Local lies and where Slice.Remote counts from. In an executor both
// are the peer's.
func (a *attempt) ends() (local, remote *region, err *errs.Error) {
	t, l := a.rail.link.owner, a.rail.link
	target := l.target()
	if target == nil {
		return nil, nil, l.gone()
	}
	if t.settings.Executor {
		local = target.regions.Lookup(l.imported(transport.RemoteKey(a.slice.LocalKey)).key)
	} else {
		local = t.regions.Lookup(a.slice.LocalKey)
	}
	name := l.imported(a.slice.RemoteKey)
	remote = target.regions.Lookup(name.key)
	switch {
	case local == nil:
		return nil, nil, a.refusal(errs.AddressNotRegistered, errs.SideLocal, "the local key is not registered")
	case remote == nil:
		return nil, nil, a.refusal(errs.AddressNotRegistered, errs.SideRemote, "the remote key is not registered")
	case name.version < remote.oldest:
		return nil, nil, l.attribute(transport.Replaced("sim.slice"))
	}
	if remote.file != nil { // it may have grown or shrunk
		remote.Addr, remote.Size = remote.file.place()
	}
	return local, remote, nil
}

// imported returns the peer's region of a key, none for a key that is not imported.
func (l *link) imported(key transport.RemoteKey) imported {
	if i := l.imports.Lookup(key); i != nil {
		return *i
	}
	return imported{}
}

// check says why a slice may not be carried out now, or nil.
func (a *attempt) check(local, remote *region) *errs.Error {
	s, t := a.slice, a.rail.link.owner
	reach := remote.door.Admits(t.self.ID, s.Epoch)
	here, there := true, true
	kit.EachPart(s, func(from uintptr, to, n uint64) {
		here = here && from >= local.Addr && mem.Contains(local.Size, uint64(from)-uint64(local.Addr), n)
		there = there && mem.Contains(remote.Size, to, n)
	})
	if err := a.unreached(local, remote); err != nil {
		return err
	}
	switch {
	case s.Pieces != nil && !t.settings.Vectors:
		return a.refusal(errs.InvalidArgument, errs.SideLocal,
			"the slice has pieces, which this transport does not know")
	case !here:
		return a.refusal(errs.InvalidArgument, errs.SideLocal, "the local range leaves its region")
	case !there && remote.file != nil:
		return a.refusal(errs.AddressNotRegistered, errs.SideRemote,
			fmt.Sprintf("%d bytes at offset %d go past the end of the file of %d bytes",
				s.Length, s.Remote, remote.Size))
	case !there:
		return a.refusal(errs.InvalidArgument, errs.SideRemote, "the remote range leaves its region")
	case !t.settings.Pairs[local.Kind][remote.Kind]:
		return a.refusal(errs.InvalidArgument, errs.SideLocal,
			"this transport does not move between "+local.Kind.String()+" and "+remote.Kind.String())
	case s.Op == transport.Read && local.ReadOnly || s.Op == transport.Write && remote.ReadOnly:
		return a.refusal(errs.PermissionDenied, errs.SideUnknown, "the destination is read-only")
	case reach == kit.DoorClosed:
		return a.refusal(errs.AddressNotRegistered, errs.SideRemote, "the region was closed")
	case reach == kit.DoorFenced,
		t.settings.Executor && local.door.Admits(t.self.ID, s.Epoch) != kit.DoorOpen:
		return a.fenced()
	case !remote.Permission.Allows(s.Op == transport.Write):
		return a.refusal(errs.PermissionDenied, errs.SideRemote, "the owner does not allow it")
	}
	return nil
}

func (a *attempt) refusal(code errs.Code, side errs.Side, cause string) *errs.Error {
	return a.rail.attribute(errs.New(code, "sim."+a.slice.Op.String(), "%s", cause).WithScope(errs.ScopeSlice, side))
}

func (a *attempt) copy(local, remote *region) *errs.Error {
	code, side := errs.OK, errs.SideUnknown
	if p := a.rail.link.owner.settings.Platform; p != nil && (local.Kind != mem.Host || remote.Kind != mem.Host) {
		if err := copyBy(p, a.slice, remote.Addr); err != nil {
			if side = errs.SideRemote; local.Kind == mem.Host { // only memory of the host can be gone
				side = errs.SideLocal
			}
			return a.refusal(errs.CodeOf(err), side, err.Error())
		}
	} else {
		code, side = kit.Copy(a.slice, remote.reached())
	}
	switch code {
	case errs.OK:
		return nil
	case errs.Corrupted:
		return a.refusal(code, side, "the checksums of both ends differ")
	default:
		return a.refusal(code, side, "the memory is not mapped, or not for this use")
	}
}

// copyBy moves the bytes of a slice by a platform of devices.
func copyBy(p device.Platform, s *transport.Slice, remote uintptr) (err error) {
	kit.EachPart(s, func(local uintptr, offset, n uint64) {
		to, from := local, remote+uintptr(offset)
		if s.Op == transport.Write {
			to, from = from, to
		}
		if err == nil {
			err = p.Copy(to, from, n)
		}
	})
	return err
}

func (a *attempt) fenced() *errs.Error {
	return a.rail.attribute(transport.Fenced("sim." + a.slice.Op.String()))
}

// land moves the bytes, at this virtual moment.
func (a *attempt) land() {
	local, remote, err := a.ends()
	if err == nil {
		err = a.check(local, remote)
	}
	if err == nil {
		err = a.copy(local, remote)
	}
	switch {
	case err == nil:
		a.landed, a.verdict = true, nil
	case !a.landed: // a second landing that is refused changes nothing about the first
		a.verdict = err
	}
}
