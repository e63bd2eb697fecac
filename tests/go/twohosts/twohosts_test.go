//go:build cgo

package twohosts

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	bed "github.com/tent-engine/tent/tests/gpubed"
	"github.com/tent-engine/tent/tests/netbed"
)

// Bytes go to and from the inside of memory of another host, over the borders of its chunks, and nothing around them
// changes.
func TestBytesReachADeviceOfAnotherHost(t *testing.T) {
	for name, kind := range map[string]bed.Kind{"Allocated": bed.Allocated, "Fabric": bed.Fabric} {
		t.Run(name, func(t *testing.T) {
			late := fake.Settings{"DELAY_US": "20", "SEED": fmt.Sprint(rand.Int32())}
			inDomain(t, late, func(t *testing.T, gpu *fake.Loaded) {
				c, e := start(t, alone()), bed.OpenEngine(t, alone())
				c.Own(kind)
				local, to := bed.Mine(t, e), bed.OpenCache(t, e, c)
				bed.RoundTrips(t, e, c, gpu, local, to)
				made, err := e.Explain(&engine.Request{Source: local, Remote: engine.Remote{Segment: to}, Length: 4096})
				require.NoError(t, err)
				require.Equal(t, "mnnvl", made.Taken)
				require.Contains(t, made.Routes[0].Detail, "mapped over NVLink")
			})
		})
	}
}

const switchedOff = "mnnvl: the peer has it switched off"

// Without a way mnnvl is left out, and the error has the reason: of the peer, of its memory, or of the driver.
func TestAReasonIsGivenWhereThereIsNoWay(t *testing.T) {
	for name, c := range map[string]struct {
		kind  bed.Kind
		owner []string // more of its environment
		says  string
	}{
		"another clique":       {bed.Allocated, []string{"TENT_FAKENVML_CLIQUE=8"}, "in clique 7 of the NVLink domain"},
		"another cluster":      {bed.Allocated, []string{"TENT_FAKENVML_CLUSTER=5"}, "NVLink domain c1c1"},
		"descriptors alone":    {bed.Passed, nil, "asked for no fabric handle"},
		"memory of cudaMalloc": {bed.Legacy, nil, "asked for no fabric handle"},
		"another channel":      {bed.Allocated, []string{"TENT_FAKECUDA_IMEX=2"}, "CUDA_ERROR_NOT_PERMITTED, 800"},
		"no channel there":     {bed.Legacy, []string{"TENT_FAKECUDA_IMEX=0"}, switchedOff},
		"no handles there":     {bed.Legacy, []string{"TENT_FAKECUDA_FABRIC=0"}, switchedOff},
	} {
		t.Run(name, func(t *testing.T) {
			inDomain(t, nil, func(t *testing.T, _ *fake.Loaded) {
				// the peer is reached over tcp, its GPU is not
				owner, e := start(t, settings(), c.owner...), bed.OpenEngine(t, settings())
				owner.Own(c.kind)
				local, to := bed.Mine(t, e), bed.OpenCache(t, e, owner)
				require.ErrorContains(t, bed.Move(e, transport.Write, local, 4096, to, 0), c.says)
			})
		})
	}
}

// The end of an owner is heard of while its memory is mapped. The engine goes on, and another owner can be reached.
func TestAnOwnerThatIsKilledLeavesTheOthers(t *testing.T) {
	inDomain(t, nil, func(t *testing.T, _ *fake.Loaded) {
		e := bed.OpenEngine(t, alone())
		local := bed.Mine(t, e)
		for range 2 {
			c := start(t, alone())
			c.Own(bed.Fabric)
			bed.Outlives(t, e, c, local)
		}
	})
}

// Memory that another host has mapped is unmapped when its owner's Close returns. So the memory that comes to its place
// is out of reach.
func TestAnOwnerThatClosesTakesItsMemoryBack(t *testing.T) {
	inDomain(t, nil, func(t *testing.T, gpu *fake.Loaded) {
		e := bed.OpenEngine(t, alone())
		local, before := bed.Mine(t, e), gpu.Stats().Mappings
		c := start(t, alone())
		c.Own(bed.Allocated)
		to := bed.OpenCache(t, e, c)
		require.NoError(t, bed.Move(e, transport.Write, local, 4096, to, 0))
		require.Equal(t, before+1, gpu.Stats().Mappings)
		c.Close()
		require.Equal(t, before, gpu.Stats().Mappings, "it is still mapped")
		require.Error(t, bed.Move(e, transport.Write, local, 4096, to, 0))
	})
}

// A region stays as its owner leaves it once it was taken back. A peer of another host copies into it all the time, or
// is killed in a copy.
func TestARegionThatWasTakenBackStaysAsItIs(t *testing.T) {
	late := fake.Settings{"DELAY_US": "300", "SEED": fmt.Sprint(rand.Int32())}
	inDomain(t, late, func(t *testing.T, gpu *fake.Loaded) {
		e := bed.OpenEngine(t, alone())
		for _, kill := range []bool{false, true} {
			bed.TakesBack(t, e, start(t, alone()), gpu, bed.Allocated, kill)
		}
	})
}

// A peer that was stopped may go on at any time, and no call takes its mapping down. So a fence and a close name it, in
// time, and the memory stays its own. When it goes on, a fence finds it again.
func TestAStoppedPeerIsNamedAndNotBelievedGone(t *testing.T) {
	inDomain(t, nil, func(t *testing.T, _ *fake.Loaded) {
		e := bed.OpenEngine(t, alone())
		at, id := bed.Offer(t, e, bed.Allocated)
		c := start(t, alone())
		c.Write(e)
		c.Moves(1)
		fence := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			return e.FenceRegion(ctx, id, "")
		}
		require.NoError(t, c.Stop())
		err := fence()
		require.Equal(t, errs.Timeout, errs.CodeOf(err))
		require.ErrorContains(t, err, c.Address+" may still touch the memory")
		require.NoError(t, c.Signal(unix.SIGCONT))
		ctx, cancel := context.WithTimeout(t.Context(), netbed.Patience)
		defer cancel()
		require.NoError(t, e.FenceRegion(ctx, id, ""), "it answers again")
		c.Moves(1)
		require.NoError(t, c.Stop())
		require.ErrorContains(t, bed.CloseWithin(t, e, id, 300*time.Millisecond), c.Address)
		c.Kill()
		require.NoError(t, bed.Free(bed.Allocated, at))
	})
}
