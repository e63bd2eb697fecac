package tests

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

// refusing is a factory of links that never come up, for a reason.
type refusing struct {
	sim.Factory
	cause *errs.Error
}

func (f refusing) Open(ctx context.Context, config any, host transport.Host, sink transport.Sink) (transport.Transport,
	error) {
	return f.Factory.Open(ctx, config, host, refused{sink, f.cause})
}

type refused struct {
	transport.Sink
	cause *errs.Error
}

func (s refused) RailUp(info transport.RailInfo) { s.LinkDown(info.Rail.Link, s.cause) }

func explained(t *testing.T, first func(transport.Factory) transport.Factory,
	after func(*sim.Network)) *engine.Explanation {
	n := sim.NewInline(1)
	plug := func() []engine.Plug {
		near := sim.Factory{Settings: sim.Settings{Network: n, Name: "near", SameHost: true}}
		far := sim.Factory{Settings: sim.Settings{Network: n, Name: "far"}}
		return []engine.Plug{{Factory: first(near)}, {Factory: far}}
	}
	built := []string{"near", "far"}
	here, there := open(t, nil, built, plug), open(t, nil, built, plug)
	own, theirs := memory(t, 4096), memory(t, 4096)
	offer(t, here, own, "")
	offer(t, there, theirs, "kv")
	at := engine.Remote{Segment: segment(t, here, there, "kv")}
	after(n)
	id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Length: 4096,
		Remote: at})
	require.NoError(t, err)
	sum := ended(t, here, id)
	require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
	x, err := here.Explain(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Remote: at,
		Length: 4096})
	require.NoError(t, err)
	for i, name := range built {
		if sum.Transports == 1<<i {
			require.Equal(t, name, x.Taken, "what is told is what was done")
		}
	}
	return x
}

func TestExplainTellsWhichRouteIsTakenAndWhyNotTheOthers(t *testing.T) {
	plain := func(f transport.Factory) transport.Factory { return f }
	x := explained(t, plain, func(*sim.Network) {})
	require.Equal(t, "near", x.Taken)
	require.Len(t, x.Routes, 2)
	require.Empty(t, x.Routes[0].Why)
	require.Equal(t, "near is preferred and can be used", x.Routes[1].Why)
	require.Contains(t, x.Routes[0].Detail, "up")

	near := sim.Anywhere
	near.Transport = "near"
	x = explained(t, plain, func(n *sim.Network) { n.Down(near) })
	require.Equal(t, "far", x.Taken)
	require.Len(t, x.Routes, 2, "it may come back")
	require.NotEmpty(t, x.Routes[0].Why)
	require.Empty(t, x.Routes[1].Why)

	cause := errs.New(errs.PermissionDenied, "near", "the peer belongs to another user").
		WithScope(errs.ScopeLink, errs.SideLocal)
	x = explained(t, func(f transport.Factory) transport.Factory { return refusing{f.(sim.Factory), cause} },
		func(*sim.Network) {})
	require.Equal(t, "far", x.Taken)
	require.Len(t, x.Routes, 1)
	require.Len(t, x.Rejected, 1)
	require.Equal(t, "near", x.Rejected[0].Transport)
	require.Contains(t, x.Rejected[0].Reason, "the peer belongs to another user")
}
