package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// peer is another engine in one incarnation, shared by all handles that were opened on it. Another incarnation at the
// same address is another peer.
type peer struct {
	engine   *Engine
	number   uint32 // the core's name of it
	identity transport.Peer
	file     *file // nil: an engine

	regions atomic.Pointer[remoteTable]
	ready   atomic.Bool                // joined: links attached, regions known
	gone    atomic.Pointer[errs.Error] // why no transfer to it is possible any more

	links atomic.Pointer[[]attachment] // by transport; link 0: not attached. Replaced as a whole under mu
	plans atomic.Uint64                // grows when these or keys of its regions change: plans of before are made anew

	epoch   atomic.Uint64                 // the newest of its fences that is known, see fences.go
	readers atomic.Pointer[[]epochReader] // where to look for a newer one

	// mu guards attaching and the keys of remote regions. It comes before the engine's mutex; transports are called
	// under it.
	mu      sync.Mutex
	fetch   describing
	asking  askPace
	handles int // guarded by segmentTable.mu

	borrowed map[mem.RegionID]*borrowed // that it lends us; guarded by mu

	deaf atomic.Int64 // until then the peer is told no reports: it did not take the last ones
}

// newPeer returns the record of a peer without handles and links.
func newPeer(e *Engine, identity transport.Peer) *peer {
	p := &peer{engine: e, identity: identity, fetch: newDescribing()}
	p.links.Store(&[]attachment{})
	return p
}

type attachment struct {
	link transport.Link
	id   plan.LinkID
	why  string // why there is none
}

// remoteTable holds the regions that a peer offers. It is replaced as a whole; remoteRegion objects outlive a refresh.
type remoteTable struct {
	description *segment.Description
	known       bool // descriptors are there; false for a blob that was not used yet
	behind      bool // some are older, as their successors could not be imported: the next question is for all of them
	byID        map[mem.RegionID]*remoteRegion
}

// remoteRegion is one region of a peer, with the plans that were made for it.
type remoteRegion struct {
	*segment.Region
	keys        []transport.RemoteKey // by transport; guarded by peer.mu, as the next two
	descriptors map[string]transport.Descriptor
	refused     map[int]string // by transport: why it does not take this file
	plans       atomic.Pointer[[]plannedFrom]
}

// plannedFrom is a plan from one of our regions; epoch says under which links and keys it was made.
type plannedFrom struct {
	local *region
	want  wanted
	epoch planEpoch
	plan  *plan.Plan
}

// planEpoch counts the changes of links and keys of plans to all peers, and of those to one (decision 0213).
type planEpoch struct{ all, one uint64 }

// wanted has everything that a plan depends on besides the two regions.
type wanted struct {
	request.Choice
	policy int // index of the policy that counts, plan.NoPolicy for none
}

func (w *wanted) is(t *Terms, policy int) bool { return w.policy == policy && w.Of(t) }

// join makes sure that the peer's links are attached and its regions known. It asks the peer only if something is
// missing.
func (p *peer) join(ctx context.Context) error {
	if cause := p.gone.Load(); cause != nil {
		return cause
	}
	if t := p.regions.Load(); t == nil || !t.known {
		if err := p.refresh(ctx); err != nil {
			return err
		}
	}
	p.mu.Lock()
	var owed []func()
	if !p.ready.Load() {
		if err := p.isLeft(); err != nil {
			p.mu.Unlock()
			return err
		}
		owed = p.attach()
		p.ready.Store(true)
	}
	p.mu.Unlock()
	for _, do := range owed {
		do()
	}
	return nil
}

// joinAnew is join for a new handle: it also learns the regions that the peer offers now. Those that are known may be
// of another handle, from long ago.
func (p *peer) joinAnew(ctx context.Context) error {
	came := p.fetch.asked.Load()
	if err := p.join(ctx); err != nil {
		return err
	}
	return p.refreshSince(ctx, came) // it waits for a question that began meanwhile
}

// isLeft returns an error if nobody has the peer open any more: links that are attached now would be nobody's to
// detach. The caller that attaches some holds p.mu, which detach waits for: a peer that is left then loses its links.
func (p *peer) isLeft() error {
	e := p.engine
	if err := e.usable(); err != nil {
		return err
	}
	e.segments.mu.Lock()
	defer e.segments.mu.Unlock()
	if p.handles == 0 {
		return closedSegment()
	}
	return nil
}

// attach starts a link on every transport that could reach the peer. The caller holds p.mu, and runs the returned
// functions after releasing it: they report that the peer is gone, and run the steps that are due.
func (p *peer) attach() (owed []func()) {
	e := p.engine
	links := make([]attachment, len(e.ports))
	for i, port := range e.ports {
		version, why := p.versionOn(port)
		if why != "" {
			links[i].why = why
			continue
		}
		var gone *errs.Error
		if links[i], gone = p.attachTo(port, version); gone != nil {
			owed = append(owed, func() { e.peerGone(p, gone) })
		}
	}
	p.links.Store(&links)
	p.readEpochs(links)
	p.replan()
	return append(owed, e.runSteps)
}

// versionOn returns the version of a transport's protocol for the peer, or why the transport cannot reach it.
func (p *peer) versionOn(port *port) (version uint16, why string) {
	info := &port.info
	switch why = p.misfit(info); {
	case port.transport == nil:
		return 0, port.reason
	case why != "":
		return 0, why
	case info.SameHost && !p.sameHost():
		return 0, "the peer is on another machine"
	case info.OtherHost && (p.sameHost() || p.identity.Self):
		return 0, "the peer is on this machine"
	}
	if err := p.reach(port); err != nil {
		return 0, err.Error()
	}
	return p.speaks(port.name, info)
}

// attachTo starts a link on one transport. It returns the cause if the transport has heard already that the peer is
// gone. The caller holds p.mu.
func (p *peer) attachTo(port *port, version uint16) (_ attachment, gone *errs.Error) {
	e, to := p.engine, p.identity
	to.Version = version
	link, err := port.transport.Attach(to)
	switch {
	case err != nil:
		return attachment{why: err.Error()}, nil
	case !link.Valid(): // its index would be the largest of all, and port.attaches as long
		return attachment{why: fmt.Sprintf("the transport attached the peer without a link (%#x)", uint64(link))}, nil
	}
	e.mu.Lock()
	id := e.core.AddLink(dispatch.LinkSpec{Peer: p.number, Engine: p.id(), PeerName: p.identity.Address,
		Transport: port.index, Link: link, Info: &port.info, SameHost: p.sameHost(), Probes: port.prober != nil})
	e.links.enter(id, port)
	e.unlock() // a step must not run under p.mu: the second look is the caller's, behind it
	if e.stepDue() {
		e.wakeProgress() // it has the first one, since other transports take their time
	}
	return attachment{link: link, id: id}, port.attached(link, id, p)
}

func (p *peer) sameHost() bool { return p.identity.MachineID == p.engine.machine }

// reach returns why a transport can have no rail to the peer, by the addresses on which that listens.
func (p *peer) reach(port *port) error {
	reacher, is := transport.Find[transport.Reacher](port.transport)
	if t := p.regions.Load(); is && t != nil && !p.identity.Self {
		if addresses := t.description.ListensOn(); len(addresses) > 0 {
			return reacher.Reach(p.identity, addresses)
		}
	}
	return nil
}

// unreachable is the error of a peer that no transport can reach: a reason for each, for those that are not open behind
// the others. Nil if one may. A peer that has gone meanwhile has lost its links by that, and the cause is the error.
func (p *peer) unreachable(op string) error {
	e := p.engine
	var reasons, closed []string
	for i, a := range *p.links.Load() {
		port := e.ports[i]
		switch why := port.name + ": " + a.why; {
		case port.info.Delegates: // orders carry no bytes
		case a.id != 0:
			return nil
		case port.transport == nil:
			closed = append(closed, why)
		case p.misfit(&port.info) == "":
			reasons = append(reasons, why)
		}
	}
	if cause := p.gone.Load(); cause != nil {
		return cause
	}
	return errs.New(errs.NoRoute, op, "no transport can carry bytes to this peer: %s",
		strings.Join(append(reasons, closed...), "; ")).
		WithScope(errs.ScopeLink, errs.SidePath).OfPeer(p.identity.Address)
}

// speaks returns the version of a transport's protocol for the peer, or why there is none. Peers name their transports
// by slot: one that was swapped for a test goes by the name of its slot.
func (p *peer) speaks(slot string, info *transport.Info) (version uint16, why string) {
	table := p.regions.Load()
	if table == nil || table.description.Transports == nil {
		return info.Versions.Last, ""
	}
	theirs, has := table.description.Transports[slot]
	if !has {
		return 0, "the peer has it switched off, or cannot use it"
	}
	version, is := info.Versions.Common(theirs)
	if !is {
		return 0, fmt.Sprintf("the peer speaks %v of its protocol, this engine %v", theirs, info.Versions)
	}
	return version, ""
}

// blame ends the peer when an answer shows that its incarnation is over.
func (p *peer) blame(err error) {
	if e := errs.From("peer", err); e.Code == errs.PeerRestarted {
		p.engine.peerGone(p, e)
	}
}

// learn replaces the table by a description. The caller has the turn of p.fetch, or has not shared the peer yet.
func (p *peer) learn(d *segment.Description) {
	if !p.identity.Self {
		p.engine.client.Know(p.identity, d.Others)
	}
	p.hear(d.Fences)
	t := &remoteTable{description: d, byID: make(map[mem.RegionID]*remoteRegion, len(d.Regions))}
	t.known = len(d.Regions) == 0
	var known map[mem.RegionID]*remoteRegion
	if old := p.regions.Load(); old != nil && old.known { // a blob says less, and nobody has used its regions
		known = old.byID
	}
	p.adopt(t, known)
}

// find returns the smallest region of the peer that holds [addr, addr+length), or nil.
func (t *remoteTable) find(addr, length uint64) *remoteRegion {
	if r := t.description.Containing(addr, length); r != nil {
		return t.byID[r.ID]
	}
	return nil
}

// is reports whether a region is meant: by its id, or where that is 0 by an address range inside it. Leases have no
// address.
func (r *remoteRegion) is(id mem.RegionID, addr, length uint64) bool {
	if id != 0 {
		return r.ID == id
	}
	return r.Lease == 0 && addr >= r.Addr && mem.Contains(r.Size, addr-r.Addr, length)
}

// region looks a remote region up by id, or where that is 0 the smallest one that holds an address range. If it is not
// known and asks is true, it asks the peer once, until the deadline at most.
func (p *peer) region(deadline clock.Time, asks bool, id mem.RegionID, addr, length uint64) (*remoteRegion,
	*errs.Error) {
	for try := range 2 {
		if t := p.regions.Load(); t != nil {
			r := t.byID[id] // no region has the id 0
			if id == 0 {
				r = t.find(addr, length)
			}
			if r != nil {
				return r, nil
			}
		}
		if try == 0 && asks {
			if err := p.refreshBy(deadline); err != nil {
				return nil, errs.From("segment", err)
			}
		}
	}
	if id != 0 {
		return nil, errs.New(errs.AddressNotRegistered, "segment", "%s does not offer the region any more",
			p.identity.Address)
	}
	return nil, errs.New(errs.AddressNotRegistered, "segment", "%d bytes at %#x are not inside a region that %s offers",
		length, addr, p.identity.Address)
}

// policyFor returns the index of the policy that counts for a request, plan.NoPolicy for none. Without policies it is a
// comparison.
func (p *peer) policyFor(t *Terms, local *region, remote *remoteRegion, length uint64) (int, *errs.Error) {
	if t.Policy == 0 && p.engine.policies.None() {
		return plan.NoPolicy, nil
	}
	return p.match(t, local, remote, length)
}

func (p *peer) match(t *Terms, local *region, remote *remoteRegion, length uint64) (int, *errs.Error) {
	return p.engine.policies.Match(&plan.Ask{Local: local.Kind, Remote: remote.Kind,
		SameMachine: p.sameHost() || p.isHere(), Length: length,
		Class: t.Class, Intent: uint8(t.Intent), Name: t.Policy})
}

// planFor returns the plan between two regions, made at first use and again when links or keys have changed.
func (p *peer) planFor(local *region, remote *remoteRegion, t *Terms, policy int) (*plan.Plan, *errs.Error) {
	epoch := planEpoch{p.engine.planEpoch.Load(), p.plans.Load()}
	cached := remote.plans.Load()
	if cached != nil {
		for i := range *cached {
			c := &(*cached)[i]
			if c.local == local && c.want.is(t, policy) && c.epoch == epoch {
				return c.plan, nil
			}
		}
	}
	want := wanted{policy: policy}
	want.Set(t)
	hint := p.engine.config.NameOf(want.Hint)
	if hint == "" && want.Hint != 0 {
		return nil, errs.New(errs.InvalidArgument, "submit",
			"transport_hint is %d: it must be the number of a TransportType, or of a plug-in of this engine", want.Hint)
	}
	ends := &plan.Request{Op: want.Op, Region: remote.Name, Hint: hint, Policy: p.engine.policies.Get(want.policy),
		Local:  plan.End{Kind: local.Kind, Location: local.Location, Node: p.engine.numa.nodeOfPlan(local)},
		Remote: plan.End{Kind: remote.Kind, Location: remote.Location}}
	made, err := plan.Build(ends, p.candidates(local, remote, want.Choice))
	made, err = p.staged(made, err, ends, local, remote, want.Choice)
	if err != nil {
		err = p.unplanned(err, local, remote, t, policy)
		return nil, err.WithPeer(p.identity.Address, err.Transport, err.Rail)
	}
	made.Own, made.Home = local.ID, plan.Home{ID: remote.ID, Addr: remote.Addr}
	var next []plannedFrom
	if cached != nil {
		for _, c := range *cached {
			if c.epoch == epoch && c.local.life.state() == regionOpen && len(next) < 64 {
				next = append(next, c)
			}
		}
	}
	next = append(next, plannedFrom{local, want, epoch, made})
	remote.plans.Store(&next) // a lost race costs one more plan
	return made, nil
}

// unplanned is the error of a request without a route, with the term that leaves it none.
func (p *peer) unplanned(err *errs.Error, local *region, remote *remoteRegion, t *Terms, policy int) *errs.Error {
	if err.Code == errs.NoRoute && t.Integrity != request.IntegrityNone {
		unchecked := *t
		unchecked.Integrity = request.IntegrityNone
		if _, failure := p.planFor(local, remote, &unchecked, policy); failure == nil {
			return errs.New(errs.InvalidArgument, "plan", "integrity was asked for, and %s", err.Cause).
				WithHint("leave integrity= out, or let both ends enable a transport that carries checksums: " +
					"transports/<name>/enable")
		}
	}
	if t.Require != 0 {
		return err.WithHint("require= admits none that can: leave it out, or name a transport that is not rejected " +
			"here")
	}
	return err
}

// candidates lists the transports, each with its keys for a plan between two regions.
func (p *peer) candidates(local *region, remote *remoteRegion, want request.Choice) []plan.Candidate {
	e := p.engine
	p.mu.Lock()
	defer p.mu.Unlock()
	links := *p.links.Load() // those that are there stay until p.mu is free
	list := make([]plan.Candidate, 0, len(e.ports))
	for i, port := range e.ports {
		if port.info.Delegates != local.lent {
			continue // orders are for lent memory, and that is for orders
		}
		c := plan.Candidate{Transport: uint8(i), Info: &port.info, Link: links[i].id, Disabled: links[i].why,
			LocalKey: local.key(i), NotHere: local.whyNot(port), SameHost: p.sameHost(), Self: p.identity.Self}
		if descriptor := remote.descriptors[port.name]; c.Link != 0 && len(descriptor) > 0 {
			if why, is := remote.refused[i]; is {
				c.Disabled = why
			} else if remote.keys[i] == 0 {
				key, err := port.transport.Import(links[i].link, descriptor)
				if err != nil {
					c.Disabled = err.Error()
				}
				remote.keys[i] = key
			}
			c.RemoteKey = remote.keys[i]
		}
		port.match(&c, links[i].link)
		if !want.Admits(port.number) {
			c.Disabled = "the request requires others"
		}
		if want.Integrity != request.IntegrityNone && c.Disabled == "" && !port.info.Checksums {
			c.Disabled = "it carries no checksums, and integrity was asked for"
		}
		list = append(list, c)
	}
	return list
}

// match asks on which rails the keys of a candidate work.
func (p *port) match(c *plan.Candidate, link transport.Link) {
	if p.matcher == nil || c.Disabled != "" || c.LocalKey == 0 || c.RemoteKey == 0 {
		return
	}
	var err error
	if c.Match, err = p.matcher.Match(link, c.LocalKey, c.RemoteKey); err != nil {
		c.Disabled = err.Error()
	}
}

// detach gives the peer's links back. Slices outstanding complete first, tasks that wait fail; the core forgets a link
// when nothing of it is left.
func (p *peer) detach(cause *errs.Error) {
	own := *cause // shared with other peers
	cause = own.OfPeer(p.identity.Address)
	p.mu.Lock()
	links := *p.links.Load()
	none := make([]attachment, len(links))
	for i := range none {
		none[i].why = cause.Cause
	}
	p.links.Store(&none)
	p.mu.Unlock()
	e := p.engine
	for i, a := range links {
		if a.id == 0 {
			continue
		}
		e.ports[i].transport.Detach(a.link)
		e.ports[i].detached(a.link)
		e.mu.Lock()
		e.core.DropLink(a.id, cause, clock.Now())
		e.links.leaving = append(e.links.leaving, a.id)
		e.step()
		e.unlockAndDrain()
	}
	p.replan()
	e.runSteps()
}
