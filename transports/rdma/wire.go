package rdma

import (
	"encoding/binary"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/rdma/verbs"
)

// Messages go over the control plane, which proves their senders (Host.Call). The first byte is the kind. An initiator
// names itself by its link; numbers are little endian.
//
//	to the owner of memory    hello link version          -> names of its devices
//	                          connect link turn rail ...  -> its ends of the lanes, and news that were not heard
//	                          learn link region           -> the news of the region
//	                          release link turn rail      -> nothing: its ends of the rail's lanes are closed
//	                          detach link                 -> nothing: its ends of all lanes are
//	to an initiator           news link ...               -> nothing: no older slice is out
//	                          devices link              -> nothing: the owner has another device, and is asked again
//	to both                   goodbye                     -> nothing
const (
	kindHello   = 1
	kindConnect = 2
	kindLearn   = 3
	kindDetach  = 4
	kindNews    = 5
	kindGoodbye = 6
	kindRelease = 7
	kindDevices = 8

	protocol = 2
	magic    = 0x616d6472 // behind the kind: noise is no message
)

// end is one end of the lanes of a rail, as the other end needs it.
type end struct {
	gid   [16]byte
	kind  uint8 // of the address, see the kinds
	skip  uint8 // of the answering end's addresses
	lid   uint16
	route bool // InfiniBand: packets to it need a global header
	mtu   uint32
	reads uint8
	lanes []laneEnd
}

type laneEnd struct {
	lane uint8
	pair uint32 // number of the queue pair
	psn  uint32 // of its first packet
	marks
}

// routed is end.route in the message, above the LID. Engines of before do not look there.
const routed = 1 << 16

// Kinds of addresses.
const (
	addressV1         = 0
	addressV2         = 1
	addressInfiniBand = 2
)

func kindOf(g *verbs.GID) uint8 {
	switch {
	case g.InfiniBnd:
		return addressInfiniBand
	case g.RoCEv2:
		return addressV2
	}
	return addressV1
}

// global reports whether packets between two ends have global headers, with the addresses: always for RoCE.
func global(own *verbs.GID, ours, theirs *end) bool {
	return !own.InfiniBnd || ours.route || theirs.route
}

// address is the address of the end.
func (e *end) address() verbs.GID {
	return verbs.GID{GID: e.gid, RoCEv2: e.kind == addressV2, InfiniBnd: e.kind == addressInfiniBand}
}

func (e *end) encode(b []byte) []byte {
	b = append(append(b, e.gid[:]...), e.kind, e.skip)
	lid := uint32(e.lid)
	if e.route {
		lid |= routed
	}
	b = binary.LittleEndian.AppendUint32(b, lid)
	b = binary.LittleEndian.AppendUint32(b, e.mtu)
	b = append(b, e.reads, byte(len(e.lanes)))
	for _, l := range e.lanes {
		b = append(b, l.lane, l.level, l.traffic)
		b = binary.LittleEndian.AppendUint32(b, l.pair)
		b = binary.LittleEndian.AppendUint32(b, l.psn)
	}
	return b
}

func decodeEnd(r *kit.Reader) (e end) {
	e.gid = [16]byte(r.Bytes(16))
	e.kind, e.skip = r.U8(), r.U8()
	lid := r.U32()
	e.lid, e.route, e.mtu, e.reads = uint16(lid), lid&routed != 0, r.U32(), r.U8()
	for range r.U8() {
		if r.Short() {
			break
		}
		l := laneEnd{lane: r.U8(), marks: marks{r.U8(), r.U8()}}
		l.pair, l.psn = r.U32(), r.U32()
		e.lanes = append(e.lanes, l)
	}
	return e
}

func (e *end) valid() bool {
	if e.mtu < 1 || e.mtu > 5 || e.kind > addressInfiniBand || len(e.lanes) == 0 || len(e.lanes) > lanesMost {
		return false
	}
	for _, l := range e.lanes {
		if l.lane >= lanesMost || l.level > 15 || l.pair >= 1<<24 || l.psn >= 1<<24 {
			return false
		}
	}
	return true
}

// news is a change of a region that initiators have to hear of before it counts.
type news struct {
	region  uint64
	floor   transport.Epoch // slices of older epochs are refused
	closed  bool            // and all others too
	version uint32          // of the keys: older descriptors are replaced; 0: no change
}

// message begins a message of a kind that names a link.
func message(kind byte, link uint64) []byte {
	b := binary.LittleEndian.AppendUint32([]byte{kind}, magic)
	return binary.LittleEndian.AppendUint64(b, link)
}

func (n *news) encode(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, n.region)
	b = binary.LittleEndian.AppendUint64(b, uint64(n.floor))
	b = kit.AppendBool(b, n.closed)
	return binary.LittleEndian.AppendUint32(b, n.version)
}

func decodeNews(r *kit.Reader) news {
	return news{r.U64(), transport.Epoch(r.U64()), r.Bool(), r.U32()}
}

// join adds other news of the same region.
func (n *news) join(o news) {
	n.region = o.region
	n.floor, n.closed, n.version = max(n.floor, o.floor), n.closed || o.closed, max(n.version, o.version)
}

// newsMost bounds the news in one answer.
const newsMost = 1 << 16

func malformed(kind byte) *errs.Error {
	return errs.New(errs.Protocol, "rdma.serve", "a malformed message of kind %d", kind)
}
