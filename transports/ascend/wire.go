package ascend

import (
	"encoding/binary"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/kit"
)

// Messages go over the control plane, which proves their senders (Host.Call). The first byte is the kind. An initiator
// names itself by its link; numbers are little endian.
//
//	to the owner of memory  hello link regions  -> its address with HIXL, its newest registration, their news
//	                        learn link region   -> the news of the region
//	                        detach link         -> nothing
//	to an initiator         news link news      -> nothing: no older slice is out
//	                        part link           -> nothing: the link is not connected
//	to both                 goodbye             -> nothing
const (
	kindHello   = 1
	kindLearn   = 2
	kindDetach  = 3
	kindNews    = 4
	kindPart    = 5
	kindGoodbye = 6

	version = 2
	magic   = 0x6c786968 // behind the kind: noise is no message
)

// message begins a message of a kind that names a link.
func message(kind byte, link uint64) []byte {
	b := binary.LittleEndian.AppendUint32([]byte{kind}, magic)
	return binary.LittleEndian.AppendUint64(b, link)
}

func malformed(kind byte) *errs.Error {
	return errs.New(errs.Protocol, "ascend.serve", "a malformed message of kind %d", kind)
}

// news is a fence of a region that initiators have to hear of before it counts.
type news struct {
	region uint64
	floor  transport.Epoch // slices of older epochs are refused
	closed bool            // and all others too
}

func (n *news) encode(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, n.region)
	b = binary.LittleEndian.AppendUint64(b, uint64(n.floor))
	return kit.AppendBool(b, n.closed)
}

func decodeNews(r *kit.Reader) news { return news{r.U64(), transport.Epoch(r.U64()), r.Bool()} }

// newsMost bounds the regions in a hello, and the news in its answer.
const newsMost = 1 << 16

// encodeRegions appends the keys of regions.
func encodeRegions(b []byte, keys []uint64) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(keys)))
	for _, key := range keys {
		b = binary.LittleEndian.AppendUint64(b, key)
	}
	return b
}

func decodeRegions(r *kit.Reader) (keys []uint64) {
	for left := min(r.U32(), newsMost); left > 0 && !r.Short(); left-- {
		keys = append(keys, r.U64())
	}
	return keys
}

// greeting is the answer to a hello.
type greeting struct {
	name   string // of the owner's engine of HIXL
	serial uint64
	news   []news
}

func (g *greeting) encode() []byte {
	b := kit.AppendText(nil, g.name)
	b = binary.LittleEndian.AppendUint64(b, g.serial)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(g.news)))
	for _, n := range g.news {
		b = n.encode(b)
	}
	return b
}

func decodeGreeting(b []byte) (g greeting, err error) {
	r := kit.NewReader(b)
	g.name, g.serial = r.Text(), r.U64()
	count := r.U32()
	for range min(count, newsMost) {
		if r.Short() {
			break
		}
		g.news = append(g.news, decodeNews(r))
	}
	if !r.Whole() || g.name == "" {
		return g, malformed(kindHello)
	}
	return g, nil
}

// describe makes the descriptor of a region.
func (r *region) describe(owner transport.ID) transport.Descriptor {
	b := append([]byte{version}, owner[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.key))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Addr))
	b = binary.LittleEndian.AppendUint64(b, r.Size)
	b = binary.LittleEndian.AppendUint64(b, r.entry.serial)
	b = append(b, byte(r.Permission))
	return kit.AppendBool(b, r.ReadOnly)
}

// decode reads the descriptor of a region of a peer.
func decode(d transport.Descriptor, owner transport.ID) (*remote, *errs.Error) {
	r := kit.NewReader(d)
	known, of := r.U8(), r.ID()
	m := &remote{region: r.U64(), base: r.U64(), size: r.U64(), serial: r.U64(), permission: mem.Permission(r.U8()),
		fixed: r.Bool()}
	if !r.Whole() || known != version || of != owner || m.base+m.size < m.size || m.permission > mem.GlobalReadWrite {
		return nil, errs.New(errs.InvalidArgument, "ascend.import", "not a descriptor of the peer: %d bytes", len(d))
	}
	return m, nil
}
