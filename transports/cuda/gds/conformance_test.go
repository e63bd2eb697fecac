//go:build cgo

package gds

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/fakes/cuda"
	fake "github.com/tent-engine/tent/tests/fakes/cufile"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/file"
	"github.com/tent-engine/tent/transports/transporttest"
)

// TestConformance runs the suite over memory of an emulated device and files, with the emulated cuFile in a child
// process. Runs of batches end late and in any order; a library without batches has threads.
func TestConformance(t *testing.T) {
	for name, c := range map[string]struct {
		absent   []string
		delay    string
		settings file.Settings
		run      func(*testing.T, func(*testing.T) transporttest.Harness)
	}{
		"Batches":     {nil, "50", file.Settings{}, transporttest.Run},
		"FewAtATime":  {nil, "0", file.Settings{BatchDepth: 2, Threads: 1, Descriptors: 1}, transporttest.Again},
		"ThreadsOnly": {fake.BatchCalls, "0", file.Settings{Threads: 2}, transporttest.Again},
	} {
		t.Run(name, func(t *testing.T) {
			seed := fmt.Sprint(rand.Int31())
			t.Logf("seed %s", seed)
			fake.Run(t, fake.Settings{"DELAY_US": c.delay, "SEED": seed}, cuda.Settings{"SEED": seed}, c.absent,
				func(t *testing.T, _ *fake.Loaded, _ *cuda.Loaded) {
					c.run(t, func(*testing.T) transporttest.Harness { return harness(c.settings) })
				})
		})
	}
}

func harness(s file.Settings) transporttest.Harness {
	return transporttest.Harness{
		Check:    Factory{}.Check,
		Patience: patience,
		Local:    transporttest.OnPlatform(driver.Platform{}, 0),
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			tr, err := Factory{}.Open(t.Context(), s, c.Host, c.Sink)
			require.NoError(t, err)
			return tr
		},
		Warm: func(t *testing.T) { // the context and stream of the device stay
			addr, err := driver.Platform{}.Allocate(0, 4096)
			require.NoError(t, err)
			require.NoError(t, driver.Platform{}.Free(addr, 4096))
		},
		NoSelf:      "its peers are files, not engines",
		SilentClose: "files do not close",
	}
}
