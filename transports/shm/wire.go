package shm

import (
	"encoding/binary"
	"errors"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/shm/hazard"
	"github.com/tent-engine/tent/transports/shm/vm"
)

// version is that of calls and descriptors. Another one is refused: both processes run on one host, usually one build.
const version = 1

// Calls over the control plane. A request is version, what, and then:
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

// reader takes fields out of a message; after a short one all are zero and bad is set.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if len(r.b) < n {
		r.bad, r.b = true, nil
		return make([]byte, n)
	}
	head := r.b[:n]
	r.b = r.b[n:]
	return head
}

func (r *reader) u8() byte    { return r.take(1)[0] }
func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

// end reports whether the message was there, whole and with nothing behind it.
func (r *reader) end() bool { return !r.bad && len(r.b) == 0 }

func (r *reader) identity() identity {
	return identity{Identity: vm.Identity{PID: r.u32(), Started: r.u64(), UID: r.u32(), GID: r.u32(), PIDNS: r.u64(), UserNS: r.u64()},
		nonce: nonce(r.take(16)), nonceAt: r.u64()}
}

func (r *reader) place() place { return place{fd: r.u32(), dev: r.u64(), ino: r.u64()} }

func readWelcome(b []byte) (welcome, error) {
	r := &reader{b: b}
	if v := r.u8(); r.bad || v != version {
		return welcome{}, errMessage
	}
	w := welcome{token: r.u64(), owner: r.identity(), page: r.place(), tracer: int32(r.u32())}
	if !r.end() || w.token == 0 || w.page.fd > 1<<31-1 {
		return welcome{}, errMessage
	}
	return w, nil
}

// described is what a descriptor says of a region.
type described struct {
	name     hazard.Region
	allows   mem.Permission
	fixed    bool   // not even its owner writes it
	addr     uint64 // in its owner's process
	size     uint64
	owner    uint64 // incarnation
	shared   bool   // peers can map it:
	file     place
	fileSize uint64
	at       uint64 // of the region's first byte in the file
}

func (d *described) append(b []byte) transport.Descriptor {
	b = append(b, version, byte(d.allows), boolByte(d.shared), boolByte(d.fixed), 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, d.name.Index)
	b = binary.LittleEndian.AppendUint32(b, d.name.Generation)
	b = binary.LittleEndian.AppendUint64(b, d.addr)
	b = binary.LittleEndian.AppendUint64(b, d.size)
	b = binary.LittleEndian.AppendUint64(b, d.owner)
	if d.shared {
		b = d.file.append(b)
		b = binary.LittleEndian.AppendUint64(b, d.fileSize)
		b = binary.LittleEndian.AppendUint64(b, d.at)
	}
	return b
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// readDescriptor checks a descriptor of a peer in one incarnation (0: any).
func readDescriptor(b transport.Descriptor, incarnation uint64) (described, *errs.Error) {
	r := &reader{b: b}
	var d described
	v, allows, kind, fixed, zero := r.u8(), r.u8(), r.u8(), r.u8(), r.take(4)
	d.name = hazard.Region{Index: r.u32(), Generation: r.u32()}
	d.allows, d.shared, d.fixed = mem.Permission(allows), kind == 1, fixed == 1
	d.addr, d.size, d.owner = r.u64(), r.u64(), r.u64()
	if d.shared && !r.bad {
		d.file, d.fileSize, d.at = r.place(), r.u64(), r.u64()
	}
	switch {
	case v != version || !r.end() || kind > 1 || fixed > 1 || d.allows > mem.GlobalReadWrite || [4]byte(zero) != [4]byte{}:
		return d, errs.New(errs.InvalidArgument, "shm.import", "not a shm descriptor of version %d: %d bytes", version, len(b))
	case d.name.Generation == 0 || d.name.Index >= hazard.RegionsMax || d.addr == 0 || d.size == 0 || d.addr+d.size < d.addr:
		return d, errs.New(errs.InvalidArgument, "shm.import", "descriptor of an impossible region")
	case d.shared && (d.file.fd > 1<<31-1 || d.fileSize > 1<<62 || !mem.Contains(d.fileSize, d.at, d.size)):
		return d, errs.New(errs.InvalidArgument, "shm.import", "descriptor of a region outside its file")
	case incarnation != 0 && d.owner != incarnation:
		return d, errs.New(errs.PeerRestarted, "shm.import", "region belongs to another incarnation of the peer").
			WithScope(errs.ScopeLink, errs.SideRemote)
	}
	return d, nil
}
