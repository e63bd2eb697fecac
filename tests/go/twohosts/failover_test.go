//go:build cgo

package twohosts

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	bed "github.com/tent-engine/tent/tests/gpubed"
	"github.com/tent-engine/tent/tests/netbed"
	"github.com/tent-engine/tent/transports/all"
	"github.com/tent-engine/tent/transports/faulty"
)

// breakable opens an engine of this process with a plan of faults.
func breakable(t *testing.T, settings map[string]any) (*engine.Engine, *faulty.Plan) {
	plan, err := faulty.New("")
	require.NoError(t, err)
	c, err := config.Load(config.Options{Transports: all.Transports()}, settings)
	require.NoError(t, err)
	factories := all.Factories()
	for i := range factories {
		factories[i] = faulty.Wrap(factories[i], plan)
	}
	e, err := engine.Open(t.Context(), engine.Options{Config: c, Transports: engine.Plugs(factories...),
		Platforms: all.Platforms()})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Empty(t, e.Close(netbed.Patience, true))
		require.NoError(t, e.Forget())
	})
	return e, plan
}

// Where NVLink between the hosts fails, bytes go through memory of the host by TCP, and by NVLink when it is back. No
// transfer fails, and every byte is looked at.
func TestTransfersFailOverToTCPAndBack(t *testing.T) {
	inDomain(t, nil, func(t *testing.T, gpu *fake.Loaded) {
		with := settings()
		delete(with, "staging/enable")
		c := start(t, with)
		e, plan := breakable(t, with)
		c.Own(bed.Allocated)
		local, to := bed.Mine(t, e), bed.OpenCache(t, e, c)
		expected := bed.Pattern(1, bed.Size)
		write := func(seed uint64) {
			bytes := bed.Pattern(seed, bed.Inside)
			require.NoError(t, gpu.Poke(local, bytes))
			require.NoError(t, bed.Move(e, transport.Write, local, bed.Inside, to, 0))
			copy(expected[bed.Band:], bytes)
			require.Equal(t, expected, c.Peek())
		}
		explained := func() *engine.Explanation {
			made, err := e.Explain(&engine.Request{Terms: engine.Terms{Op: transport.Write}, Source: local,
				Remote: engine.Remote{Segment: to}, Length: 4096})
			require.NoError(t, err)
			return made
		}
		ctx, cancel := context.WithTimeout(t.Context(), netbed.Patience)
		defer cancel()
		await := func(by string) {
			for ; explained().Taken != by; runtime.Gosched() {
				require.NoError(t, ctx.Err(), "requests do not begin with %s: %+v", by, explained())
			}
		}
		require.Equal(t, "mnnvl", explained().Taken)
		write(2)
		require.NoError(t, plan.Apply("transport=mnnvl reject rate=0.5 seed=3"), "in the middle of transfers")
		write(3)
		require.NoError(t, plan.Apply("transport=mnnvl down"))
		await("delegate") // the peer copies from memory of the host, to which TCP has brought them
		write(4)
		require.NoError(t, plan.Apply("heal"))
		await("mnnvl")
		write(5)
	})
}

// A device that an error of the driver has ended carries nothing more. Memory of the host goes by the peer's own GPU
// then, and the other device goes on by NVLink.
func TestALostDeviceLeavesTheOthersToNVLink(t *testing.T) {
	inDomain(t, nil, func(t *testing.T, gpu *fake.Loaded) {
		with := alone()
		c, e := start(t, with), bed.OpenEngine(t, with)
		c.Own(bed.Allocated)
		local, to := bed.Mine(t, e), bed.OpenCache(t, e, c)
		require.NoError(t, bed.Move(e, transport.Write, local, 4096, to, 0))
		other, err := bed.Allocate(bed.Legacy, 1)
		require.NoError(t, err)
		id, err := e.Register(engine.Memory{Addr: other, Size: bed.Size, Location: "cuda:1"})
		require.NoError(t, err)
		gpu.Inject("copy", 1, 700, true)
		require.ErrorContains(t, bed.Move(e, transport.Write, local, 4096, to, 0), "700")
		require.ErrorContains(t, bed.Move(e, transport.Write, local, 4096, to, 0), "cuda:0")
		require.NoError(t, gpu.Poke(other, bed.Pattern(9, bed.Size)))
		require.NoError(t, bed.Move(e, transport.Write, other, bed.Inside, to, 0), "the other device")
		require.Equal(t, bed.Pattern(9, bed.Size)[:bed.Inside], c.Peek()[bed.Band:bed.Size-bed.Band])
		ctx, cancel := context.WithTimeout(t.Context(), netbed.Patience)
		defer cancel()
		require.NoError(t, e.CloseRegion(ctx, id))
		require.NoError(t, bed.Free(bed.Legacy, other))
		gpu.Forgive()
	})
}
