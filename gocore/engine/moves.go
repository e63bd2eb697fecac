package engine

import (
	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

// Request is one READ or WRITE between local memory and a place in a segment.
type Request struct {
	Terms
	Source uintptr
	Remote Remote
	Length uint64
}

// Move starts a transfer of one request and returns its batch.
func (e *Engine) Move(r *Request) (dispatch.BatchID, error) {
	return e.transfer(r.Terms, nil, func(c *Call) error { return c.AddRange(r.Source, r.Remote, r.Length) })
}

// transfer is a call in one: it begins, adds its shape and is committed.
func (e *Engine) transfer(t Terms, n *Note, add func(*Call) error) (dispatch.BatchID, error) {
	c, err := e.Begin(t)
	if err != nil {
		return 0, err
	}
	if err := add(c); err != nil {
		c.Discard()
		return 0, err
	}
	return c.Commit(n)
}

// Submit adds requests to a batch: all of them or none. It returns the index of the first task. n may be nil.
func (e *Engine) Submit(id dispatch.BatchID, requests []Request, n *Note) (int, error) {
	c, err := e.Begin(Terms{})
	if err != nil {
		return 0, err
	}
	for i := range requests {
		r := &requests[i]
		var err *errs.Error
		if !r.Terms.Same(&c.terms) { // neighbours with the same terms are checked once
			c.terms = r.Terms
			err = c.terms.Check()
		}
		if err == nil {
			err = c.add(&c.terms, r.Source, r.Remote, r.Length)
		}
		if err != nil {
			c.Discard()
			return 0, indexed(i, err)
		}
	}
	return c.CommitTo(id, n)
}

// add checks one range and appends its task. The terms are within their ranges.
func (c *Call) add(t *Terms, source uintptr, at Remote, length uint64) *errs.Error {
	if length == 0 {
		return errs.New(errs.InvalidArgument, "submit", "the length is 0").WithHint("leave empty requests out")
	}
	local := c.local
	if !local.holds(source, length) || t.Op == transport.Read && local.ReadOnly {
		var err *errs.Error
		if local, err = c.engine.ownRegion(t.Op, source, length); err != nil {
			return err
		}
	}
	offset, err := c.reach(t, local, at, length, length)
	if err != nil {
		return err
	}
	s := c.task(t)
	s.Local, s.Remote, s.Length = source, offset, length
	return nil
}

// ownRegion returns the smallest open region that holds a range. A READ gets one that may be written, if there is one.
// The error says why none holds it.
func (e *Engine) ownRegion(op transport.Op, source uintptr, length uint64) (*region, *errs.Error) {
	if r := e.regions.findFor(op, source, length); r != nil {
		return r, nil
	}
	if r := e.regions.find(source, length); r != nil {
		return r, nil
	}
	if uint64(source)+length < length {
		return nil, errs.New(errs.InvalidArgument, "submit", "%d bytes at %#x wrap around 2^64", length, source)
	}
	if r := e.regions.find(source, 1); r != nil {
		return nil, errs.New(errs.AddressNotRegistered, "submit",
			"%d bytes at %#x leave the region %s of %d bytes at %#x", length, source, r.label(), r.Size, r.Addr)
	}
	return nil, errs.New(errs.AddressNotRegistered, "submit", "no registered region holds %d bytes at %#x", length,
		source).WithHint("register the buffer first")
}

// reach binds a request of length bytes to its place, which has size bytes, and returns the offset in its region. Where
// no plan leads to an address, it asks the peer once: another region may be there now than the one that was known.
func (c *Call) reach(t *Terms, local *region, at Remote, size, length uint64) (offset uint64, _ *errs.Error) {
	p, remote, offset, err := c.resolve(t.Due(), at, size)
	if err != nil {
		return 0, err
	}
	err = c.bind(t, p, local, remote, length)
	switch {
	case err == nil || err.Code != errs.NoRoute || !c.byAddress:
		return offset, err
	case c.asksNobody && !p.isHere():
		return 0, unasked(at.Segment, t.Due(), err)
	case p.refreshBy(t.Due()) != nil:
		return 0, err
	}
	c.found = nil
	if _, now, offset, failure := c.resolve(t.Due(), at, size); failure == nil && now != remote {
		return offset, c.bind(t, p, local, now, length)
	}
	return 0, err
}

// resolve returns the remote region and the offset in it. It asks a peer that the engine has not spoken to yet, or that
// is not known to offer the region, until the deadline of the request at most.
func (c *Call) resolve(deadline clock.Time, at Remote, length uint64) (*peer, *remoteRegion, uint64, *errs.Error) {
	h, err := c.engine.segments.get(at.Segment)
	if err != nil {
		return nil, nil, 0, err
	}
	p := h.peer
	if cause := p.gone.Load(); cause != nil {
		return nil, nil, 0, cause
	}
	asks := !c.asksNobody || p.isHere()
	if !p.ready.Load() {
		if !asks {
			return nil, nil, 0, unspoken(at.Segment, deadline)
		}
		if err := p.joinBy(deadline); err != nil {
			return nil, nil, 0, errs.From("submit", err)
		}
	}
	id := h.regionOf(at)
	c.byAddress = id == 0 && p.file == nil
	remote := c.found
	if remote == nil || c.foundAt != p || !remote.is(id, at.Offset, length) {
		if remote, err = p.region(deadline, asks, id, at.Offset, length); err != nil && !asks {
			err = unasked(at.Segment, deadline, err)
		}
		if err != nil {
			return nil, nil, 0, err
		}
		c.found, c.foundAt = remote, p
	}
	switch {
	case id == 0:
		return p, remote, at.Offset - remote.Addr, nil
	case mem.Contains(remote.Size, at.Offset, length):
		return p, remote, at.Offset, nil
	}
	remote, offset, err := p.further(remote, at.Offset, length)
	return p, remote, offset, err
}

// bind makes c.plan the plan for a request of length bytes between the two regions, and checks the rights of both.
func (c *Call) bind(t *Terms, p *peer, local *region, remote *remoteRegion, length uint64) *errs.Error {
	if c.local == local && c.remote == remote && c.want.Of(t) && c.durability == t.Durability &&
		t.Policy == 0 && c.plan != nil && c.engine.policies.None() { // as the neighbour before it
		return nil
	}
	policy, err := p.policyFor(t, local, remote, length)
	if err != nil {
		return err
	}
	if c.plan != nil && c.local == local && c.remote == remote && c.want.is(t, policy) && c.durability == t.Durability {
		return nil
	}
	if p.file != nil {
		if err := p.file.admits(p, t); err != nil {
			return err
		}
	}
	if t.Op == transport.Read && local.ReadOnly {
		return errs.New(errs.PermissionDenied, "submit", "a READ would write to the read-only buffer of region %s",
			local.label())
	}
	if err := p.permits(t, remote); err != nil {
		return err
	}
	made, err := p.planFor(local, remote, t, policy)
	if err != nil {
		return err
	}
	c.local, c.remote, c.plan, c.peer = local, remote, made, p
	c.want.Set(t)
	c.want.policy, c.durability = policy, t.Durability
	for _, r := range c.uses {
		if r == local {
			return nil
		}
	}
	c.uses = append(c.uses, local)
	return nil
}

// permits returns an error if the peer does not give the rights that a request needs.
func (p *peer) permits(t *Terms, remote *remoteRegion) *errs.Error {
	if remote.ReadOnly && t.Op == transport.Write {
		return errs.New(errs.PermissionDenied, "submit", "a WRITE would write to the read-only buffer of the remote "+
			"region %q", remote.Name).OfPeer(p.identity.Address)
	}
	if !p.identity.Self && !remote.Permission.Allows(t.Op == transport.Write) {
		return errs.New(errs.PermissionDenied, "submit",
			"%s of the remote region %q is not allowed: its permission is %s",
			t.Op, remote.Name, remote.Permission).OfPeer(p.identity.Address)
	}
	return nil
}
