package tests

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

const mostTransports = 32 // segment.TransportsMax

// many makes n simulated transports of one network.
func many(network *sim.Network, n int) (names []string, plugs func() []engine.Plug) {
	for i := range n {
		names = append(names, fmt.Sprintf("way%02d", i))
	}
	return names, func() (list []engine.Plug) {
		for _, name := range names {
			list = append(list, engine.Plug{Factory: sim.Factory{Settings: sim.Settings{Network: network, Name: name}}})
		}
		return list
	}
}

func TestEveryOneOfTheMostTransportsCarriesBytes(t *testing.T) {
	names, plugs := many(sim.NewInline(1), mostTransports)
	list := config.WithRails(names...)
	for i := range list {
		list[i].Number = uint8(64 + i) // of hints
	}
	a, b := openWith(t, nil, list, plugs()), openWith(t, nil, list, plugs())
	const size = 64 << 10
	source, target := newGuarded(t, size*len(names)), newGuarded(t, size*len(names))
	fill(source.bytes, 1)
	offer(t, a, source.bytes, "")
	offer(t, b, target.bytes, "kv")
	peer := segment(t, a, b, "kv")
	info, err := a.Segment(t.Context(), peer, false)
	require.NoError(t, err)
	require.Len(t, info.Regions[0].Descriptors, mostTransports)
	for i, name := range names {
		id, err := a.Move(&engine.Request{Terms: engine.Terms{Op: transport.Write, Hint: a.Config().NumberOf(name)},
			Source: address(source.bytes) + uintptr(i*size), Length: size,
			Remote: engine.Remote{Segment: peer, Offset: uint64(i * size)}})
		require.NoError(t, err, name)
		sum := ended(t, a, id)
		require.Equal(t, dispatch.Completed, sum.State, "%v", sum.Err)
		require.EqualValues(t, 1<<i, sum.Transports, "%s has a bit of its own", name)
	}
	same(t, target.bytes, 1, 0)
	target.check(t)
}

func TestMoreTransportsThanTheTablesHoldAreRefused(t *testing.T) {
	names, plugs := many(sim.NewInline(1), mostTransports+1)
	c, err := config.Load(config.Options{Transports: table(names)})
	require.NoError(t, err)
	_, err = engine.Open(t.Context(), engine.Options{Config: c, Transports: plugs()})
	require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "33 transports")
}
