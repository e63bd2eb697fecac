//go:build cgo

package gds

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
	"github.com/tent-engine/tent/tests/fakes/cuda"
	fake "github.com/tent-engine/tent/tests/fakes/cufile"
	"github.com/tent-engine/tent/transports/cuda/cufile"
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
		"Batches":     {nil, "20", file.Settings{}, transporttest.Run},
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
		Warm:        warm,
		NoSelf:      "its peers are files, not engines",
		SilentClose: "files do not close",
	}
}

// TestConformanceOnDevices is the suite over the first GPU and the cuFile of this machine, for `make check-gpu`.
func TestConformanceOnDevices(t *testing.T) {
	if err := (Factory{}).Check(); err != nil {
		t.Skipf("no GPU with cuFile here: %v", err)
	}
	takesFiles(t)
	transporttest.Run(t, func(*testing.T) transporttest.Harness { return harness(file.Settings{}) })
}

// warm moves a page: contexts, streams and some descriptors of both libraries stay with the process.
func warm(t *testing.T) {
	addr, err := driver.Platform{}.Allocate(0, 4096)
	require.NoError(t, err)
	facts, err := cufile.Driver()
	require.NoError(t, err)
	path, flags := filepath.Join(t.TempDir(), "warm"), os.O_RDWR|os.O_CREATE
	file, err := os.OpenFile(path, flags|unix.O_DIRECT, 0o600)
	if err != nil { // tmpfs of older kernels
		file, err = os.OpenFile(path, flags, 0o600)
	}
	require.NoError(t, err)
	require.NoError(t, file.Truncate(4096))
	handle, err := cufile.Adopt(int(file.Fd()))
	require.NoError(t, err)
	require.NoError(t, cufile.Keep(0, addr, 4096))
	one := &cufile.Run{File: handle, Base: addr, Bytes: 4096}
	_, err = cufile.Move(one)
	require.NoError(t, err)
	if facts.Batches {
		b, into := cufile.NewBatches(1), make([]cufile.Ended, 1)
		require.NoError(t, b.Post(one, 0))
		require.Eventually(t, func() bool { return b.Collect(into, time.Millisecond) == 1 }, patience, time.Millisecond)
		b.Close()
	}
	require.NoError(t, cufile.Unkeep(0, addr, 4096))
	cufile.Drop(handle)
	require.NoError(t, file.Close())
	require.NoError(t, driver.Platform{}.Free(addr, 4096))
}
