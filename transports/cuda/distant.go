package cuda

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
)

// Times of a link to another host.
const (
	aliveEvery   = time.Second // between two questions
	aliveLimit   = time.Second // of one
	silencesMost = 3           // questions without an answer, until the rail goes down
)

// distant is mnnvl's entrance: the peer is on another host of the NVLink domain. There is no page that both map, so the
// gate to the peer's regions is a page of our own, which the owner shuts by a call.
//
//	owner's Revoke ── callNews ──▶ hear: shut the gate, wait for the copies inside, for good: unmap ── answer ──▶
type distant struct {
	*link

	life  kit.OneRail
	owner *mnnvl
	gate  *hazard.Table

	// The link's goroutine has these.
	token    access.Token // that the peer gave us
	silences int

	mu       sync.Mutex
	held     map[hazard.Region][]*imported // by the owner's name: those that are mapped, or about to be
	released map[hazard.Region]uint64      // names that are held no more, and the owner does not know: the last serial
	serial   uint64
}

// holding is the part of an imported region that belongs to another host.
type holding struct {
	way    *distant
	name   hazard.Region // its owner's
	domain device.Fabric

	mu        sync.Mutex
	floor     transport.Epoch
	closed    bool
	replaced  bool
	unmapping <-chan struct{} // closed when the mapping is down; nil: nobody has asked for that
}

// Attach starts a link to an engine of another host. Engines of one host meet by nvlink, where the kernel reports the
// end of a process (Info.OtherHost).
func (t *mnnvl) Attach(peer transport.Peer) (transport.Link, error) {
	v := &visit{&distant{owner: t, gate: hazard.NewTable(regionsMax)}, access.NewToken()}
	view, err := v.openGate()
	var number transport.Link
	if err == nil {
		number, err = t.attach(func(l *link) {
			v.link, l.view, l.OneRail, l.way = l, view, &v.life, v.distant
			v.life.Number, v.life.Every = l.number, aliveEvery
			t.ways.Store(v.secret, v.distant)
			v.life.Start(FabricName, t.sink, &t.running, peer, v)
		})
	}
	if err != nil {
		v.closeGate()
		return 0, errs.From("mnnvl.attach", err)
	}
	return number, nil
}

// openGate makes the page by which copies enter the peer's regions, both sides of it ours.
func (d *distant) openGate() (*hazard.View, error) {
	page, err := d.gate.NewPage(0, -1)
	if err != nil {
		return nil, err
	}
	return hazard.NewView(page.Fd())
}

// closeGate gives the page back. Nobody is inside: the executor has evicted them.
func (d *distant) closeGate() {
	ctx, cancel := context.WithTimeout(context.Background(), access.RevokeLimit)
	defer cancel()
	if err := d.gate.Close(ctx); err != nil {
		d.owner.host.Log().Warn("a gate stays open", "err", err)
	}
}

// visit is the traffic of a distant link, with the secret by which the owner calls it.
type visit struct {
	*distant
	secret access.Token
}

// Greet implements kit.Traffic.
func (v *visit) Greet() *errs.Error {
	r, err := v.call(access.Call(version, callGreet, v.secret))
	if err != nil {
		return err
	}
	token := access.Token(r.Bytes(len(access.Token{})))
	list := readList(r)
	if !r.Whole() {
		return errs.From("mnnvl.attach", malformed()).WithPeer(v.Peer.Address, FabricName, "")
	}
	if token != v.ticket() { // the link's first greeting, or the owner has taken us for ended
		if err := v.renew(token); err != nil {
			return err
		}
	}
	v.mu.Lock()
	v.token, v.silences = token, 0
	v.mu.Unlock()
	v.hearAll(list)
	v.imports.open()
	return nil
}

// Rail implements kit.Traffic.
func (v *visit) Rail() transport.RailInfo {
	info := v.link.Rail()
	info.Local, info.Remote = v.owner.self.Address, v.Peer.Address
	return info
}

// Tick asks the owner whether it is there, and says which regions are not held any more. A peer that is silent could
// not fence us: the rail goes down, and other ways lead on.
func (v *visit) Tick() *errs.Error {
	if err := v.sayReleased(); err != nil {
		return v.missed(err)
	}
	r, err := v.call(access.Call(version, callAlive, v.ticket()))
	if err != nil {
		return v.missed(err)
	}
	list := readList(r)
	if !r.Whole() {
		return errs.From("mnnvl.alive", malformed())
	}
	v.silences = 0
	v.hearAll(list)
	return nil
}

// missed counts a question without an answer. One that proves something has no second chance.
func (v *visit) missed(err *errs.Error) *errs.Error {
	v.silences++
	if v.silences < silencesMost && !err.EndsPeer() && err.Code != errs.Stale {
		return nil
	}
	v.silences = 0
	return err
}

// End implements kit.Traffic: the last copy has ended, and all is unmapped, before the owner hears that we leave.
func (v *visit) End() {
	v.link.End()
	v.owner.ways.Delete(v.secret)
	v.closeGate()
	if v.ticket() != noToken && (v.Gone() == nil || !v.Gone().EndsPeer()) {
		_, _ = v.call(access.Call(version, callLeave, v.ticket())) // a courtesy: a call of the owner's finds no link
	}
}

// call makes a call of the peer, and returns its answer behind the version.
func (d *distant) call(message []byte) (*kit.Reader, *errs.Error) {
	ctx, cancel := context.WithTimeout(context.Background(), aliveLimit)
	defer cancel()
	return d.callWithin(ctx, message)
}

func (d *distant) callWithin(ctx context.Context, message []byte) (*kit.Reader, *errs.Error) {
	answer, err := d.owner.host.Call(ctx, d.Peer, message)
	if err != nil {
		e := *errs.From("mnnvl.call", err)
		e.Scope = max(e.Scope, errs.ScopeLink)
		return nil, e.WithPeer(d.Peer.Address, FabricName, "")
	}
	r := kit.NewReader(answer)
	if v := r.U8(); r.Short() || v != version {
		return nil, errs.From("mnnvl.call", malformed()).WithPeer(d.Peer.Address, FabricName, "")
	}
	return r, nil
}

func (d *distant) ticket() access.Token {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.token
}

// serve answers the owner of the regions that we have mapped.
func (d *distant) serve(ctx context.Context, kind byte, r *kit.Reader) (answer []byte, err error) {
	ctx, cancel := access.Bounded(ctx)
	defer cancel()
	switch kind {
	case callNews:
		n := readNews(r)
		if !r.Whole() {
			return nil, d.owner.malformed(d.Peer)
		}
		err = d.hear(ctx, n)
	case callGoodbye:
		why := errs.New(errs.EngineClosed, "", "the peer has closed its engine")
		d.Die(errs.Wrap(errs.PeerUnreachable, FabricName, why).WithScope(errs.ScopeLink, errs.SideRemote).
			WithPeer(d.Peer.Address, FabricName, ""))
		err = d.closeAll(ctx)
	}
	if err != nil {
		return nil, err
	}
	return []byte{version}, nil
}

// hearAll applies the news of an answer.
func (d *distant) hearAll(list []news) {
	ctx, cancel := context.WithTimeout(context.Background(), access.RevokeLimit)
	defer cancel()
	for _, n := range list {
		if err := d.hear(ctx, n); err != nil {
			d.owner.host.Log().Warn("a copy does not end", "peer", d.Peer.Address, "err", err)
		}
	}
}

// hear applies news of a region. When it returns nil, nothing that they forbid is under way, and a region that is
// closed is not mapped.
func (d *distant) hear(ctx context.Context, n news) error {
	for _, r := range d.heldBy(n.name) {
		if err := d.apply(ctx, r, n); err != nil {
			return err
		}
	}
	return nil
}

func (d *distant) apply(ctx context.Context, r *imported, n news) error {
	h := r.held
	h.mu.Lock()
	h.replaced = h.replaced || n.replaced
	h.closed = h.closed || n.closed // one that is about to be mapped sees this, and is not
	mapping, fresh := r.mapping, n.floor > h.floor
	h.mu.Unlock()
	if n.closed {
		if err := d.gate.Revoke(ctx, r.name, nil, hazard.ForGood); err != nil {
			return err
		}
		if mapping == nil {
			return nil
		}
		return d.unmap(ctx, h, mapping)
	}
	if !fresh { // heard before: it would turn away slices that may pass
		return nil
	}
	err := d.gate.Revoke(ctx, r.name, nil, hazard.Epoch(n.floor))
	if err == nil {
		h.mu.Lock()
		h.floor = max(h.floor, n.floor)
		h.mu.Unlock()
	}
	return err
}

// unmap takes a mapping down. A call that has left in vain is followed by another one, which waits for the same.
func (d *distant) unmap(ctx context.Context, h *holding, mapping *driver.Mapping) error {
	h.mu.Lock()
	if h.unmapping == nil {
		down := make(chan struct{})
		h.unmapping = down
		d.imports.down.add(func() {
			_ = mapping.Close() // the error comes again below
			close(down)
		})
	}
	down := h.unmapping
	h.mu.Unlock()
	select {
	case <-down:
		return mapping.Close() // nothing is left to do, or it has failed
	case <-ctx.Done():
		return errs.New(errs.Timeout, "mnnvl.revoke", "the driver unmaps memory behind the work of all streams (%v)",
			ctx.Err()).WithScope(errs.ScopeSlice, errs.SideLocal)
	}
}

// closeAll unmaps all regions.
func (d *distant) closeAll(ctx context.Context) error {
	for _, name := range d.names() {
		if err := d.hear(ctx, news{name: name, closed: true}); err != nil {
			return err
		}
	}
	return nil
}

// names returns the owner's names of the regions that are held.
func (d *distant) names() []hazard.Region {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.held))
}

func (d *distant) heldBy(name hazard.Region) []*imported {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.held[name])
}

// read implements entrance.
func (d *distant) read(b transport.Descriptor) (find func(context.Context) (*imported, error), err *errs.Error) {
	told, err := readFabricDescriptor(b, d.Peer.ID)
	if err != nil {
		return nil, err
	}
	if told.why != "" {
		return nil, errs.New(errs.NotHere, "mnnvl.import", "its owner cannot give the region to other hosts: %s",
			told.why)
	}
	ordinal, err := d.owner.copierFor(told.domain)
	return func(ctx context.Context) (*imported, error) { return d.learn(ctx, told, ordinal) }, err
}

// copierFor returns the first device that is in a domain: it copies between that and our host.
func (t *mnnvl) copierFor(domain device.Fabric) (int, *errs.Error) {
	var first *errs.Error
	for i := range t.domains {
		why := t.outside(i, domain)
		if why == nil {
			return i, nil
		}
		if first == nil {
			first = why
		}
	}
	return 0, first
}

// outside returns why a device cannot copy to and from a domain, nil if it can.
func (t *mnnvl) outside(ordinal int, domain device.Fabric) *errs.Error {
	d := &t.domains[ordinal]
	switch {
	case d.Why != nil:
		return errs.From("mnnvl.match", d.Why)
	case d.Cluster != domain.Cluster:
		return errs.New(errs.NotHere, "mnnvl.match", "cuda:%d is in %s, the peer's memory in %s", ordinal,
			wordsOf(d.Fabric), wordsOf(domain))
	case d.Clique != domain.Clique:
		return errs.New(errs.NotHere, "mnnvl.match",
			"cuda:%d is in clique %d of the NVLink domain, the peer's memory in %d", ordinal, d.Clique, domain.Clique)
	}
	return nil
}

// learn asks the owner for a region, and maps it. The caller holds imports.mu, so no release is under way.
func (d *distant) learn(ctx context.Context, told fabricDescriptor, ordinal int) (*imported, error) {
	name, err := d.gate.Add()
	if err != nil {
		return nil, err
	}
	r := &imported{name: name, ordinal: ordinal,
		held: &holding{way: d, name: told.name, domain: told.domain}}
	message := d.enter(r)
	if err := d.open(ctx, r, message); err != nil {
		d.imports.down.soon(func() { r.close(&d.owner.copier) })
		return nil, err
	}
	return r, nil
}

// enter notes a region as one that is about to be mapped, before the owner is asked: its news may overtake its answer.
func (d *distant) enter(r *imported) (question []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held == nil {
		d.held, d.released = map[hazard.Region][]*imported{}, map[hazard.Region]uint64{}
	}
	name := r.held.name
	d.held[name] = append(d.held[name], r)
	delete(d.released, name)
	return d.askLocked(d.token, name)
}

// askLocked makes the question for a region.
func (d *distant) askLocked(token access.Token, name hazard.Region) []byte {
	d.serial++
	question := binary.LittleEndian.AppendUint64(access.Call(version, callLearn, token), d.serial)
	return appendName(question, name)
}

// open maps a region by the owner's offer.
func (d *distant) open(ctx context.Context, r *imported, question []byte) error {
	answer, e := d.callWithin(ctx, question)
	if e != nil {
		return e
	}
	o, err := readOffer(answer)
	if err != nil {
		return err
	}
	if o.allows == mem.LocalReadWrite {
		return errs.New(errs.PermissionDenied, "mnnvl.import", "its owner offers the region to nobody").
			WithScope(errs.ScopeSlice, errs.SideRemote)
	}
	r.size, r.reads, r.writes = o.size, o.allows.Allows(false), o.allows.Allows(true) && !o.fixed
	if err := d.apply(ctx, r, news{name: r.held.name, floor: o.floor}); err != nil {
		return err
	}
	mapping, err := driver.Map(o.blocks, uintptr(o.addr), [16]byte{})
	if err != nil {
		return err
	}
	r.held.mu.Lock()
	closed := r.held.closed
	r.mapping = mapping
	r.held.mu.Unlock()
	if closed {
		return d.shut(r)
	}
	return nil
}

// drop forgets a region that is not mapped any more.
func (d *distant) drop(r *imported) {
	name := r.held.name
	d.gate.Remove(r.name)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held[name] = slices.DeleteFunc(d.held[name], func(other *imported) bool { return other == r })
	if len(d.held[name]) > 0 {
		return
	}
	delete(d.held, name)
	d.released[name] = d.serial
	d.Kick()
}

// sayReleased lets the owner know of regions that we do not map any more. The lock keeps a region from being asked for
// meanwhile; of one that was asked for since, the owner knows by the serial number.
func (d *distant) sayReleased() *errs.Error {
	d.imports.mu.Lock()
	defer d.imports.mu.Unlock()
	told, list := map[hazard.Region]uint64{}, []byte{}
	d.mu.Lock()
	for name, serial := range d.released {
		if len(told) < newsMost {
			told[name] = serial
			list = appendName(binary.LittleEndian.AppendUint64(list, serial), name)
		}
	}
	message := binary.LittleEndian.AppendUint32(access.Call(version, callRelease, d.token), uint32(len(told)))
	d.mu.Unlock()
	if len(told) == 0 {
		return nil
	}
	if _, err := d.call(append(message, list...)); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.released, func(name hazard.Region, serial uint64) bool { return told[name] == serial })
	return nil
}

// shut implements entrance.
func (d *distant) shut(from *imported) *errs.Error {
	from.held.mu.Lock()
	defer from.held.mu.Unlock()
	if from.held.replaced {
		return d.t.replaced()
	}
	return d.t.closedByOwner()
}

// explain implements entrance.
func (d *distant) explain() string {
	return fmt.Sprintf("%d regions are mapped over NVLink", d.imports.table.Len())
}
