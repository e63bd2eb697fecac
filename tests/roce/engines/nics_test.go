package engines

import (
	"encoding/json"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
	"github.com/tent-engine/tent/tests/roce"
)

// TestNICsComeGoAndChangeTheirAddressUnderTransfers: moves go on both ways meanwhile, each byte is looked at, and none
// fails. A rail of which an end has another address comes back by that one, with nothing mended.
func TestNICsComeGoAndChangeTheirAddressUnderTransfers(t *testing.T) {
	rails := railsOf(t, 3)
	late, goes := rails[2], rails[1]
	ends := []roce.End{roce.A, roce.B}
	for _, e := range ends {
		require.NoError(t, late.Delete(e))
	}
	gone := map[roce.Rail][]roce.End{late: ends}
	t.Cleanup(func() { // after the engines, which keep a dead device open
		for rail, list := range gone {
			for _, e := range list {
				require.NoError(t, rail.Add(e))
			}
		}
	})
	w := newWorldOf(t, 3, func(roce.End) map[string]string { return onlyRDMA })
	w.AwaitRails(t, 2)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s := newStorm(w, seed)
	s.goesOn(t, 1)
	for _, e := range ends {
		w.renumbered(t, s, rails[0], e)
	}

	delete(gone, late)
	for _, e := range ends {
		require.NoError(t, late.Add(e))
	}
	netbed.Await(t, "the rail of the new NICs is up", func() bool {
		return len(w.Events(t, "rail_up "+railName(late))) > 0
	})
	s.goesOn(t, 1)

	gone[goes] = []roce.End{roce.A}
	require.NoError(t, goes.Delete(roce.A))
	netbed.Await(t, "the rail of the NIC that went is down", func() bool {
		return len(w.Events(t, "rail_down "+railName(goes)+" local: ")) > 0
	})
	s.goesOn(t, 1)
	s.end(t)
	t.Logf("%d moves of %d MiB", s.moves.Load(), regionBytes/stormParts>>20)
}

// renumbered gives an end of a rail another address, and its own again. Near hears of its own end by its device, and of
// the peer's by silence alone. The moves go on in any case, and the rail is up afterwards.
//
// No queue pair lives through the peer's change: its kernel drops packets for an address that it no longer has (they
// count as InAddrErrors in /proc/net/snmp), and the C program fails by its retries. These take a good half of a second,
// and a phase takes about one. So the rail may fail behind its phase: four of eight saw it go down.
func (w *world) renumbered(t *testing.T, s *storm, rail roce.Rail, e roce.End) {
	t.Helper()
	down, up := "rail_down "+railName(rail), "rail_up "+railName(rail)
	for _, back := range []bool{false, true} {
		downs, ups := len(w.Events(t, down)), len(w.Events(t, up))
		require.NoError(t, rail.Renumber(e, back))
		if e == roce.A {
			netbed.Await(t, "the rail goes down and comes back", func() bool {
				return len(w.Events(t, down)) > downs && len(w.Events(t, up)) > ups
			})
		}
		s.goesOn(t, 2*stormParts)
		w.AwaitRails(t, 2)
		if lines := w.Events(t, down)[downs:]; len(lines) > 0 {
			told, _, _ := strings.Cut(strings.TrimPrefix(lines[0], down+" "), ":")
			if e == roce.A {
				require.Equal(t, "local", told, "the side that is blamed")
			} else {
				require.Contains(t, []string{"path", "remote"}, told, "the peer is silent until it says why")
			}
		}
	}
}

// TestTheControlPlaneIsReachedByEveryNIC: engines that have nothing but RDMA listen at the addresses of all of their
// NICs. The one by which the peer was opened falls silent, and the peer is asked about its queue pairs by the other.
func TestTheControlPlaneIsReachedByEveryNIC(t *testing.T) {
	rails := railsOf(t, 2)
	key, err := netbed.ClusterKey(t.TempDir())
	require.NoError(t, err)
	text := func(value string) string {
		b, _ := json.Marshal(value) // strings cannot fail
		return string(b)
	}
	w := newWorldOf(t, 2, func(e roce.End) map[string]string {
		return map[string]string{"transports/tcp/enable": "false", "security/cluster_key": text(key),
			"rpc_server_hostname": text(rails[0].Address(e).String())}
	})
	w.AwaitRails(t, 2)
	host, port, err := net.SplitHostPort(w.address)
	require.NoError(t, err)
	require.Equal(t, rails[0].Address(roce.B).String(), host)
	for _, f := range roce.Faults() {
		if f.Name == "silent" {
			w.breakAndMend(t, f, rails[0], transport.Write)
		}
	}
	second := net.JoinHostPort(rails[1].Address(roce.B).String(), port)
	require.NoError(t, w.Near.Call("Actor.Connect", second, &forked.Nothing{}))
	w.Move(t, transport.Read)
}
