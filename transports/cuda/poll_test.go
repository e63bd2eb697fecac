//go:build cgo

package cuda

import (
	"runtime"
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
		require.Zero(t, poller.Poll(1)) // the worker leaves slices to us from here on
		var list []*transport.Slice
		for i := range uint64(n) {
			list = append(list, link.Slice(transport.Write, rail, local, i*each, remote, i*each, each))
		}
		require.Equal(t, n, link.Submit(list...))
		for range 1000 {
			require.Zero(t, poller.Poll(n), "the device stands still")
		}
		gpu.Hold(false)
		for found := 0; found < n; runtime.Gosched() {
			found += poller.Poll(n)
		}
		poller.Arm()
		for _, end := range link.Wait(t, list...) {
			require.Nil(t, end.Err)
		}
		require.Equal(t, want, mem.Bytes(host.Addr, n*each))
	})
}
