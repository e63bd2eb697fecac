//go:build cgo

package cuda

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	fakenvml "github.com/tent-engine/tent/tests/fakes/nvml"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/transporttest"
)

// TestConformanceBetweenHosts runs the suite with engines that meet as those of two hosts in one NVLink domain do.
// Package tests/go/twohosts has two processes.
func TestConformanceBetweenHosts(t *testing.T) {
	for name, c := range map[string]struct {
		local *transporttest.Device
		run   func(*testing.T, func(*testing.T) transporttest.Harness)
	}{
		"CudaFabric": {onDevice(0), transporttest.Run},
		"HostFabric": {nil, transporttest.Again},
	} {
		t.Run(name, func(t *testing.T) {
			inDomain(t, fake.Settings{"DELAY_US": "5", "SEED": fmt.Sprint(rand.Int31())},
				func(t *testing.T, _ *fake.Loaded) {
					c.run(t, func(*testing.T) transporttest.Harness { return betweenHosts(c.local, inFabric(1)) })
				})
		})
	}
}

// inDomain carries a test out where devices are in an NVLink domain and give fabric handles.
func inDomain(t *testing.T, s fake.Settings, test func(*testing.T, *fake.Loaded)) {
	if s == nil {
		s = fake.Settings{}
	}
	s["IMEX"] = "1"
	t.Logf("settings %v", s)
	fake.RunWith(t, fake.Driver{}, s, []string{fakenvml.Env + "=" + fakenvml.Library(t)}, test)
}

func betweenHosts(local, remote *transporttest.Device) transporttest.Harness {
	return transporttest.Harness{Check: FabricFactory{}.Check, Local: local, Remote: remote, Warm: warm,
		Patience: 10 * time.Second,
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			tr, err := FabricFactory{}.Open(t.Context(), FabricSettings{HandleType: handlesFabric}, c.Host,
				c.Sink)
			require.NoError(t, err)
			return tr
		}}
}

// inFabric is memory that the transport allocates.
func inFabric(ordinal int) *transporttest.Device {
	d := onDevice(ordinal)
	d.Allocate = func(t *testing.T, size int) uintptr {
		addr, err := driver.AllocateChunk(ordinal, uint64(size), driver.Descriptors|driver.FabricToo)
		require.NoError(t, err)
		return addr
	}
	return d
}
