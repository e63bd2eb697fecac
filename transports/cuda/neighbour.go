package cuda

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/host/access"
)

// neighbour is nvlink's entrance: the peer is a process of this host, or our own.
type neighbour struct {
	*link

	life   access.Link
	owner  *nvlink
	access *access.Access // set before the rail first comes up, constant afterwards
	here   bool           // the peer is in our process: its addresses are ours
	seen   uint64         // turn of the owner's list at which no mapping of ours was taken back; guarded by imports.mu
}

// Attach starts a link. The greeting goes over the control plane, by a goroutine of the link.
func (t *nvlink) Attach(peer transport.Peer) (transport.Link, error) {
	if t.Trust != nil && !t.own(peer) {
		return 0, t.Refusal("%v here", t.Trust)
	}
	return t.attach(func(l *link) {
		n := &neighbour{link: l, owner: t}
		l.OneRail, l.way = &n.life.OneRail, n
		n.life.Number = l.number
		n.life.Start(t.Point, peer, n)
	})
}

// Met implements access.Traffic.
func (n *neighbour) Met(a *access.Access) {
	n.access, n.view = a, a.View
	n.here = a.PID == n.owner.Me.PID && !n.owner.settings.apart
	n.seen = 0 // of another list
	n.imports.open()
}

// Tick implements access.Traffic. An owner that has freed memory of a device gets it when nobody maps it any more.
func (n *neighbour) Tick() {
	n.imports.mu.Lock()
	defer n.imports.mu.Unlock()
	n.seen = 0
	n.closeTakenLocked()
}

// closeTakenLocked takes mappings down that their owner has taken back. A region without a permit may be under a fence
// while it is listed; one that is not, or has another name now, gets none any more. A copy of ours that is inside still
// keeps the mapping until the next look. There is none while the owner has taken nothing back: a peer that imports
// thousands of regions would look at all of them for each.
func (n *neighbour) closeTakenLocked() {
	turn := n.access.Offers.Turn()
	if turn != 0 && turn == n.seen {
		return
	}
	n.seen = turn
	var taken []*imported
	for _, r := range n.imports.table.All() {
		if r.mapping == nil || r.over {
			continue
		}
		d, listed := n.access.Offers.Find(r.name.Index, r.name.Generation)
		switch {
		case listed && !d.Named:
		case n.view.Permit(r.name) == 0 && !n.view.Inside(r.name): // in this order: nobody enters without a permit
			r.over = true
			taken = append(taken, r)
		default:
			n.seen = 0 // not yet
		}
	}
	if len(taken) > 0 {
		n.imports.down.soon(func() {
			for _, r := range taken {
				r.close(n.t)
			}
		})
	}
}

// read implements entrance.
func (n *neighbour) read(d transport.Descriptor) (find func(context.Context) (*imported, error), err *errs.Error) {
	told, err := readDescriptor(d, n.Peer.ID)
	return func(ctx context.Context) (*imported, error) { return n.resolve(ctx, told) }, err
}

// resolve finds the way to a region that the peer's manifest lists. The driver opens no memory while other memory of
// before, at the same addresses of its owner, is mapped.
func (n *neighbour) resolve(ctx context.Context, told named) (*imported, error) {
	n.closeTakenLocked()
	d, listed := n.access.Offers.Find(told.name.Index, told.name.Generation)
	switch {
	case !listed:
		return nil, errs.New(errs.AddressNotRegistered, "nvlink.import",
			"its owner does not list the region (any more)").
			WithScope(errs.ScopeSlice, errs.SideRemote)
	case d.Named:
		return nil, n.t.replaced()
	case d.Allows == mem.LocalReadWrite && !n.Peer.Self:
		return nil, errs.New(errs.PermissionDenied, "nvlink.import", "its owner offers the region to nobody").
			WithScope(errs.ScopeSlice, errs.SideRemote)
	}
	r := &imported{name: told.name, size: d.Size, ordinal: told.ordinal,
		reads:  n.Peer.Self || d.Allows.Allows(false),
		writes: (n.Peer.Self || d.Allows.Allows(true)) && !d.Fixed}
	switch {
	case n.here:
		r.base = uintptr(d.Addr)
		r.plain = n.t.CopyKernel && r.ordinal >= 0 && driver.Plain(r.base, r.size)
		if there, is := hosts.Load(home{n.Peer.ID, told.name}); is && n.t.HostRegister {
			r.pinned = there.(*atomic.Bool)
		}
		return r, nil
	case told.ordinal < 0:
		return nil, errs.New(errs.NotHere, "nvlink.import", "memory of the host in another process cannot be mapped")
	}
	var err error
	r.mapping, r.ordinal, err = n.ask(ctx, told.name, uintptr(d.Addr), d.Size)
	return r, err
}

// shut implements entrance: an entry that is Named was given another name by Remap.
func (n *neighbour) shut(from *imported) *errs.Error {
	if d, listed := n.access.Offers.Find(from.name.Index, from.name.Generation); listed && d.Named {
		return n.t.replaced()
	}
	return n.t.closedByOwner()
}

// explain implements entrance.
func (n *neighbour) explain() string {
	if n.here {
		return "the peer is in our own process"
	}
	return fmt.Sprintf("%d regions are mapped from process %d", n.imports.table.Len(), n.access.PID)
}
