//go:build cgo

package cuda

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/transporttest"
)

// A waiter that polls is never inside the driver for a copy. While a device stands still, looks return at once, and
// each finds the ends that are there. The bytes of the host are there with the end that is found.
func TestAPollWaitsForNoCopy(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		const n, each = 5, 4096
		w := transporttest.NewWorld(t, suite(onDevice(0), onHost(), false))
		near, far := w.Open("near"), w.Open("far")
		link := near.Connect(t, far)
		local := near.Register(t, n*each, mem.LocalReadWrite)
		host := far.Register(t, n*each, mem.GlobalReadWrite)
		remote, rail := link.Import(t, host), link.Rail(t)
		want := make([]byte, n*each)
		for i := range want {
			want[i] = byte(i*7 + i/each)
		}
		require.NoError(t, gpu.Poke(local.Addr, want))
		poller := near.Transport.(transport.Poller)

		gpu.Hold(true)
		require.Zero(t, poller.Poll(1, transport.AllClasses)) // the worker leaves slices to us from here on
		var list []*transport.Slice
		for i := range uint64(n) {
			list = append(list, link.Slice(transport.Write, rail, local, i*each, remote, i*each, each))
		}
		require.Equal(t, n, link.Submit(list...))
		for range 1000 {
			require.Zero(t, poller.Poll(n, transport.AllClasses), "the device stands still")
		}
		gpu.Hold(false)
		link.Poll(t, n, list...)
		poller.Arm()
		for _, end := range link.Wait(t, list...) {
			require.Nil(t, end.Err)
		}
		require.Equal(t, want, mem.Bytes(host.Addr, n*each))
	})
}

// Short slices go to the device in bursts. One whose copy fails does so alone, and moves no byte; those around it, with
// a device or the host at the other end, move theirs.
func TestACopyThatFailsInABurstFailsAlone(t *testing.T) {
	const n, each, broken = 6, 4096, 3
	for name, peer := range map[string]*transporttest.Device{"Device": onDevice(fake.Last()), "Host": onHost()} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
				w := transporttest.NewWorld(t, suite(onDevice(0), peer, false))
				near, far := w.Open("near"), w.Open("far")
				link := near.Connect(t, far)
				local := near.Register(t, n*each, mem.LocalReadWrite)
				remote := far.Register(t, n*each, mem.GlobalReadWrite)
				imported, rail := link.Import(t, remote), link.Rail(t)
				want, before := make([]byte, n*each), make([]byte, n*each)
				for i := range want {
					want[i], before[i] = byte(i*7+i/each+1), 0xee
				}
				require.NoError(t, gpu.Poke(local.Addr, want))
				peer.Store(remote.Addr, before)
				poller := near.Transport.(transport.Poller)
				require.Zero(t, poller.Poll(1, transport.AllClasses)) // the worker leaves slices to us from here on
				var list []*transport.Slice
				for i := range uint64(n) {
					list = append(list, link.Slice(transport.Write, rail, local, i*each, imported, i*each, each))
				}
				require.Equal(t, n, link.Submit(list...))
				gpu.Inject("cuMemcpyAsync", broken+1, 1, false)
				link.Poll(t, n, list...)
				poller.Arm()
				for i, end := range link.Wait(t, list...) {
					require.Equal(t, i == broken, end.Err != nil, "slice %d: %v", i, end.Err)
				}
				copy(want[broken*each:][:each], before)
				got := make([]byte, n*each)
				peer.Load(got, remote.Addr)
				require.True(t, bytes.Equal(want, got))
			})
		})
	}
}
