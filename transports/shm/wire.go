package shm

import (
	"encoding/binary"
	"errors"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
)

// version is that of calls and descriptors. Another one is refused: both processes run on one host, usually one build.
const version = 1

// Calls over the control plane. A request is version, kind, and then:
const (
	callHello   = 1 // initiator: number of its link, identity. Answer: welcome
	callLeave   = 2 // initiator: the token it was given; it has left our memory alone for good. Answer: nothing
	callGoodbye = 3 // owner: number of the link, token; the owner closes. Answer: nothing
)

// identity says which process somebody is, in terms that the kernel can confirm.
type identity struct {
	vm.Identity
	nonce   nonce
	nonceAt uint64 // address of nonce in that process, for a first read
}

// nonce is drawn once a process.
type nonce [16]byte

// place is a file that a process holds open, by which a peer maps memory of it.
type place struct {
	fd       uint32
	dev, ino uint64 // of the file: another one may be open under this number by now
}

// welcome is the answer to a hello.
type welcome struct {
	token  uint64
	owner  identity
	page   place
	tracer int32 // the one process to which the owner gave itself under Yama's scope 1, vm.AnyTracer for all
}

var errMessage = errors.New("message is malformed")

func (i identity) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, i.PID)
	b = binary.LittleEndian.AppendUint64(b, i.Started)
	b = binary.LittleEndian.AppendUint32(b, i.UID)
	b = binary.LittleEndian.AppendUint32(b, i.GID)
	b = binary.LittleEndian.AppendUint64(b, i.PIDNS)
	b = binary.LittleEndian.AppendUint64(b, i.UserNS)
	b = append(b, i.nonce[:]...)
	return binary.LittleEndian.AppendUint64(b, i.nonceAt)
}

func (p place) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, p.fd)
	b = binary.LittleEndian.AppendUint64(b, p.dev)
	return binary.LittleEndian.AppendUint64(b, p.ino)
}

func (w welcome) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, w.token)
	b = w.page.append(w.owner.append(b))
	return binary.LittleEndian.AppendUint32(b, uint32(w.tracer))
}

func readIdentity(r *kit.Reader) identity {
	return identity{Identity: vm.Identity{PID: r.U32(), Started: r.U64(), UID: r.U32(), GID: r.U32(), PIDNS: r.U64(),
		UserNS: r.U64()},
		nonce: nonce(r.Bytes(16)), nonceAt: r.U64()}
}

func readPlace(r *kit.Reader) place { return place{fd: r.U32(), dev: r.U64(), ino: r.U64()} }

func readWelcome(b []byte) (welcome, error) {
	r := kit.NewReader(b)
	if v := r.U8(); r.Short() || v != version {
		return welcome{}, errMessage
	}
	w := welcome{token: r.U64(), owner: readIdentity(r), page: readPlace(r), tracer: int32(r.U32())}
	if !r.Whole() || w.token == 0 || w.page.fd > 1<<31-1 {
		return welcome{}, errMessage
	}
	return w, nil
}

// described is the content of a region's descriptor.
type described struct {
	name     hazard.Region
	allows   mem.Permission
	fixed    bool   // not even its owner writes it
	addr     uint64 // in its owner's process
	size     uint64
	owner    transport.ID
	shared   bool // peers can map it:
	file     place
	fileSize uint64
	at       uint64 // of the region's first byte in the file
}

func (d *described) append(b []byte) transport.Descriptor {
	b = kit.AppendBool(kit.AppendBool(append(b, version, byte(d.allows)), d.shared), d.fixed)
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, d.name.Index)
	b = binary.LittleEndian.AppendUint32(b, d.name.Generation)
	b = binary.LittleEndian.AppendUint64(b, d.addr)
	b = binary.LittleEndian.AppendUint64(b, d.size)
	b = append(b, d.owner[:]...)
	if d.shared {
		b = d.file.append(b)
		b = binary.LittleEndian.AppendUint64(b, d.fileSize)
		b = binary.LittleEndian.AppendUint64(b, d.at)
	}
	return b
}

// readDescriptor checks a descriptor of one peer (zero: any).
func readDescriptor(b transport.Descriptor, peer transport.ID) (described, *errs.Error) {
	r := kit.NewReader(b)
	var d described
	v, allows, kind, fixed, zero := r.U8(), r.U8(), r.U8(), r.U8(), r.Bytes(4)
	d.name = hazard.Region{Index: r.U32(), Generation: r.U32()}
	d.allows, d.shared, d.fixed = mem.Permission(allows), kind == 1, fixed == 1
	d.addr, d.size, d.owner = r.U64(), r.U64(), r.ID()
	if d.shared && !r.Short() {
		d.file, d.fileSize, d.at = readPlace(r), r.U64(), r.U64()
	}
	switch {
	case v != version || !r.Whole() || kind > 1 || fixed > 1 || d.allows > mem.GlobalReadWrite ||
		[4]byte(zero) != [4]byte{}:
		return d, errs.New(errs.InvalidArgument, "shm.import", "not a shm descriptor of version %d: %d bytes", version,
			len(b))
	case d.name.Generation == 0 || d.name.Index >= hazard.RegionsMax || d.addr == 0 || d.size == 0 ||
		d.addr+d.size < d.addr:
		return d, errs.New(errs.InvalidArgument, "shm.import", "descriptor of an impossible region")
	case d.shared && (d.file.fd > 1<<31-1 || d.fileSize > 1<<62 || !mem.Contains(d.fileSize, d.at, d.size)):
		return d, errs.New(errs.InvalidArgument, "shm.import", "descriptor of a region outside its file")
	case !peer.IsZero() && d.owner != peer:
		return d, errs.New(errs.PeerRestarted, "shm.import", "region belongs to another incarnation of the peer").
			WithScope(errs.ScopeLink, errs.SideRemote)
	}
	return d, nil
}
