package shm

import (
	"crypto/rand"
	"encoding/binary"
	"errors"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/host/manifest"
	"github.com/tent-engine/tent/transports/host/vm"
	"github.com/tent-engine/tent/transports/kit"
)

// version is that of calls and descriptors. Another one is refused: both processes run on one host, usually one build.
const version = 2

// Calls over the control plane. A request is version, kind, a token, and in a hello a claim:
const (
	callHello   = 1 // initiator: its token for the link, its claim. Answer: welcome
	callLeave   = 2 // initiator: the token it was given; it has left our memory alone for good. Answer: nothing
	callGoodbye = 3 // owner: the initiator's token; the owner closes. Answer: nothing
)

// token names one end of a link to the other end, and to nobody else.
type token [16]byte

func newToken() (t token) {
	_, _ = rand.Read(t[:]) // never fails: crypto/rand ends the process instead
	return t
}

// welcome is the answer to a hello.
type welcome struct {
	token  token
	owner  manifest.Claim
	page   vm.File
	tracer int32 // the one process to which the owner gave itself under Yama's scope 1, vm.AnyTracer for all
}

var errMessage = errors.New("message is malformed")

func appendFile(b []byte, f vm.File) []byte {
	b = binary.LittleEndian.AppendUint32(b, f.Fd)
	b = binary.LittleEndian.AppendUint64(b, f.Dev)
	return binary.LittleEndian.AppendUint64(b, f.Ino)
}

func appendClaim(b []byte, c manifest.Claim) []byte {
	b = binary.LittleEndian.AppendUint32(b, c.PID)
	return appendFile(binary.LittleEndian.AppendUint64(b, c.Started), c.File)
}

// call makes a request.
func call(kind byte, t token) []byte { return append([]byte{version, kind}, t[:]...) }

func hello(t token, claim manifest.Claim) []byte { return appendClaim(call(callHello, t), claim) }

func (w welcome) append(b []byte) []byte {
	b = appendFile(appendClaim(append(b, w.token[:]...), w.owner), w.page)
	return binary.LittleEndian.AppendUint32(b, uint32(w.tracer))
}

func readToken(r *kit.Reader) token { return token(r.Bytes(len(token{}))) }

func readFile(r *kit.Reader) vm.File { return vm.File{Fd: r.U32(), Dev: r.U64(), Ino: r.U64()} }

func readClaim(r *kit.Reader) manifest.Claim {
	return manifest.Claim{PID: r.U32(), Started: r.U64(), File: readFile(r)}
}

func readWelcome(b []byte) (welcome, error) {
	r := kit.NewReader(b)
	if v := r.U8(); r.Short() || v != version {
		return welcome{}, errMessage
	}
	w := welcome{token: readToken(r), owner: readClaim(r), page: readFile(r), tracer: int32(r.U32())}
	if !r.Whole() {
		return welcome{}, errMessage
	}
	return w, nil
}

// descriptor names a region of ours to peers. They read its place and their permission in our manifest.
func descriptor(name hazard.Region, owner transport.ID) transport.Descriptor {
	b := binary.LittleEndian.AppendUint32([]byte{version}, name.Index)
	return append(binary.LittleEndian.AppendUint32(b, name.Generation), owner[:]...)
}

// readDescriptor checks a descriptor of one peer.
func readDescriptor(b transport.Descriptor, peer transport.ID) (hazard.Region, *errs.Error) {
	r := kit.NewReader(b)
	v, name, owner := r.U8(), hazard.Region{Index: r.U32(), Generation: r.U32()}, r.ID()
	switch {
	case v != version || !r.Whole():
		return name, errs.New(errs.InvalidArgument, "shm.import", "not a shm descriptor of version %d: %d bytes",
			version, len(b))
	case name.Generation == 0 || name.Index >= hazard.RegionsMax:
		return name, errs.New(errs.InvalidArgument, "shm.import", "descriptor of an impossible region")
	case owner != peer:
		return name, errs.New(errs.PeerRestarted, "shm.import", "the region belongs to another engine than the peer").
			WithScope(errs.ScopeLink, errs.SideRemote)
	}
	return name, nil
}
