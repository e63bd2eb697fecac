package cuda

import (
	"encoding/binary"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
)

// Calls of mnnvl. A request is the version, a kind, a token, and more by its kind; an answer begins with the version.
const (
	callGreet   = 1 // initiator: its token of the link. Answer: the token of the guest, news
	callLeave   = 2 // guest: nothing is mapped any more, and nothing will be. Answer: nothing
	callAlive   = 3 // guest. Answer: news
	callLearn   = 4 // guest: a serial number, the name of a region. Answer: an offer
	callRelease = 5 // guest: serial numbers and names of regions that it does not map any more. Answer: nothing
	callNews    = 6 // owner, with the initiator's token: news. Answer, when they hold: nothing
	callGoodbye = 7 // owner, with the initiator's token: nothing is offered any more. Answer, when that holds: nothing
)

// newsMost bounds the news of an answer, and the names of a release.
const newsMost = 4096

// noToken is that of calls before a greeting was answered.
var noToken access.Token

func appendName(b []byte, name hazard.Region) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, name.Index), name.Generation)
}

func readName(r *kit.Reader) hazard.Region { return hazard.Region{Index: r.U32(), Generation: r.U32()} }

// news is the owner's word on a region: tasks of epochs below the floor must not touch it any more, or nobody may.
type news struct {
	name     hazard.Region
	floor    transport.Epoch
	closed   bool
	replaced bool // closed, and it has another name
}

func (n *news) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(appendName(b, n.name), uint64(n.floor))
	return kit.AppendBool(kit.AppendBool(b, n.closed), n.replaced)
}

func readNews(r *kit.Reader) news {
	return news{readName(r), transport.Epoch(r.U64()), r.Bool(), r.Bool()}
}

func appendList(b []byte, list []news) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(list)))
	for i := range list {
		b = list[i].append(b)
	}
	return b
}

func readList(r *kit.Reader) (list []news) {
	for left := min(r.U32(), newsMost); left > 0 && !r.Short(); left-- {
		list = append(list, readNews(r))
	}
	return list
}

// fabricDescriptor names a region to peers of other hosts: its NVLink domain, or why it has none. Handles are rights,
// and are not in it.
type fabricDescriptor struct {
	name   hazard.Region
	owner  transport.ID
	domain device.Fabric
	why    string // "" where other hosts can map it
}

func (d *fabricDescriptor) encode() transport.Descriptor {
	b := append(appendName([]byte{version}, d.name), d.owner[:]...)
	b = binary.LittleEndian.AppendUint32(append(b, d.domain.Cluster[:]...), d.domain.Clique)
	return kit.AppendText(b, d.why)
}

// readFabricDescriptor checks a descriptor of one peer.
func readFabricDescriptor(b transport.Descriptor, peer transport.ID) (fabricDescriptor, *errs.Error) {
	r := kit.NewReader(b)
	v, d := r.U8(), fabricDescriptor{name: readName(r), owner: r.ID()}
	d.domain = device.Fabric{Cluster: [16]byte(r.Bytes(16)), Clique: r.U32()}
	d.why = r.Text()
	switch {
	case len(b) == 0: // memory of the host
		return d, errs.New(errs.PermissionDenied, "mnnvl.import", "its owner does not offer the region to other hosts").
			WithScope(errs.ScopeSlice, errs.SideRemote)
	case v != version || !r.Whole():
		return d, errs.New(errs.InvalidArgument, "mnnvl.import", "not an mnnvl descriptor of version %d: %d bytes",
			version, len(b))
	case d.name.Generation == 0 || d.name.Index >= hazard.RegionsMax:
		return d, errs.New(errs.InvalidArgument, "mnnvl.import", "descriptor of an impossible region")
	case d.owner != peer:
		return d, errs.New(errs.PeerRestarted, "mnnvl.import", "the region belongs to another engine than the peer").
			WithScope(errs.ScopeLink, errs.SideRemote)
	}
	return d, nil
}

// offer is the answer to callLearn.
type offer struct {
	floor  transport.Epoch
	addr   uint64
	size   uint64
	allows mem.Permission
	fixed  bool
	blocks []driver.Block // of the fabric
}

func (o *offer) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(o.floor))
	b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, o.addr), o.size)
	b = kit.AppendBool(append(b, byte(o.allows)), o.fixed)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(o.blocks)))
	for i := range o.blocks {
		block := &o.blocks[i]
		b = binary.LittleEndian.AppendUint64(b, uint64(block.Addr))
		b = append(binary.LittleEndian.AppendUint64(b, block.Size), block.Handle[:]...)
	}
	return b
}

// readOffer returns an offer that makes sense: its chunks hold the region.
func readOffer(r *kit.Reader) (*offer, error) {
	o := &offer{floor: transport.Epoch(r.U64()), addr: r.U64(), size: r.U64(), allows: mem.Permission(r.U8()),
		fixed: r.Bool()}
	for left := min(r.U32(), blocksMax+1); left > 0 && !r.Short(); left-- {
		b := driver.Block{Addr: uintptr(r.U64()), Size: r.U64(), Fd: -1, Fabric: true}
		copy(b.Handle[:], r.Bytes(driver.HandleBytes))
		o.blocks = append(o.blocks, b)
	}
	if !r.Whole() || len(o.blocks) > blocksMax || o.size == 0 || o.addr+o.size < o.size {
		return nil, malformed()
	}
	return o, sound(o.blocks, uintptr(o.addr), o.size)
}
