// Package engines tests whole engines in two processes that have rails of Soft-RoCE between them, in the test guest.
// Meanwhile the rails break in the ways in which cables, switches, addresses and devices do. See tests/roce for how.
package engines

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
	"github.com/tent-engine/tent/tests/roce"
)

// regionBytes take the guest a tenth of a second, so that a fault can fall into the middle of a move.
const regionBytes = 32 << 20

// everything asks for the long forms, which make test-all has.
var everything = os.Getenv("TENT_ROCE") == "all"

func TestMain(m *testing.M) {
	if forked.RunChild(new(netbed.Actor)) {
		return
	}
	os.Exit(m.Run())
}

// world is the guest's rails with an engine at both ends. Near has the devices of the ends A.
type world struct {
	*netbed.Pair
	rails   []roce.Rail
	address string // of Far
}

// onlyRDMA leaves nothing else to engines.
var onlyRDMA = map[string]string{"transports/tcp/enable": "false"}

// newWorld opens two engines over the first rails, which must be well.
func newWorld(t *testing.T, rails int, settings map[string]string) *world {
	t.Helper()
	w := newWorldOf(t, rails, func(roce.End) map[string]string { return settings })
	w.AwaitRails(t, rails)
	return w
}

// newWorldOf opens them with settings of their own, over rails of which some may be missing.
func newWorldOf(t *testing.T, rails int, settings func(roce.End) map[string]string) *world {
	t.Helper()
	all := railsOf(t, rails)
	w := &world{Pair: netbed.NewPair(t, "rdma", regionBytes), rails: all}
	w.Far, w.address = w.start(t, roce.B, settings(roce.B))
	w.Near, _ = w.start(t, roce.A, settings(roce.A))
	require.NoError(t, w.Near.Call("Actor.Connect", w.address, &forked.Nothing{}))
	t.Cleanup(func() { w.Report(t) })
	return w
}

// railsOf are the first rails of the guest.
func railsOf(t *testing.T, n int) []roce.Rail {
	t.Helper()
	if os.Getenv(roce.GuestEnv) == "" {
		t.Skip("only in the guest: make test-rdma")
	}
	all := roce.Rails()
	require.GreaterOrEqual(t, len(all), n, "rails of the guest")
	return all[:n]
}

// start opens an engine with the devices of an end.
func (w *world) start(t *testing.T, e roce.End, settings map[string]string) (c *forked.Child, address string) {
	t.Helper()
	return w.Open(t, func() (*forked.Child, error) { return forked.Start() }, w.settings(e, settings))
}

func (w *world) settings(e roce.End, more map[string]string) map[string]string {
	names := make([]string, len(w.rails))
	for i, r := range w.rails {
		names[i] = r.Device(e)
	}
	list, _ := json.Marshal(names) // strings cannot fail
	own := map[string]string{"transports/shm/enable": "false", "transports/rdma/devices": string(list)}
	maps.Copy(own, more)
	return own
}

// railName is how engines call a rail.
func railName(r roce.Rail) string { return r.Device(roce.A) + " -> " + r.Device(roce.B) }

// someWay runs a scenario for writing and for reading; the short form for one of them.
func someWay(t *testing.T, f func(t *testing.T, op transport.Op)) {
	t.Helper()
	if everything {
		netbed.EitherWay(t, f)
		return
	}
	op := []transport.Op{transport.Write, transport.Read}[rand.IntN(2)]
	t.Run(op.String(), func(t *testing.T) { f(t, op) })
}

// errorOf is the end of a move that should have been another.
func errorOf(out *netbed.Outcome) error {
	return fmt.Errorf("a move ended %s after %v: %s", out.State, out.Took, out.Error)
}
