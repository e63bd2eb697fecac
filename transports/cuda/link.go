package cuda

import (
	"context"
	"fmt"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
)

// link is an attached peer: we are the initiator. Its one rail is up while its greeting holds.
type link struct {
	*kit.OneRail // its life, which the way has

	number  transport.Link
	t       *copier
	way     entrance
	imports imports

	// view is the gate to the peer's regions: copies enter by it, and a region that is taken back waits for them. It is
	// set before the rail first comes up, and constant afterwards.
	view *hazard.View
}

// entrance is how a link gets into its peer's memory.
type entrance interface {
	// read checks a descriptor. find asks the owner for the region's blocks, and maps them; it is called while the
	// link is up, one at a time.
	read(d transport.Descriptor) (find func(context.Context) (*imported, error), err *errs.Error)
	// shut is the error of a slice to a region without a permit.
	shut(from *imported) *errs.Error
	// explain says how the peer's memory is reached.
	explain() string
}

// up reports whether a rail is up in just this generation; a stale link, nil, has none.
func (l *link) up(r transport.Rail) bool { return l != nil && l.Up(r) }

// Abandon implements kit.Traffic.
func (l *link) Abandon(cause *errs.Error) {
	l.t.Drop(cause, func(s *transport.Slice, of *link) bool { return of == l && l.Over(s) })
}

// End implements kit.Traffic.
func (l *link) End() {
	l.t.Evict(l.t.refused(errs.Lost), func(_ *transport.Slice, of *link) bool { return of == l })
	l.imports.close(l.t)
}

// Rail implements kit.Traffic.
func (l *link) Rail() transport.RailInfo {
	return transport.RailInfo{Node: -1, Bandwidth: 50e9, Varied: true, BytesMax: windowBytes, SlicesMax: slicesMax}
}

// Explain returns how the peer's memory is reached, or why not.
func (t *copier) Explain(number transport.Link) string {
	l := t.links.Lookup(number)
	switch {
	case l == nil:
		return fmt.Sprintf("%s: link %v has ended", t.name, number)
	case l.Gone() != nil:
		return t.name + ": down: " + l.Gone().Error()
	case l.Live.Load() == 0:
		return t.name + ": the peer has not answered our greeting yet"
	}
	return t.name + ": " + l.way.explain() + t.unpinned() + t.unprepared()
}

// revoked is the error of a slice that its region's owner has cut off.
func (l *link) revoked(from *imported) *errs.Error {
	switch {
	case l.Gone() != nil:
		return l.Gone()
	case l.view.Permit(from.name) != 0: // its task began before the last fence
		return transport.Fenced(l.t.name)
	}
	return l.way.shut(from)
}

// closedByOwner is the error of a slice to a region that is not its owner's to offer any more.
func (t *copier) closedByOwner() *errs.Error {
	return errs.New(errs.AddressNotRegistered, t.name, "the region was closed or fenced by its owner").
		WithScope(errs.ScopeSlice, errs.SideRemote)
}
