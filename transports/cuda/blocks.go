package cuda

import (
	"context"
	"encoding/binary"
	"sync"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/fds"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
)

// version is that of calls and descriptors. Another one is refused: both processes run on one host, usually one build.
const version = 1

// Calls of our own, beside those of package access.
const (
	// callBlocks: name of a region. Answer: UUID of its device, number of blocks; of each its kind, address, size, and
	// its handle or the ticket of its descriptor.
	callBlocks = access.CallOwn
	// callFetched: nothing. The peer has fetched the descriptors of its last question. Answer: nothing.
	callFetched = access.CallOwn + 1
)

// Kinds of blocks in an answer.
const (
	blockLegacy = 1 // and 64 bytes
	blockPassed = 2 // and a ticket
	blockFabric = 3 // and 64 bytes
)

// blocksMax bounds the blocks of a region: a descriptor each, all open at once.
const blocksMax = 2048

// descriptor names a region of ours to peers. They read its place and their permission in our manifest. The ordinal of
// its device counts in our process alone.
func descriptor(name hazard.Region, owner transport.ID, ordinal int) transport.Descriptor {
	b := binary.LittleEndian.AppendUint32([]byte{version}, name.Index)
	b = append(binary.LittleEndian.AppendUint32(b, name.Generation), owner[:]...)
	return binary.LittleEndian.AppendUint32(b, uint32(int32(ordinal)))
}

// named is the content of a descriptor.
type named struct {
	name    hazard.Region
	ordinal int // of the owner's device, -1 for the host
}

// readDescriptor checks a descriptor of one peer.
func readDescriptor(b transport.Descriptor, peer transport.ID) (named, *errs.Error) {
	r := kit.NewReader(b)
	v, name, owner := r.U8(), hazard.Region{Index: r.U32(), Generation: r.U32()}, r.ID()
	told := named{name, int(int32(r.U32()))}
	switch {
	case v != version || !r.Whole():
		return told, errs.New(errs.InvalidArgument, "nvlink.import",
			"not an nvlink descriptor of version %d: %d bytes", version, len(b))
	case name.Generation == 0 || name.Index >= hazard.RegionsMax || told.ordinal < -1:
		return told, errs.New(errs.InvalidArgument, "nvlink.import", "descriptor of an impossible region")
	case owner != peer:
		return told, errs.New(errs.PeerRestarted, "nvlink.import",
			"the region belongs to another engine than the peer").
			WithScope(errs.ScopeLink, errs.SideRemote)
	}
	return told, nil
}

// offers are the descriptors that peers may fetch now: each peer's until it has, or is gone.
type offers struct {
	mu     sync.Mutex
	server *fds.Server // nil until a region needs it
	open   map[*access.Grant][]fds.Ticket
	closed bool
}

// add offers the descriptor of a block to a peer.
func (o *offers) add(g *access.Grant, self fds.Process, fd int) (fds.Ticket, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return fds.Ticket{}, kit.Closed("nvlink.share")
	case g.Ended(): // else end comes behind us
		return fds.Ticket{}, errs.New(errs.Stale, "nvlink.share", "the link has ended").
			WithScope(errs.ScopeLink, errs.SidePath)
	}
	if o.server == nil {
		server, err := fds.Listen(self.UID, nil)
		if err != nil {
			return fds.Ticket{}, err
		}
		o.server, o.open = server, map[*access.Grant][]fds.Ticket{}
	}
	ticket, err := o.server.Offer(fd, fds.Process{PID: g.PID, UID: self.UID})
	if err == nil {
		o.open[g] = append(o.open[g], ticket)
	}
	return ticket, err
}

// end withdraws the offers to a peer.
func (o *offers) end(g *access.Grant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, ticket := range o.open[g] {
		o.server.Withdraw(ticket)
	}
	delete(o.open, g)
}

// close ends all offers.
func (o *offers) close() {
	o.mu.Lock()
	o.closed = true
	server := o.server
	o.mu.Unlock()
	if server != nil {
		server.Close()
	}
}

// serveBlocks answers a peer's questions of our own kinds.
func (t *nvlink) serveBlocks(_ context.Context, g *access.Grant, kind byte, m *kit.Reader) ([]byte, error) {
	switch {
	case kind == callFetched && m.Whole():
		t.offers.end(g)
		return []byte{version}, nil
	case kind != callBlocks:
		return nil, t.Malformed(g.Peer)
	}
	name := hazard.Region{Index: m.U32(), Generation: m.U32()}
	if !m.Whole() {
		return nil, t.Malformed(g.Peer)
	}
	r := t.named(name)
	if r == nil || r.ordinal < 0 || r.Permission == mem.LocalReadWrite && !g.Peer.Self ||
		r.door.Admits(g.Peer.ID, transport.ForGood) == kit.DoorClosed {
		t.Host.Refused(transport.RefusedAccess, g.Peer.Address, kit.NoRegion("nvlink.share", 0))
		return nil, errs.New(errs.AddressNotRegistered, "nvlink.share",
			"there is no such region of a device for this peer").
			WithScope(errs.ScopeSlice, errs.SideRemote)
	}
	return t.share(g, r)
}

// named returns the region with a name, or nil.
func (t *nvlink) named(name hazard.Region) *region {
	for _, r := range t.regions.All() {
		if *r.name.Load() == name {
			return r
		}
	}
	return nil
}

// share writes the answer about a region.
func (t *nvlink) share(g *access.Grant, r *region) ([]byte, error) {
	devices, err := driver.Platform{}.Devices()
	if err != nil || r.ordinal >= len(devices) {
		return nil, errs.New(errs.DeviceNotFound, "nvlink.share", "the driver has no cuda:%d: %v", r.ordinal, err)
	}
	blocks, err := driver.Share(r.Addr, r.Size, r.ordinal)
	if err != nil {
		return nil, err
	}
	defer driver.CloseBlocks(blocks)
	if err := tooMany("nvlink.share", blocks); err != nil {
		return nil, err
	}
	b := append([]byte{version}, devices[r.ordinal].UUID[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(blocks)))
	for i := range blocks {
		if b, err = t.appendBlock(b, g, &blocks[i]); err != nil {
			t.offers.end(g)
			return nil, err
		}
	}
	return b, nil
}

// tooMany returns why a region with these blocks cannot be shared, nil if it can.
func tooMany(op string, blocks []driver.Block) error {
	if len(blocks) <= blocksMax {
		return nil
	}
	return errs.New(errs.NotHere, op, "the region has %d chunks, more than %d", len(blocks), blocksMax).
		WithHint("register parts of it")
}

func (t *nvlink) appendBlock(b []byte, g *access.Grant, block *driver.Block) ([]byte, error) {
	kind := byte(blockLegacy)
	switch {
	case block.Fd >= 0:
		kind = blockPassed
	case block.Fabric:
		kind = blockFabric
	}
	b = binary.LittleEndian.AppendUint64(append(b, kind), uint64(block.Addr))
	b = binary.LittleEndian.AppendUint64(b, block.Size)
	if kind != blockPassed {
		return append(b, block.Handle[:]...), nil
	}
	ticket, err := t.offers.add(g, fds.Self(), block.Fd)
	return append(append(b, ticket.Server[:]...), ticket.Key[:]...), err
}

// ask asks a region's owner for its blocks and maps them. The ordinal is that of the owner's device here, or 0 where
// this process does not see it.
func (n *neighbour) ask(ctx context.Context, name hazard.Region, addr uintptr, size uint64) (*driver.Mapping, int,
	error) {
	question := binary.LittleEndian.AppendUint32(nil, name.Index)
	question = binary.LittleEndian.AppendUint32(question, name.Generation)
	answer, err := n.access.Ask(ctx, n.Peer, callBlocks, question)
	if err != nil {
		return nil, 0, err
	}
	r := kit.NewReader(answer)
	uuid := [16]byte(r.Bytes(16))
	blocks, err := n.blocks(ctx, r)
	defer driver.CloseBlocks(blocks)
	if err != nil {
		return nil, 0, err
	}
	if err := sound(blocks, addr, size); err != nil {
		return nil, 0, err
	}
	m, err := driver.Map(blocks, addr, uuid)
	ordinal, seen := driver.OrdinalOf(uuid)
	if !seen {
		ordinal = 0
	}
	return m, ordinal, err
}

// blocks reads the blocks of an answer, and fetches the descriptors. The caller closes those also after an error.
func (n *neighbour) blocks(ctx context.Context, r *kit.Reader) (list []driver.Block, err error) {
	owner, passed := fds.Process{PID: n.access.PID, UID: n.owner.Me.UID}, false
	for left := min(r.U32(), blocksMax+1); left > 0 && !r.Short(); left-- {
		kind := r.U8()
		b := driver.Block{Addr: uintptr(r.U64()), Size: r.U64(), Fd: -1}
		switch kind {
		case blockLegacy, blockFabric:
			copy(b.Handle[:], r.Bytes(driver.HandleBytes))
			b.Fabric = kind == blockFabric
		case blockPassed:
			passed = true
			ticket := fds.Ticket{Server: fds.Key(r.Bytes(len(fds.Key{}))), Key: fds.Key(r.Bytes(len(fds.Key{})))}
			if b.Fd, err = fds.Fetch(ctx, ticket, owner); err != nil {
				return list, err
			}
		default:
			return list, malformed()
		}
		list = append(list, b)
	}
	if passed {
		_, _ = n.access.Ask(ctx, n.Peer, callFetched, nil) // a courtesy: the end of the link frees them, too
	}
	if !r.Whole() || len(list) > blocksMax {
		return list, malformed()
	}
	return list, nil
}

func malformed() error {
	return errs.New(errs.Protocol, "cuda.import", "the owner's answer is malformed").
		WithScope(errs.ScopeLink, errs.SidePath)
}

// sound checks that blocks lie side by side and hold a range, and that only chunks are many.
func sound(blocks []driver.Block, addr uintptr, size uint64) error {
	for i := range blocks {
		b := &blocks[i]
		if b.Size == 0 || uint64(b.Addr)+b.Size < b.Size || i > 0 &&
			(!b.Chunk() || !blocks[0].Chunk() || b.Addr != blocks[i-1].Addr+uintptr(blocks[i-1].Size)) {
			return errs.New(errs.Protocol, "cuda.import", "the owner's block %d does not follow the one before", i)
		}
	}
	if n := len(blocks); n == 0 || addr < blocks[0].Addr ||
		uint64(addr)+size > uint64(blocks[n-1].Addr)+blocks[n-1].Size {
		return errs.New(errs.Protocol, "cuda.import", "the owner's %d blocks do not hold the region", n)
	}
	return nil
}
