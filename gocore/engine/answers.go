package engine

import (
	"context"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
)

// answers is the engine as peers reach it over the control plane.
type answers Engine

var _ control.Handler = (*answers)(nil)

// Describe implements control.Handler.
func (a *answers) Describe(_ context.Context, from transport.Peer, known uint64, update bool) (*control.Offer, error) {
	e := (*Engine)(a)
	e.changes.listens(from, e.describedEpoch()) // read before the offer: a change meanwhile is told
	return e.offerTo(from.Names(), known, update), nil
}

// Changed implements control.Handler.
func (a *answers) Changed(from transport.Peer, epoch uint64) { (*Engine)(a).changed(from.ID, epoch) }

// Serve implements control.Handler.
func (a *answers) Serve(ctx context.Context, from transport.Peer, name string, message []byte) ([]byte, error) {
	if p := (*Engine)(a).portNamed(name); p != nil && p.transport != nil {
		from.Self = false // our own calls do not come this way; see port.Call
		return p.transport.Serve(ctx, from, message)
	}
	return nil, errs.New(errs.NotImplemented, "serve", "transport %q is not open here", name).
		WithScope(errs.ScopeTransport, errs.SideLocal)
}

// Notified implements control.Handler. Messages carry their own numbers.
func (a *answers) Notified(_ context.Context, from transport.Peer, _ uint64, message []byte) error {
	return (*Engine)(a).takeNotes(planeControl, from, message)
}

// Reported implements control.Handler.
func (a *answers) Reported(from transport.Peer, list []control.Traced) {
	(*Engine)(a).reported(from, list)
}
