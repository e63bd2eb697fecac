//go:build cgo

// Package samegpu tests whole engines in two processes of one host that have memory of GPUs, of an emulated driver.
// Only nvlink takes part, so no other transport hides its failures.
package samegpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/tests/forked"
	bed "github.com/tent-engine/tent/tests/gpubed"
)

func TestMain(m *testing.M) { bed.Main(m) }

// alone are settings with no other transport. A transfer has several slices, so that something can happen between them.
func alone() map[string]any {
	return map[string]any{"transports/nvlink/enable": true, "transports/nvlink/slice_bytes": 1 << 20,
		"transports/tcp/enable": false, "transports/shm/enable": false, "staging/enable": false}
}

func start(t *testing.T) *bed.Peer {
	c, err := forked.Start()
	require.NoError(t, err)
	return bed.Start(t, c, alone())
}

// onEachKind carries a test out on each kind of memory that other processes can reach, with a slow driver.
func onEachKind(t *testing.T, delay string, test func(t *testing.T, gpu *fake.Loaded, kind bed.Kind)) {
	for name, kind := range map[string]bed.Kind{"Legacy": bed.Legacy, "Chunks": bed.Passed, "Fabric": bed.Fabric} {
		t.Run(name, func(t *testing.T) {
			settings := fake.Settings{"DELAY_US": delay, "SEED": fmt.Sprint(rand.Int32())}
			if kind == bed.Fabric {
				settings["IMEX"] = "1"
			}
			t.Logf("settings %v", settings)
			fake.Run(t, fake.Driver{}, settings, func(t *testing.T, gpu *fake.Loaded) { test(t, gpu, kind) })
		})
	}
}

// Bytes go to and from the inside of an allocation of another process, over the borders of its chunks, and nothing
// around them changes.
func TestBytesReachADeviceOfAnotherProcess(t *testing.T) {
	onEachKind(t, "20", func(t *testing.T, gpu *fake.Loaded, kind bed.Kind) {
		owner, e := start(t), bed.OpenEngine(t, alone())
		owner.Own(kind)
		bed.RoundTrips(t, e, owner, gpu, bed.Mine(t, e), bed.OpenCache(t, e, owner))
	})
}

const noAccess = "cuda:0 (PCI face:1a:00.0) has no peer access to cuda:1 (PCI face:1b:00.0): " +
	"cuDeviceCanAccessPeer says 0"

// Without a way, the plan leaves nvlink out, and the error has the reason of the driver or of the owner.
func TestAReasonIsGivenWhereThereIsNoWay(t *testing.T) {
	for name, c := range map[string]struct {
		kind     bed.Kind
		settings fake.Settings
		says     string
	}{
		"no peer access":           {bed.Legacy, fake.Settings{"APART": "all"}, noAccess},
		"no peer access to chunks": {bed.Passed, fake.Settings{"APART": "all"}, noAccess},
		"not shareable":            {bed.Private, nil, "its allocator asked for no handle"},
		"another IMEX domain":      {bed.Fabric, fake.Settings{"IMEX": "1"}, "800"},
	} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, fake.Driver{}, c.settings, func(t *testing.T, _ *fake.Loaded) {
				owner, e := start(t), bed.OpenEngine(t, alone())
				owner.Own(c.kind)
				t.Setenv("TENT_FAKECUDA_IMEX", "2") // of this process from here on
				local, to := bed.Mine(t, e), bed.OpenCache(t, e, owner)
				require.ErrorContains(t, bed.Move(e, transport.Write, local, 4096, to, 0), c.says)
			})
		})
	}
}

// The end of an owner is heard of while its memory is mapped, which stays until the segment is closed. The engine goes
// on, and another owner can be reached.
func TestAnOwnerThatIsKilledLeavesTheOthers(t *testing.T) {
	onEachKind(t, "0", func(t *testing.T, _ *fake.Loaded, kind bed.Kind) {
		e := bed.OpenEngine(t, alone())
		local := bed.Mine(t, e)
		for range 2 {
			owner := start(t)
			owner.Own(kind)
			bed.Outlives(t, e, owner, local)
		}
	})
}

// A region stays as its owner leaves it once it was taken back. The peer copies into it all the time, or is killed in a
// copy.
func TestARegionThatWasTakenBackStaysAsItIs(t *testing.T) {
	onEachKind(t, "300", func(t *testing.T, gpu *fake.Loaded, kind bed.Kind) {
		e := bed.OpenEngine(t, alone())
		for _, kill := range []bool{false, true} {
			bed.TakesBack(t, e, start(t), gpu, kind, kill)
		}
	})
}
