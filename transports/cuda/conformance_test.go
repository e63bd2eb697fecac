//go:build cgo

package cuda

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/transporttest"
)

// TestConformance runs the suite over memory of devices and of the host, with an emulated driver in a child process.
// Copies run late, and each pair of memories has a driver of another age: with the batch call of 8 arguments, with that
// of 9, without.
func TestConformance(t *testing.T) {
	for name, c := range map[string]struct {
		local, remote bool // memory of a device
		version       int
	}{
		"CudaCuda": {true, true, 13000}, "CudaHost": {true, false, 12080}, "HostCuda": {false, true, 12040},
	} {
		t.Run(name, func(t *testing.T) {
			settings := fake.Settings{"DELAY_US": "5", "SEED": fmt.Sprint(rand.Int31())}
			t.Logf("settings %v", settings)
			fake.Run(t, fake.Driver{Version: c.version}, settings, func(t *testing.T, _ *fake.Loaded) {
				transporttest.Run(t, func(*testing.T) transporttest.Harness { return harness(c.local, c.remote) })
			})
		})
	}
}

// harness opens transports in this process, with operands on two devices.
func harness(local, remote bool) transporttest.Harness {
	h := transporttest.Harness{Check: Factory{}.Check,
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			tr, err := Factory{}.Open(t.Context(), nil, c.Host, c.Sink)
			require.NoError(t, err)
			return tr
		},
		Warm: func(t *testing.T) { warm(t) },
	}
	if local {
		h.Local = transporttest.OnPlatform(driver.Platform{}, 0)
	}
	if remote {
		h.Remote = transporttest.OnPlatform(driver.Platform{}, 1)
	}
	return h
}

// warm makes the contexts and streams that stay.
func warm(t *testing.T) {
	for ordinal := range 2 {
		addr, err := driver.Platform{}.Allocate(ordinal, 4096)
		require.NoError(t, err)
		require.NoError(t, driver.Platform{}.Free(addr, 4096))
	}
}
