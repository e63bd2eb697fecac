package cuda

import (
	"fmt"
	"slices"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
	"github.com/tent-engine/tent/transports/kit"
)

// link is an attached peer: we are the initiator. Its one rail is up while its greeting holds.
type link struct {
	access.Link // its life, and Live: the generation that is up

	t       *cuda
	imports imports

	// Set before the rail first comes up, constant afterwards.
	access *access.Access
	view   *hazard.View
	here   bool // the peer is in our process: its addresses are ours
}

// up is access.Link.Up; a stale link, nil, has no rail.
func (l *link) up(r transport.Rail) bool { return l != nil && l.Up(r) }

// Attach starts a link. The greeting goes over the control plane, by a goroutine of the link.
func (t *cuda) Attach(peer transport.Peer) (transport.Link, error) {
	if t.Trust != nil && !t.own(peer) {
		return 0, t.Refusal("%v here", t.Trust)
	}
	l := &link{t: t}
	var err error
	open := t.life.Begin(func() {
		build := func(number transport.Link) *link { l.Number = number; return l }
		if _, err = t.links.Attach("nvlink.attach", build); err == nil {
			l.Start(t.Point, peer, l)
		}
	})
	if !open {
		return 0, kit.Closed("nvlink.attach")
	}
	return l.Number, err
}

// Met implements access.Traffic.
func (l *link) Met(a *access.Access) {
	l.access, l.view = a, a.View
	l.here = a.PID == l.t.Me.PID && !l.t.settings.apart
	l.imports.open()
}

// Rail implements access.Traffic.
func (l *link) Rail() transport.RailInfo {
	return transport.RailInfo{Node: -1, Bandwidth: 50e9, BytesMax: 64 << 20, SlicesMax: slicesMax}
}

// Abandon implements access.Traffic.
func (l *link) Abandon(cause *errs.Error) {
	l.t.Drop(cause, func(_ *transport.Slice, of *link) bool { return of == l })
}

// Tick implements access.Traffic: nothing has to be done while the rail is up.
func (l *link) Tick() {}

// End implements access.Traffic.
func (l *link) End() {
	l.t.Evict(refused(errs.Lost), func(_ *transport.Slice, of *link) bool { return of == l })
	l.imports.close(l.t)
}

// Detach ends a link. Waiting slices complete at once, those that are being copied by themselves; then the link's
// goroutine closes its mappings.
func (t *cuda) Detach(number transport.Link) {
	if l := t.links.Detach(number); l != nil {
		l.Leave()
	}
}

// Stale implements transport.Transport.
func (t *cuda) Stale() uint64 { return t.links.Stale() }

// Epoch implements transport.EpochReader: the peer leaves it in our page.
func (t *cuda) Epoch(number transport.Link) transport.Epoch {
	l := t.links.Lookup(number)
	if l == nil || l.Live.Load() == 0 { // it is set behind view
		return 0
	}
	return transport.Epoch(l.view.Epoch())
}

// Explain returns how the peer's memory is reached, or why not.
func (t *cuda) Explain(number transport.Link) string {
	l := t.links.Lookup(number)
	switch {
	case l == nil:
		return fmt.Sprintf("nvlink: link %v has ended", number)
	case l.Gone() != nil:
		return "nvlink: down: " + l.Gone().Error()
	case l.Live.Load() == 0:
		return "nvlink: the peer has not answered our greeting yet"
	case l.here:
		return "nvlink: the peer is in our own process" + t.unpinned()
	}
	return fmt.Sprintf("nvlink: %d regions are mapped from process %d", l.imports.table.Len(), l.access.PID)
}

// unpinned says why the setting host_register has no effect on some region.
func (t *cuda) unpinned() string {
	if why := t.unkept.Load(); why != nil {
		return "; bytes of a region of the host go through other memory, which is pinned: " + (*why).Error()
	}
	return ""
}

// Submit implements transport.Transport.
func (t *cuda) Submit(list []*transport.Slice) int { return t.Accept(list, t.links.Lookup) }

// Withdraw completes waiting slices; one that is being copied completes by itself.
func (t *cuda) Withdraw(list []*transport.Slice) {
	t.Drop(refused(errs.Withdrawn), func(s *transport.Slice, _ *link) bool { return slices.Contains(list, s) })
}

// Fence ends the rail's generation. The link goes up again in the next one.
func (t *cuda) Fence(rail transport.Rail) {
	if l := t.links.Lookup(rail.Link); l != nil {
		l.Fence(rail, refused(errs.Withdrawn))
	}
}

func refused(code errs.Code) *errs.Error {
	return errs.New(code, Name, "refused, or asked back").WithScope(errs.ScopeSlice, errs.SideUnknown)
}
