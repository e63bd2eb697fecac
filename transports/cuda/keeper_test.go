//go:build cgo

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/transporttest"
)

// A device that is in use pins memory of the host: no other one gets a context for it.
func TestADeviceInUsePinsMemoryOfTheHost(t *testing.T) {
	for name, inUse := range map[string]bool{"the second": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, fake.Driver{}, fake.Settings{"DEVICES": "2"}, func(t *testing.T, gpu *fake.Loaded) {
				const size = 3 * 4096
				contexts := int64(1)
				if inUse {
					at, err := driver.Platform{}.Allocate(1, size)
					require.NoError(t, err)
					defer func() { require.NoError(t, driver.Platform{}.Free(at, size)) }()
					contexts = 0
				}
				h := suiteOf(onHost(), onHost(), Settings{Copying: Copying{HostRegister: true}})
				h.Warm = nil // it uses each device
				near := transporttest.NewWorld(t, h).Open("near")
				before := gpu.Stats()
				memory := near.Register(t, size, mem.LocalReadWrite)
				now := gpu.Stats()
				require.Equal(t, before.Pinned+1, now.Pinned)
				require.Equal(t, before.Retained+contexts, now.Retained)
				require.NoError(t, near.Transport.Deregister(t.Context(), memory.Key))
				require.Equal(t, before.Pinned, gpu.Stats().Pinned)
			})
		})
	}
}
