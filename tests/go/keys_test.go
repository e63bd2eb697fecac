package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

// Memory that two of three rails have taken moves over these two. The explanation says so, and no rail loses its
// health, whether the transport told or its rails refused.
func TestMemoryThatSomeRailsTookMovesOverThem(t *testing.T) {
	for _, untold := range []bool{false, true} {
		n := sim.NewInline(1)
		plug := func() []engine.Plug {
			return []engine.Plug{{Factory: sim.Factory{Settings: sim.Settings{Network: n, Rails: 3, Untold: untold,
				SliceMax: 64 << 10, Reaches: func(_ *mem.Region, rail int) bool { return rail != 1 }}}}}
		}
		here, there := open(t, nil, []string{"sim"}, plug), open(t, nil, []string{"sim"}, plug)
		source, destination := memory(t, 1<<20), newGuarded(t, 1<<20)
		fill(source, 7)
		offer(t, here, source, "")
		offer(t, there, destination.bytes, "kv")
		request := engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(source), Length: 1 << 20,
			Remote: engine.Remote{Segment: segment(t, here, there, "kv")}}
		for range 3 {
			id, err := here.Move(&request)
			require.NoError(t, err)
			sum := ended(t, here, id)
			require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
		}
		same(t, destination.bytes, 7, 0)
		destination.check(t)
		x, err := here.Explain(&request)
		require.NoError(t, err)
		require.Len(t, x.Routes[0].Rails, 3)
		for _, rail := range x.Routes[0].Rails {
			require.Contains(t, rail, ": up")
		}
		require.Contains(t, x.Routes[0].State, "health 1000")
		require.NotContains(t, x.Routes[0].State, "recent failures")
		if untold {
			require.Empty(t, x.Routes[0].Keys)
		} else {
			require.Contains(t, x.Routes[0].Keys, "this memory can be used on rails 0, 2 alone: ")
		}
	}
}

// Memory that no rail took is not offered that transport at all, with the reason.
func TestMemoryThatNoRailTookIsARejectedRoute(t *testing.T) {
	n := sim.NewInline(1)
	plug := func() []engine.Plug {
		none := func(*mem.Region, int) bool { return false }
		fast := sim.Settings{Network: n, Name: "fast", Rails: 2, Reaches: none}
		return []engine.Plug{{Factory: sim.Factory{Settings: fast}},
			{Factory: sim.Factory{Settings: sim.Settings{Network: n, Name: "slow"}}}}
	}
	built := []string{"fast", "slow"}
	here, there := open(t, nil, built, plug), open(t, nil, built, plug)
	own, theirs := memory(t, 4096), memory(t, 4096)
	offer(t, here, own, "")
	offer(t, there, theirs, "kv")
	x, err := here.Explain(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Length: 4096,
		Remote: engine.Remote{Segment: segment(t, here, there, "kv")}})
	require.NoError(t, err)
	require.Equal(t, "slow", x.Taken)
	require.Len(t, x.Rejected, 1)
	require.Equal(t, "fast", x.Rejected[0].Transport)
	require.Contains(t, x.Rejected[0].Reason, "no rail can use both regions")
}
