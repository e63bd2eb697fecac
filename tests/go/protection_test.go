package tests

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/transports/sim"
)

// cards are plugs of two transports that stand in for those of their names. The first goes between hosts and has no
// protection, the second stays within one.
func cards(n *sim.Network) []engine.Plug {
	return []engine.Plug{{Factory: sim.Factory{Settings: sim.Settings{Network: n, Name: "rdma"}}},
		{Factory: sim.Factory{Settings: sim.Settings{Network: n, Name: "shm", SameHost: true}}}}
}

// Where security/data demands protection, a transport between hosts without it is not used, and says why. Within a host
// nothing is demanded.
func TestATransportWithoutProtectionIsNotUsed(t *testing.T) {
	for _, data := range []string{"auth", "sign", "encrypt"} {
		for name, except := range map[string][]any{"demanded": nil, "permitted": {"rdma"}} {
			t.Run(data+" "+name, func(t *testing.T) {
				n := sim.NewInline(1)
				settings := func() map[string]any {
					return map[string]any{"security/data": data, "security/data_except": except}
				}
				plugs := func() []engine.Plug { return cards(n) }
				here := open(t, settings(), []string{"rdma", "shm"}, plugs)
				there := open(t, settings(), []string{"rdma", "shm"}, plugs)
				own, theirs := memory(t, 4096), memory(t, 4096)
				offer(t, here, own, "")
				offer(t, there, theirs, "kv")
				r := &engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: address(own), Length: 4096,
					Remote: engine.Remote{Segment: segment(t, here, there, "kv")}}
				x, err := here.Explain(r)
				require.NoError(t, err)
				if data == "auth" || except != nil {
					require.Equal(t, "rdma", x.Taken)
					return
				}
				require.Equal(t, "shm", x.Taken)
				require.Len(t, x.Rejected, 1)
				require.Contains(t, x.Rejected[0].Reason, "security/data is "+data)
				require.Contains(t, x.Rejected[0].Reason, "security/data_except")
				id, err := here.Move(r)
				require.NoError(t, err)
				require.Equal(t, dispatch.Completed, ended(t, here, id).State)

				r.Require = 1 << (here.Config().NumberOf("rdma") & 63)
				_, err = here.Move(r)
				require.Equal(t, errs.NoRoute, errs.CodeOf(err))
				require.ErrorContains(t, err, "security/data is "+data)
			})
		}
	}
}

// An engine does not start where a setting asks for both: for protection, and by name for a transport that has none.
// Nor does it where security/data_except names nothing.
func TestContradictionsAboutProtectionAreErrors(t *testing.T) {
	for says, settings := range map[string]map[string]any{
		"security/data is encrypt":           {"security/data": "encrypt", "transports/rdma/enable": true},
		`there is no transport "infiniband"`: {"security/data_except": []any{"infiniband"}},
	} {
		c, err := config.Load(config.Options{Transports: table([]string{"rdma", "shm"})}, settings)
		require.NoError(t, err)
		_, err = engine.Open(context.Background(), engine.Options{Config: c, Transports: cards(sim.NewInline(1))})
		require.ErrorContains(t, err, says)
	}
}
