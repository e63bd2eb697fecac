package engines

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/forked"
	"github.com/tent-engine/tent/tests/netbed"
	"github.com/tent-engine/tent/tests/roce"
)

// blamed are the sides that the first event of a rail may name, by the fault. Other faults are none to an engine: a
// queue pair repairs the losses, repeats and delays of a path.
var blamed = map[string]string{
	"silent": "path", "silent-forth": "path", "silent-back": "path",
	"own-cable-pulled": "local", "own-device-down": "local", "own-address-removed": "local",
	// An end of the peer is as silent as the path, until the peer names the cause.
	"peer-cable-pulled": "path remote", "peer-device-down": "path remote", "peer-address-removed": "path remote",
}

// mendable are the faults that end while engines have the devices open.
func mendable() []roce.Fault {
	return slices.DeleteFunc(roce.Faults(), func(f roce.Fault) bool { return strings.HasSuffix(f.Name, "deleted") })
}

// TestARailThatBreaksUnderATransferIsNoticedByNobody breaks one rail of two in every way, in the middle of a transfer;
// each next transfer then has the rail back. The short form takes the operations in turns, and leaves the faults that a
// queue pair survives to the random ones.
func TestARailThatBreaksUnderATransferIsNoticedByNobody(t *testing.T) {
	w := newWorld(t, 2, onlyRDMA)
	first := rand.IntN(2)
	for i, f := range mendable() {
		for turn, op := range []transport.Op{transport.Write, transport.Read} {
			if _, deadly := blamed[f.Name]; !everything && (!deadly || (first+i)%2 != turn) {
				continue
			}
			t.Run(f.Name+"/"+op.String(), func(t *testing.T) { w.breakAndMend(t, f, w.rails[i%2], op) })
		}
	}
}

func (w *world) breakAndMend(t *testing.T, f roce.Fault, rail roce.Rail, op transport.Op) {
	down := "rail_down " + railName(rail)
	before, up := len(w.Events(t, down)), len(w.Events(t, "rail_up "+railName(rail)))
	mended := false
	t.Cleanup(func() {
		w.Report(t)
		if !mended { // the next fault is to find all rails well
			_ = f.Mend(rail)
		}
	})
	out := w.Moves(t, op, func() error { return f.Make(rail) })
	sides, deadly := blamed[f.Name]
	if deadly {
		w.untilDown(t, rail, before, op)
		told, _, _ := strings.Cut(strings.TrimPrefix(w.Events(t, down)[before], down+" "), ":")
		require.Contains(t, strings.Fields(sides), told, "the side that is blamed")
	} else {
		require.Len(t, w.Events(t, down), before, "a bad path is no dead one")
	}
	mended = true
	require.NoError(t, f.Mend(rail))
	begin := time.Now()
	if deadly {
		netbed.Await(t, "the rail is back", func() bool { return len(w.Events(t, "rail_up "+railName(rail))) > up })
	}
	w.AwaitRails(t, len(w.rails))
	t.Logf("moved in %v, %d attempts; back after %v", out.Took.Round(time.Millisecond), out.Attempts,
		time.Since(begin).Round(time.Millisecond))
}

// untilDown moves until a rail has gone down once more: one that is silent shows when bytes go there.
func (w *world) untilDown(t *testing.T, rail roce.Rail, before int, op transport.Op) {
	t.Helper()
	netbed.Await(t, "the rail goes down", func() bool {
		w.End(t, w.Begin(t, op))
		return len(w.Events(t, "rail_down "+railName(rail))) > before
	})
}

// TestADeviceThatIsDeletedCostsItsRailAlone deletes the network interface below a device at either end.
func TestADeviceThatIsDeletedCostsItsRailAlone(t *testing.T) {
	for _, f := range roce.Faults() {
		if !strings.HasSuffix(f.Name, "deleted") || !everything && f.Name != "own-device-deleted" {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			deleted := false
			t.Cleanup(func() { // after the engines, which keep the dead device open
				if deleted {
					begin := time.Now()
					require.NoError(t, f.Mend(0))
					t.Logf("made again in %v", time.Since(begin).Round(time.Millisecond))
				}
			})
			w := newWorld(t, 2, onlyRDMA)
			w.Moves(t, transport.Write, func() error {
				err := f.Make(w.rails[0])
				deleted = err == nil
				return err
			})
			w.untilDown(t, w.rails[0], 0, transport.Write)
			require.Empty(t, w.Events(t, "rail_down "+railName(w.rails[1])))
			w.Move(t, transport.Read)
		})
	}
}

// TestAllRailsGoAndComeBack: nothing can move meanwhile, and transfers under way go on.
func TestAllRailsGoAndComeBack(t *testing.T) {
	w := newWorld(t, 2, onlyRDMA)
	for _, f := range mendable() {
		if _, deadly := blamed[f.Name]; !deadly || !everything && f.Name != "silent" {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			out := w.Moves(t, transport.Write, func() error {
				w.all(t, f.Make)
				// The whole move may have been over before; these bytes, which are the same, find no rail.
				args := netbed.MoveArgs{Op: transport.Write, Bytes: 1 << 20}
				call := w.Near.Begin("Actor.Move", args, &netbed.Outcome{})
				netbed.Await(t, "all rails are down", func() bool { return w.RailsUp(t) == 0 })
				w.all(t, f.Mend)
				require.Equal(t, "COMPLETED", w.End(t, call).State)
				return nil
			})
			t.Logf("moved in %v", out.Took.Round(time.Millisecond))
			w.AwaitRails(t, len(w.rails))
		})
	}
}

func (w *world) all(t *testing.T, f func(roce.Rail) error) {
	t.Helper()
	for _, r := range w.rails {
		require.NoError(t, f(r))
	}
}

// TestBytesGoToTCPAndComeBack silences all rails of RDMA: the transfer ends by TCP, and once the rails are back the
// next one goes by RDMA again.
func TestBytesGoToTCPAndComeBack(t *testing.T) {
	w := newWorld(t, 2, nil)
	carried := func(name string) float64 {
		var m map[string]float64
		require.NoError(t, w.Near.Call("Actor.Metrics", forked.Nothing{}, &m))
		sum := 0.0
		for key, value := range m {
			if strings.HasPrefix(key, "tent_rail_bytes_total{") && strings.Contains(key, `transport="`+name+`"`) {
				sum += value
			}
		}
		return sum
	}
	someWay(t, func(t *testing.T, op transport.Op) {
		before := carried("tcp")
		w.Moves(t, op, func() error {
			w.all(t, func(r roce.Rail) error { return r.Drop(roce.Both) })
			return nil
		})
		netbed.Await(t, "bytes go by TCP", func() bool { // the first move may have been over before the silence
			w.Move(t, op)
			return carried("tcp") > before
		})
		w.all(t, roce.Rail.Heal)
		w.AwaitRails(t, len(w.rails))
		netbed.Await(t, "bytes go by RDMA again", func() bool {
			tcp, rdma := carried("tcp"), carried("rdma")
			w.Move(t, op)
			return carried("tcp") == tcp && carried("rdma") >= rdma+regionBytes
		})
	})
}
