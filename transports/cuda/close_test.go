//go:build cgo

package cuda

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/kit"
	"github.com/tent-engine/tent/transports/transporttest"
)

// A device that gives a copy back late holds nobody's Close up beyond its limit. The error names the copy, and the next
// Close waits for its end.
func TestCloseNamesACopyThatDoesNotEnd(t *testing.T) {
	holds := func(t *testing.T, gpu *fake.Loaded, h transporttest.Harness) {
		w := transporttest.NewWorld(t, h)
		near, far := w.Open("near"), w.Open("far")
		conn := near.Connect(t, far)
		local, target := near.Register(t, 4096, mem.LocalReadWrite), far.Register(t, 4096, mem.GlobalReadWrite)
		s := conn.Slice(transport.Write, conn.Rail(t), local, 0, conn.Import(t, target), 0, 4096)
		gpu.Hold(true)
		defer gpu.Hold(false)
		require.Equal(t, 1, conn.Submit(s))
		carries := near.Transport.(interface{ Begun() []kit.Begun[link] })
		await(t, "the driver has the copy", func() bool { return len(carries.Begun()) == 1 })
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for range 2 {
			err := near.Transport.Close(over)
			require.Equal(t, errs.Timeout, errs.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, "a WRITE of 4096 bytes with "+far.Peer.Address)
		}
		gpu.Hold(false)
		require.NoError(t, near.Transport.Close(t.Context()))
		require.Nil(t, conn.Wait(t, s)[0].Err)
	}
	t.Run(Name, func(t *testing.T) {
		fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, gpu *fake.Loaded) {
			holds(t, gpu, suite(onDevice(0), onDevice(1), true))
		})
	})
	t.Run(FabricName, func(t *testing.T) {
		inDomain(t, nil, func(t *testing.T, gpu *fake.Loaded) {
			holds(t, gpu, betweenHosts(onDevice(0), inFabric(1)))
		})
	})
}
