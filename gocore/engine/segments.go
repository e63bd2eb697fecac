package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/meta"
	"github.com/tent-engine/tent/gocore/security"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// SegmentID names an open segment: slot and generation; 0 is our own memory, always open.
type SegmentID int64

// Local is our own memory as a segment.
const Local SegmentID = 0

// handle is an open segment: a peer, and the region that it was opened on if there is one (then offsets count from 0).
type handle struct {
	id   SegmentID
	peer *peer
	base mem.RegionID // 0: the peer's whole address space
	name string       // of the base region
}

// regionOf returns the region that a place in the segment means, 0 for an address.
func (h *handle) regionOf(at Remote) mem.RegionID {
	if at.Region == 0 {
		return h.base
	}
	return at.Region
}

// segmentTable is read without a lock, and written under mu. An open or a close costs the same however many there are.
type segmentTable struct {
	mu          sync.Mutex
	open        atomic.Pointer[[]atomic.Pointer[handle]] // by slot, nil where closed; a longer one takes its place
	free        []uint32                                 // slots, the one that was given back last at the end
	generations []uint32                                 // by slot, of the next handle there
	peers       map[peerKey]*peer                        // guarded by mu
	numbers     uint32
}

// generationsMax bounds the generations of a slot. An id is not negative, and ids come again after 2 billion handles.
const generationsMax = 1 << 31

type peerKey struct {
	address string
	id      transport.ID
}

func (p *peer) key() peerKey { return peerKey{p.identity.Address, p.identity.ID} }

func (t *segmentTable) get(id SegmentID) (*handle, *errs.Error) {
	if list := t.open.Load(); list != nil && id >= 0 {
		if slot := int(uint32(id)); slot < len(*list) {
			if h := (*list)[slot].Load(); h != nil && h.id == id {
				return h, nil
			}
		}
	}
	return nil, errs.New(errs.InvalidEntry, "segment", "segment %d is not open", int64(id))
}

// add gives the handle an id. The caller holds mu.
func (t *segmentTable) add(h *handle) {
	slot := t.takeSlot()
	h.id = SegmentID(t.generations[slot])<<32 | SegmentID(slot)
	t.generations[slot] = (t.generations[slot] + 1) % generationsMax
	(*t.open.Load())[slot].Store(h)
}

// takeSlot returns a slot without a handle. The caller holds mu.
func (t *segmentTable) takeSlot() uint32 {
	if n := len(t.free); n > 0 {
		slot := t.free[n-1]
		t.free = t.free[:n-1]
		return slot
	}
	slot := len(t.generations)
	t.generations = append(t.generations, 0)
	var list []atomic.Pointer[handle]
	if p := t.open.Load(); p != nil {
		list = *p
	}
	if slot == len(list) {
		longer := make([]atomic.Pointer[handle], max(16, 2*slot))
		for i := range list {
			longer[i].Store(list[i].Load())
		}
		t.open.Store(&longer)
	}
	return uint32(slot)
}

func (t *segmentTable) drop(h *handle) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := uint32(h.id)
	if !(*t.open.Load())[slot].CompareAndSwap(h, nil) {
		return false
	}
	t.free = append(t.free, slot)
	return true
}

// count returns the number of open handles, without our own memory.
func (t *segmentTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.generations) - len(t.free) - 1
}

// enterLocked makes a record the one of its peer.
func (t *segmentTable) enterLocked(p *peer) {
	t.numbers++
	p.number = t.numbers
	t.peers[p.key()] = p
}

// where returns the peers for which a condition holds.
func (t *segmentTable) where(holds func(*peer) bool) (list []*peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.peers {
		if holds(p) {
			list = append(list, p)
		}
	}
	return list
}

// peersWith returns the open peers that are the engine with an ID.
func (t *segmentTable) peersWith(id transport.ID) []*peer {
	return t.where(func(p *peer) bool { return p.identity.ID == id && p.file == nil })
}

// numbered returns the open peers with these numbers of the core.
func (t *segmentTable) numbered(numbers []uint32) []*peer {
	return t.where(func(p *peer) bool { return slices.Contains(numbers, p.number) })
}

// identities returns the other engines that are open, by ID.
func (t *segmentTable) identities() map[transport.ID]transport.Peer {
	open := make(map[transport.ID]transport.Peer)
	for _, p := range t.where(func(p *peer) bool { return !p.isHere() && p.gone.Load() == nil }) {
		open[p.identity.ID] = p.identity
	}
	return open
}

// OpenSegment connects to a peer by "host:port" or "host:port/region" and fails at once if nobody is there. "" is
// Local. It opens "file:///path" for reading and writing, for reading alone where writing is not permitted; see
// OpenFile.
func (e *Engine) OpenSegment(ctx context.Context, name string) (SegmentID, error) {
	return e.OpenWith(ctx, name, OpenOptions{})
}

// OpenPeer is OpenSegment for a name that came from outside, by HTTP for example. It opens other engines, and never a
// file of this machine nor our own memory, which holds regions that no peer may touch. Those are InvalidArgument.
func (e *Engine) OpenPeer(ctx context.Context, name string) (SegmentID, error) {
	return e.OpenWith(ctx, name, OpenOptions{Another: true})
}

// openTarget opens an engine, one with the wanted identity unless that is nil. Another one refuses our own.
func (e *Engine) openTarget(ctx context.Context, target meta.Target, wanted *security.Names, another bool) (_ SegmentID,
	err error) {
	identity := e.Self()
	var greeting control.Greeting
	if !e.isOwn(target, wanted) {
		if greeting, err = e.greet(ctx, target.Address); err != nil {
			return 0, err
		}
		identity = greeting.Peer
		identity.Address = target.Address
		if target.ID != "" && target.ID != identity.ID.String() {
			return 0, errs.New(errs.InvalidEntry, "open", "the entry is old: another engine answers at %s",
				target.Address).
				WithHint("the engine that was meant has ended, and its name ends with its lease; or it listens on " +
					"loopback elsewhere: set rpc_server_hostname there")
		}
		if wanted != nil && !wanted.Admit(identity.Names()) {
			return 0, errs.New(errs.PeerNotAdmitted, "open", "the engine at %s is %q; wanted was %s",
				target.Address, identity.Names(), wanted).WithScope(errs.ScopeLink, errs.SideLocal)
		}
	}
	identity.Self = identity.ID == e.credentials.ID()
	if another && identity.Self {
		return 0, noPeer(target.String())
	}
	if !identity.Self {
		e.shown(identity, greeting.Proof)
	}
	p := e.peer(identity)
	if err = p.joinAnew(ctx); err == nil {
		err = p.unreachable("open")
	}
	if err != nil {
		e.leavePeer(p)
		return 0, err
	}
	e.logRoutes(p)
	h := &handle{peer: p, name: target.Region}
	if target.Region != "" {
		if h.base, err = p.named(ctx, target.Region); err != nil {
			e.leavePeer(p)
			return 0, err
		}
	}
	return e.opened(h), nil
}

// greet asks the engine at an address for its identity. One that has shown another one since our connection to it was
// made is asked by a new connection.
func (e *Engine) greet(ctx context.Context, address string) (control.Greeting, error) {
	greeting, err := e.client.Hello(ctx, address)
	if err != nil {
		return control.Greeting{}, err
	}
	known := e.visitors.get(greeting.Peer.ID)
	if known == nil || known.peer.Identity == greeting.Peer.Identity || !greeting.Proof.IsOlder(known.proof) {
		return greeting, nil
	}
	e.client.Forget(address)
	return e.client.Hello(ctx, address)
}

// OpenBlob opens a blob that a peer's Export made. It does not contact the peer, nor wait for another call that does;
// the first use contacts it, and refuses another incarnation.
func (e *Engine) OpenBlob(blob []byte) (SegmentID, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	d, err := segment.Decode(blob)
	if err != nil {
		return 0, err
	}
	if d.ID == e.credentials.ID() {
		return Local, nil
	}
	if err := meta.CheckAddress(d.Address); err != nil {
		return 0, err
	}
	text := func(s string) string { return errs.Printable(s, strangerTextMax) } // as control makes those of Hello
	p := e.peer(transport.Peer{Address: d.Address, Name: text(d.Name), MachineID: text(d.MachineID),
		Network: text(d.Network), ID: d.ID})
	p.fetch.ifFree(func() {
		if p.regions.Load() == nil {
			p.learn(d)
		}
	})
	if t := p.regions.Load(); t != nil && t.description.Epoch < d.Epoch {
		e.changed(d.ID, d.Epoch) // for another handle: the blob has no descriptors, so the peer is asked
	}
	return e.opened(&handle{peer: p}), nil
}

func (e *Engine) opened(h *handle) SegmentID {
	e.segments.mu.Lock()
	e.segments.add(h)
	e.segments.mu.Unlock()
	e.announce(&event.Event{Kind: event.SegmentOpened, Peer: h.peer.identity.Address})
	return h.id
}

// named finds a region by name, asking the peer again if it is not known.
func (p *peer) named(ctx context.Context, name string) (mem.RegionID, error) {
	for try := range 2 {
		if r := p.regions.Load().description.Find(name); r != nil {
			return r.ID, nil
		}
		if try == 0 {
			if err := p.refresh(ctx); err != nil {
				return 0, err
			}
		}
	}
	return 0, errs.New(errs.AddressNotRegistered, "open", "%s offers no region named %q", p.identity.Address, name)
}

// peer returns the record of a peer with one more handle; it is made at first use.
func (e *Engine) peer(identity transport.Peer) *peer {
	t := &e.segments
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[peerKey{identity.Address, identity.ID}]
	if p == nil || p.gone.Load() != nil {
		p = newPeer(e, identity)
		t.enterLocked(p)
	}
	p.handles++
	return p
}

// peersMeant returns the engines that a name means. Those that are open under it as an address come first, then the
// listed ones with that ID or an identity of that pattern, and then the one that answers at the address. A peer may
// call itself by another address, so a fence must not go by that. The error is InvalidEntry if there is none.
func (e *Engine) peersMeant(ctx context.Context, name string) (list []transport.Peer, err error) {
	under := func(p *peer) bool { return p.identity.Address == name && p.file == nil }
	for _, p := range e.segments.where(under) {
		list = append(list, p.identity)
	}
	if len(list) > 0 {
		return list, nil
	}
	named := namedBy(name)
	for _, p := range e.Peers() {
		if named(p.Peer) {
			list = append(list, p.Peer)
		}
	}
	if len(list) > 0 {
		return list, nil
	}
	lack := fmt.Sprintf("no peer is %q", errs.Printable(name, strangerTextMax))
	if meta.CheckAddress(name) == nil {
		identity, why := e.client.Open(ctx, name)
		if why == nil {
			return append(list, identity), nil
		}
		lack += fmt.Sprintf(", and none answers there: %v", why)
	}
	return nil, errs.New(errs.InvalidEntry, "fence", "%s", lack).
		WithHint("give the segment of the peer, its ID, or a pattern of identities that engine.peers() has; " +
			"without a peer all of them are fenced")
}

// leavePeer gives a handle back; the last one detaches the links.
func (e *Engine) leavePeer(p *peer) {
	if e.unhandle(p) {
		e.endPeer(p)
	}
}

// unhandle gives a handle back and reports whether it was the last.
func (e *Engine) unhandle(p *peer) (last bool) {
	t := &e.segments
	t.mu.Lock()
	defer t.mu.Unlock()
	p.handles--
	last = p.handles == 0
	if last && !e.closed.Load() && t.peers[p.key()] == p {
		delete(t.peers, p.key()) // an engine that closes detaches all that are left in the map
	}
	return last
}

func closedSegment() *errs.Error {
	return errs.New(errs.InvalidEntry, "segment", "the segment was closed").WithScope(errs.ScopeLink, errs.SideLocal)
}

// endPeer ends a peer without handles. The caller holds no lock.
func (e *Engine) endPeer(p *peer) {
	p.detach(closedSegment())
	e.takeBack(p)
	e.notifier.forget(p)
}

// CloseSegment closes a handle. Transfers under way to a peer end with an error, those of a file go on.
func (e *Engine) CloseSegment(id SegmentID) error {
	h, err := e.segments.get(id)
	if err != nil {
		return err
	}
	if id == Local || !e.segments.drop(h) {
		return nil
	}
	e.leavePeer(h.peer)
	e.announce(&event.Event{Kind: event.SegmentClosed, Peer: h.peer.identity.Address})
	return nil
}

// SegmentInfo describes an open segment; refresh asks the peer first.
type SegmentInfo struct {
	Peer    transport.Peer
	Base    string           // the region it was opened on
	Regions []segment.Region // and leases, each of them as one
	File    bool             // a file of this machine: Base is its path
}

// Segment describes an open segment.
func (e *Engine) Segment(ctx context.Context, id SegmentID, refresh bool) (SegmentInfo, error) {
	h, failure := e.segments.get(id)
	if failure != nil {
		return SegmentInfo{}, failure
	}
	if gone := h.peer.gone.Load(); gone != nil {
		return SegmentInfo{}, gone
	}
	if t := h.peer.regions.Load(); refresh || t == nil || h.peer.identity.Self {
		if err := h.peer.refresh(ctx); err != nil {
			return SegmentInfo{}, err
		}
	}
	identity := h.peer.identity
	if known := e.visitors.get(identity.ID); known != nil && h.peer.file == nil {
		identity.Identity = known.peer.Identity // the newest; a blob has none
	}
	return SegmentInfo{identity, h.name, h.peer.regions.Load().description.Offers(), h.peer.file != nil}, nil
}

// silentAsk bounds the question to a peer that is silent. One that has just come back answers in milliseconds.
const silentAsk = time.Second

// Alive reports whether the peer of a segment answers in its incarnation. A peer that is gone is not asked, and one for
// which transfers wait in silence is asked for silentAsk at most.
func (e *Engine) Alive(ctx context.Context, id SegmentID) (bool, error) {
	h, failure := e.segments.get(id)
	if failure != nil {
		return false, failure
	}
	if h.peer.isHere() {
		return true, nil
	}
	if h.peer.gone.Load() != nil {
		return false, nil
	}
	if e.isSilent(h.peer) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, silentAsk)
		defer cancel()
	}
	if err := e.client.Probe(ctx, h.peer.identity); err != nil {
		h.peer.blame(err)
		return false, nil
	}
	e.notice(notice{kind: noticeAnswered, peer: h.peer.number})
	return true, nil
}

// isSilent reports whether transfers wait for a peer that is silent.
func (e *Engine) isSilent(p *peer) bool {
	e.mu.Lock()
	defer e.unlockAndDrain()
	return e.core.Silent(p.number)
}
