//go:build cgo

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/transporttest"
)

// A region of the host is pinned once, as long as it is registered. Devices copy there directly: no memory of ours is
// pinned beside it. Where the driver refuses, bytes go the usual way, and the reason can be read.
func TestRegionsOfTheHostArePinnedWhileTheyAreRegistered(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		const n = 3 * 4096
		h := suiteOf(onDevice(0), onHost(), Settings{HostRegister: true})
		for _, refused := range []bool{false, true} {
			w := transporttest.NewWorld(t, h)
			near, far := w.Open("near"), w.Open("far")
			link := near.Connect(t, far)
			before := gpu.Stats().Pinned
			if refused {
				gpu.Inject("cuMemHostRegister_v2", 1, 2, false)
			}
			local := near.Register(t, n, mem.LocalReadWrite)
			host := far.Register(t, n, mem.GlobalReadWrite)
			kept := gpu.Stats().Pinned - before
			remote := link.Import(t, host)
			want, got := make([]byte, n), make([]byte, n)
			for i := range want {
				want[i] = byte(i*7 + i/4096)
			}
			require.NoError(t, gpu.Poke(local.Addr, want))
			for _, op := range []transport.Op{transport.Write, transport.Read} {
				s := link.Slice(op, link.Rail(t), local, 0, remote, 0, n)
				require.Equal(t, 1, link.Submit(s))
				require.Nil(t, link.Wait(t, s)[0].Err)
				if op == transport.Write {
					require.Equal(t, want, mem.Bytes(host.Addr, n))
					for i := range want {
						want[i] = byte(i*13 + i/4096)
					}
					copy(mem.Bytes(host.Addr, n), want)
				}
			}
			require.NoError(t, gpu.Peek(got, local.Addr))
			require.Equal(t, want, got)
			explained := far.Transport.(*nvlink).unpinned()
			if refused {
				require.Zero(t, kept)
				require.Contains(t, explained, "CUDA_ERROR_OUT_OF_MEMORY")
				require.Greater(t, gpu.Stats().Pinned, before, "memory of ours")
			} else {
				require.EqualValues(t, 1, kept)
				require.Empty(t, explained)
				require.Equal(t, before+1, gpu.Stats().Pinned, "nothing else")
			}
			require.NoError(t, far.Transport.Deregister(t.Context(), host.Key))
			if !refused {
				require.Equal(t, before, gpu.Stats().Pinned)
			}
		}
	})
}
