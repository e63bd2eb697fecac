package tests

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/faulty"
	"github.com/tent-engine/tent/transports/sim"
	"github.com/tent-engine/tent/transports/tcp"
)

// swap puts a transport of the simulated network, with the faults of a plan, into the slot of shm. It is the way of the
// failover seed's end-to-end suite, with the engine's own choice of routes above it.
func swap(t *testing.T, e *engine.Engine, n *sim.Network, plan *faulty.Plan) {
	t.Helper()
	factory := faulty.Wrap(sim.Factory{Settings: sim.Settings{Network: n}}, plan)
	require.NoError(t, e.SwapTransportForTest(context.Background(), "shm", engine.Plug{Factory: factory}))
}

func TestASwappedTransportFailsOverToTheNext(t *testing.T) {
	here, there, n := openAll(t, nil), openAll(t, nil), sim.NewInline(1)
	plan, err := faulty.New("")
	require.NoError(t, err)
	swap(t, here, n, plan)
	swap(t, there, n, nil)
	own, theirs := memory(t, 1<<20), memory(t, 1<<20)
	offer(t, here, own, "")
	offer(t, there, theirs, "kv")
	at := segment(t, here, there, "kv")
	move := func(tag int) dispatch.Summary {
		fill(own, tag)
		id, err := here.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own),
			Length: 1 << 20,
			Remote: engine.Remote{Segment: at}})
		require.NoError(t, err)
		sum := ended(t, here, id)
		require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
		require.Equal(t, own, theirs)
		return sum
	}
	require.Zero(t, move(1).Failovers, "the swapped one is the first route")
	require.NoError(t, plan.Apply("status_corrupt_rate=1"))
	require.Equal(t, 1, int(move(2).Failovers), "tcp takes over")
	require.NoError(t, plan.Apply("heal"))
	require.Zero(t, move(3).Failovers)
}

func TestTransportsAreSwappedInFreshEnginesOnly(t *testing.T) {
	e := openAll(t, nil)
	plug := engine.Plug{Factory: tcp.Factory{}, Settings: tcp.Settings{}}
	err := e.SwapTransportForTest(context.Background(), "smh", plug)
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err))
	plan, err := faulty.New("fail_install")
	require.NoError(t, err)
	err = e.SwapTransportForTest(context.Background(), "shm", engine.Plug{Factory: faulty.Wrap(sim.Factory{}, plan)})
	require.ErrorContains(t, err, "fail_install")
	exchangeWithSelf(t, e)
	err = e.SwapTransportForTest(context.Background(), "tcp", plug)
	require.ErrorContains(t, err, "in use already")
}

// exchangeWithSelf moves bytes inside one engine: if one slot is empty, the others work.
func exchangeWithSelf(t *testing.T, e *engine.Engine) {
	t.Helper()
	own, theirs := memory(t, 4096), memory(t, 4096)
	offer(t, e, own, "")
	offer(t, e, theirs, "kv")
	fill(own, 4)
	id, err := e.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Length: 4096,
		Remote: engine.Remote{Segment: engine.Local, Offset: uint64(address(theirs))}})
	require.NoError(t, err)
	require.Equal(t, dispatch.Completed, ended(t, e, id).State)
	require.Equal(t, own, theirs)
}
