//go:build cgo

package cuda

import (
	"fmt"
	"maps"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/transporttest"
)

// TestConformance runs the suite over memory of devices and of the host, with an emulated driver in a child process.
// Copies run late, and pairs of memories have drivers of several ages: with the batch call of 8 arguments, with that of
// 9, without. Apart are engines that open each other's memory as two processes do: by legacy handles, and by
// descriptors of chunks. Package tests/go/samegpu has two processes.
func TestConformance(t *testing.T) {
	own := fake.Settings{"OWN": "1"}
	for name, c := range map[string]struct {
		local, remote *transporttest.Device
		apart         bool
		library       fake.Driver
		own           fake.Settings
		run           func(*testing.T, func(*testing.T) transporttest.Harness)
	}{
		"CudaCuda":   {onDevice(0), onDevice(fake.Last()), false, fake.Driver{}, nil, transporttest.Again},
		"CudaKernel": {aligned(0), aligned(fake.Last()), false, fake.Driver{}, nil, transporttest.Again},
		"CudaHost":   {onDevice(0), onHost(), false, fake.Driver{Version: 12080}, nil, transporttest.Again},
		"HostLegacy": {nil, onDevice(1), true, fake.Driver{Version: 12040}, own, transporttest.Again},
		"CudaChunks": {onDevice(0), inChunks(fake.Last()), true, fake.Driver{}, nil, transporttest.Run},
	} {
		t.Run(name, func(t *testing.T) {
			settings := fake.Settings{"DELAY_US": "5", "SEED": fmt.Sprint(rand.Int31())}
			maps.Copy(settings, c.own)
			t.Logf("settings %v", settings)
			fake.Run(t, c.library, settings, func(t *testing.T, _ *fake.Loaded) {
				c.run(t, func(*testing.T) transporttest.Harness {
					kernel := Copying{CopyKernel: name == "CudaKernel"}
					return suiteOf(c.local, c.remote, Settings{apart: c.apart, Copying: kernel})
				})
			})
		})
	}
}

// TestConformanceOnDevices is the suite over the first and the last GPU of this machine, for `make check-gpu`.
func TestConformanceOnDevices(t *testing.T) {
	devices, err := driver.Platform{}.Devices()
	if err != nil || len(devices) == 0 {
		t.Skipf("no GPU here: %v", err)
	}
	first, last := onDevice(0), onDevice(len(devices)-1)
	t.Run("CudaCuda", func(t *testing.T) {
		transporttest.Run(t, func(*testing.T) transporttest.Harness { return suite(first, last, false) })
	})
	t.Run("CudaKernel", func(t *testing.T) {
		transporttest.Again(t, func(*testing.T) transporttest.Harness {
			return suiteOf(aligned(0), aligned(len(devices)-1), Settings{Copying: Copying{CopyKernel: true}})
		})
	})
	t.Run("CudaHost", func(t *testing.T) {
		transporttest.Run(t, func(*testing.T) transporttest.Harness { return suite(first, onHost(), false) })
	})
}

// suite opens transports in this process, with operands in two memories; nil is the host's.
func suite(local, remote *transporttest.Device, apart bool) transporttest.Harness {
	return suiteOf(local, remote, Settings{apart: apart})
}

func suiteOf(local, remote *transporttest.Device, settings Settings) transporttest.Harness {
	return transporttest.Harness{Check: Factory{}.Check, Local: local, Remote: remote, Warm: warm,
		Patience: 10 * time.Second,
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			tr, err := Factory{}.Open(t.Context(), settings, c.Host, c.Sink)
			require.NoError(t, err)
			return tr
		}}
}

func onDevice(ordinal int) *transporttest.Device {
	return transporttest.OnPlatform(driver.Platform{}, ordinal)
}

// onHost is memory of the host at the peer's end, where nil would be as our end.
func onHost() *transporttest.Device {
	return &transporttest.Device{Kind: mem.Host, Location: "cpu:0",
		Allocate: func(t *testing.T, size int) uintptr {
			addr, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE,
				unix.MAP_SHARED|unix.MAP_ANON)
			require.NoError(t, err)
			return uintptr(addr)
		},
		Free: func(addr uintptr, size int) {
			if err := unix.MunmapPtr(mem.Pointer(addr), uintptr(size)); err != nil {
				panic(err)
			}
		},
		Load:  func(into []byte, addr uintptr) { copy(into, mem.Bytes(addr, len(into))) },
		Store: func(addr uintptr, from []byte) { copy(mem.Bytes(addr, len(from)), from) }}
}

// inChunks is memory of the VMM, as an expandable segment of PyTorch.
func inChunks(ordinal int) *transporttest.Device {
	d := onDevice(ordinal)
	chunks := func(size int) int { return (size + fake.ChunkBytes - 1) / fake.ChunkBytes }
	d.Allocate = func(t *testing.T, size int) uintptr {
		gpu, err := fake.Load()
		require.NoError(t, err)
		addr := gpu.Chunks(ordinal, chunks(size), fake.PosixFd)
		require.NotZero(t, addr)
		return addr
	}
	d.Free = func(addr uintptr, size int) {
		gpu, err := fake.Load()
		if err == nil {
			err = gpu.FreeChunks(addr, chunks(size))
		}
		if err != nil {
			panic(err)
		}
	}
	return d
}

// warm makes the contexts and streams that stay.
func warm(t *testing.T) {
	devices, err := driver.Platform{}.Devices()
	require.NoError(t, err)
	for ordinal := range devices {
		addr, err := driver.Platform{}.Allocate(ordinal, 4096)
		require.NoError(t, err)
		require.NoError(t, driver.Platform{}.Free(addr, 4096))
	}
}
