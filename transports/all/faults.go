package all

import (
	"context"
	"net"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/faulty"
)

// Faults are injected into one engine's transports and control plane, in the language of transports/faulty. Nil is
// none, and none can come: the transports are then exactly those of their factories.
type Faults struct{ plan *faulty.Plan }

// FaultsOf makes the faults of an engine from its settings: nil unless allow_faults says that there may be some.
func FaultsOf(c *config.Config) (*Faults, error) {
	if !c.Engine.AllowFaults {
		return nil, nil
	}
	plan, err := faulty.New(c.Engine.Faults)
	if err != nil {
		return nil, err
	}
	return &Faults{plan}, nil
}

// Into wraps transports so that the faults reach them.
func (f *Faults) Into(factories []transport.Factory) []transport.Factory {
	if f == nil {
		return factories
	}
	wrapped := make([]transport.Factory, len(factories))
	for i := range factories {
		wrapped[i] = faulty.Wrap(factories[i], f.plan)
	}
	return wrapped
}

// Dial is the way by which the engine's control plane connects; nil stands for the usual one.
func (f *Faults) Dial() func(ctx context.Context, network, address string) (net.Conn, error) {
	if f == nil {
		return nil
	}
	return f.plan.Dial
}

// Stand is a transport of this build that goes by the name of a slot, with the faults for that name. It is the argument
// of engine.SwapTransportForTest.
func (f *Faults) Stand(slot, name string) (transport.Factory, error) {
	if f == nil {
		return nil, f.Apply("")
	}
	for _, factory := range Factories() {
		if factory.Name() == name {
			return faulty.Wrap(standIn{factory, slot}, f.plan), nil
		}
	}
	return nil, errs.New(errs.InvalidArgument, "swap", "there is no transport %q", name)
}

type standIn struct {
	transport.Factory
	name string
}

func (s standIn) Name() string { return s.name }

// Apply adds the faults of a text while the engine runs, or heals. Any goroutine may call it. It is refused where
// faults were not allowed when the engine was opened.
func (f *Faults) Apply(text string) error {
	if f == nil {
		return errs.New(errs.PermissionDenied, "faults", "faults are not allowed in this engine").
			WithHint("open it with allow_faults=True, or set TENT_FAULTS")
	}
	return f.plan.Apply(text)
}

// Struck lists the faults that were injected so far and how often each has struck.
func (f *Faults) Struck() []faulty.Count {
	if f == nil {
		return nil
	}
	return f.plan.Struck()
}

// String returns the faults in force, in the language.
func (f *Faults) String() string {
	if f == nil {
		return ""
	}
	return f.plan.String()
}
