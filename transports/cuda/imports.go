package cuda

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
)

// importLimit bounds an Import: a call of the owner, and a descriptor of each chunk.
const importLimit = time.Second

// imported is a peer's region on a link. It is immutable but for over; its mapping opens for devices by itself.
type imported struct {
	name    hazard.Region
	size    uint64
	reads   bool         // we may
	writes  bool         // we may
	ordinal int          // of the device here that has it or is nearest to it, -1 for memory of the host
	pinned  *atomic.Bool // that of the owner's region, of the host and in our own process; nil for others

	base    uintptr         // of a peer in our own process
	plain   bool            // of one, too: see driver.Plain; with the setting copy_kernel
	mapping *driver.Mapping // of one in another; nil for one in our own
	held    *holding        // of one on another host

	over bool // closeTaken has tried to take its mapping down; guarded by imports.mu
}

// imports are the regions of a link.
type imports struct {
	table kit.Slots[transport.RemoteKey, imported]

	down takedown

	mu     sync.Mutex // of Import: one question at a time
	opened bool       // the greeting was successful, and the link has not ended
}

func (i *imports) open() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.opened = true
}

// close takes all mappings down. No slice is carried any more, and no region is imported afterwards.
func (i *imports) close(t *copier) {
	i.mu.Lock()
	i.opened = false
	for key := range i.table.All() {
		r := i.table.Delete(key)
		i.down.add(func() { r.close(t) })
	}
	i.mu.Unlock()
	i.down.wait()
}

func (r *imported) close(t *copier) {
	if r.mapping != nil {
		if err := r.mapping.Close(); err != nil {
			t.host.Log().Warn("memory of a peer's device stays mapped", "err", err)
			return // the owner must not believe otherwise
		}
	}
	if r.held != nil {
		r.held.way.drop(r)
	}
}

// Import makes a peer's region usable. It waits for the greeting to end, at most its limit, and asks the owner for the
// blocks of a region in another process.
func (t *copier) Import(number transport.Link, d transport.Descriptor) (transport.RemoteKey, error) {
	op := t.op("import")
	l := t.links.Lookup(number)
	if l == nil {
		return 0, kit.StaleLink(op, number)
	}
	find, e := l.way.read(d)
	if e != nil {
		return 0, e.WithPeer(l.Peer.Address, t.name, "")
	}
	ctx, cancel := context.WithTimeout(context.Background(), importLimit)
	defer cancel()
	select {
	case <-l.Greeted():
	case <-time.After(access.GreetLimit):
	}
	if cause := l.Gone(); cause != nil {
		return 0, cause
	}
	l.imports.mu.Lock()
	defer l.imports.mu.Unlock()
	if !l.imports.opened {
		return 0, errs.New(errs.PeerUnreachable, op, "the peer has not answered our greeting yet").
			WithScope(errs.ScopeLink, errs.SidePath).WithPeer(l.Peer.Address, t.name, "")
	}
	r, err := find(ctx)
	if err != nil {
		return 0, errs.From(op, err).WithPeer(l.Peer.Address, t.name, "")
	}
	return l.imports.table.Insert(func(transport.RemoteKey) *imported { return r }), nil
}

// Match opens a peer's memory for the device that will copy. It is asked when a plan is made, and the next time it
// costs a look: errs.NotHere where there is no way, or a device is lost.
func (t *copier) Match(number transport.Link, local transport.LocalKey, remote transport.RemoteKey) (transport.Match,
	error) {
	l, mine := t.links.Lookup(number), t.regions.Lookup(local)
	if l == nil || mine == nil {
		return transport.Match{}, nil // the next slice says so
	}
	r := l.imports.table.Lookup(remote)
	if r == nil {
		return transport.Match{}, nil
	}
	if cause := lostBetween(mine, r); cause != nil {
		return transport.Match{}, t.noWay(cause)
	}
	if r.held != nil && mine.ordinal >= 0 {
		if why := r.held.way.owner.outside(mine.ordinal, r.held.domain); why != nil {
			return transport.Match{}, t.noWay(why)
		}
	}
	if err := r.reached(mine); err != nil && errs.CodeOf(err) != errs.AddressNotRegistered {
		return transport.Match{}, t.noWay(err)
	} // of a mapping that was taken down the next slice says why
	return longest(mine, r), nil
}

// reached opens a region for the device that copies between it and one of ours. Memory of this process needs peer
// access in both directions, as the source's device copies.
func (r *imported) reached(mine *region) (err error) {
	switch {
	case r.mapping != nil:
		_, err = r.mapping.On(r.copier(mine))
	case mine.ordinal >= 0 && r.ordinal >= 0:
		err = driver.Join(mine.ordinal, r.ordinal)
	}
	return err
}

// noWay is the refusal of Match by an error of the driver.
func (t *copier) noWay(err error) error {
	e := *errs.From(t.op("match"), err)
	e.Code = errs.NotHere
	return (&e).WithScope(errs.ScopeRail, errs.SidePath)
}

// copier is the device that copies between the region in another process and one of ours.
func (r *imported) copier(mine *region) int {
	if mine.ordinal >= 0 {
		return mine.ordinal
	}
	return r.ordinal
}

// Forget closes an import. No accepted slice names it any more.
func (t *copier) Forget(number transport.Link, key transport.RemoteKey) {
	l := t.links.Lookup(number)
	if l == nil {
		return
	}
	if r := l.imports.table.Delete(key); r != nil {
		l.imports.down.soon(func() { r.close(t) })
	}
}
