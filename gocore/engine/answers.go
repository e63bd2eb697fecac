package engine

import (
	"context"
	"sync"

	"github.com/tent-engine/tent/gocore/control"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/segment"
	"github.com/tent-engine/tent/gocore/transport"
)

// answers is the engine as peers reach it over the control plane.
type answers Engine

var _ control.Handler = (*answers)(nil)

// Describe implements control.Handler.
func (a *answers) Describe(context.Context, transport.Peer) (*segment.Description, error) {
	return a.offered.at((*Engine)(a)), nil
}

// offered keeps the description for peers, made once an epoch: with thousands of regions it takes milliseconds.
type offered struct {
	mu          sync.Mutex
	description *segment.Description
}

func (o *offered) at(e *Engine) *segment.Description {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.description == nil || o.description.Epoch != e.regions.epoch.Load()+1 {
		o.description = e.description(false)
	}
	return o.description
}

// Serve implements control.Handler.
func (a *answers) Serve(ctx context.Context, from transport.Peer, name string, message []byte) ([]byte, error) {
	for _, p := range a.ports {
		if p.name == name && p.transport != nil {
			from.Self = false // our own calls do not come this way; see port.Call
			return p.transport.Serve(ctx, from, message)
		}
	}
	return nil, errs.New(errs.NotImplemented, "serve", "transport %q is not open here", name).
		WithScope(errs.ScopeTransport, errs.SideLocal)
}

// Notified implements control.Handler. Messages carry their own numbers.
func (a *answers) Notified(_ context.Context, from transport.Peer, _ uint64, message []byte) error {
	return (*Engine)(a).takeNotes(planeControl, from, message)
}
