package ascend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/ascend"
	"github.com/tent-engine/tent/transports/ascend/acl"
	"github.com/tent-engine/tent/transports/transporttest"
)

// TestConformance runs the suite over memory of NPUs and pinned memory of the host. A child process has the emulated
// runtime, the emulated HIXL, and the shim of `make ascend-shim`. faults_test.go has two processes.
func TestConformance(t *testing.T) {
	for name, c := range map[string]struct {
		local, remote func(*fake.Loaded) *transporttest.Device
		run           func(*testing.T, func(*testing.T) transporttest.Harness)
	}{
		"NPUAndNPU":  {onNPU, onNPU, transporttest.Run},
		"HostAndNPU": {pinned, onNPU, transporttest.Again},
	} {
		t.Run(name, func(t *testing.T) {
			fake.RunLinked(t, nil, nil, func(t *testing.T, npu *fake.Loaded, h *fake.Linked) {
				c.run(t, func(*testing.T) transporttest.Harness { return suite(c.local(npu), c.remote(npu), h) })
			})
		})
	}
}

// suite opens transports in this process, with operands in two memories.
func suite(local, remote *transporttest.Device, h *fake.Linked) transporttest.Harness {
	return transporttest.Harness{Check: Factory{}.Check, Local: local, Remote: remote, Warm: warm,
		NoSelf: "HIXL connects no engine with itself",
		Pinned: "HIXL has pinned the pages, and goes on to reach them",
		Open: func(t *testing.T, c transporttest.Config) transport.Transport {
			tr, err := Factory{}.Open(t.Context(), Settings{}, c.Host, c.Sink)
			require.NoError(t, err)
			return tr
		},
		Blackhole: func(*testing.T, *transporttest.Node, transport.Rail) (heal func()) {
			h.Silence(true)
			return func() { h.Silence(false) }
		},
		Patience: 20 * time.Second}
}

func onNPU(*fake.Loaded) *transporttest.Device { return transporttest.OnPlatform(acl.Platform{}, 0) }

// pinned is memory of the host that HIXL takes.
func pinned(npu *fake.Loaded) *transporttest.Device {
	return &transporttest.Device{Kind: mem.Host, Location: "cpu:0",
		Allocate: func(t *testing.T, size int) uintptr {
			addr := npu.MallocHost(size)
			require.NotZero(t, addr)
			return addr
		},
		Free: func(addr uintptr, _ int) {
			if err := npu.FreeHost(addr); err != nil {
				panic(err)
			}
		},
		Load:  func(into []byte, addr uintptr) { copy(into, mem.Bytes(addr, len(into))) },
		Store: func(addr uintptr, from []byte) { copy(mem.Bytes(addr, len(from)), from) }}
}

// warm makes the contexts that stay.
func warm(t *testing.T) {
	addr, err := acl.Platform{}.Allocate(0, 4096)
	require.NoError(t, err)
	require.NoError(t, acl.Platform{}.Free(addr, 4096))
}
