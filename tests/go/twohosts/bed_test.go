//go:build cgo

// Package twohosts tests whole engines in two processes that count as those of two hosts, in one domain of multi-node
// NVLink. The driver and NVML are emulated. Where nothing else is said only mnnvl takes part, so no other transport
// hides its failures.
package twohosts

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	fakenvml "github.com/tent-engine/tent/tests/fakes/nvml"
	bed "github.com/tent-engine/tent/tests/gpubed"
	"github.com/tent-engine/tent/tests/netbed"
)

func TestMain(m *testing.M) { bed.Main(m) }

// address is that of all engines: two machines never meet at one of loopback.
const address = "10.99.0.1"

// keyFile is the variable of the environment with the path of the cluster's key.
const keyFile = "TENT_TEST_KEY"

// settings are those of an engine that reaches GPUs of other hosts by mnnvl alone. A transfer has several slices, so
// that something can happen between them.
func settings() map[string]any {
	return map[string]any{"staging/enable": false, "rpc_server_hostname": address,
		"security/cluster_key": os.Getenv(keyFile), "transports/mnnvl/slice_bytes": 1 << 20}
}

// alone are settings with no other transport.
func alone() map[string]any {
	s := settings()
	s["transports/tcp/enable"] = false
	return s
}

// start starts a process on another host, with more of an environment.
func start(t *testing.T, settings map[string]any, more ...string) *bed.Peer {
	c, err := netbed.StartOnOtherMachine(func(c *exec.Cmd) { c.Env = append(c.Env, more...) })
	require.NoError(t, err)
	return bed.Start(t, c, settings)
}

// inDomain carries a test out in a process of a host in the domain, with more of an environment.
func inDomain(t *testing.T, s fake.Settings, test func(t *testing.T, gpu *fake.Loaded), environment ...string) {
	if s == nil {
		s = fake.Settings{}
	}
	s["IMEX"] = "1"
	more := append(environment, fakenvml.Env+"="+fakenvml.Library(t))
	if os.Getenv(keyFile) == "" { // we are not the child
		t.Logf("settings %v", s)
		if err := netbed.EnterAlone(address); errors.Is(err, netbed.ErrUnavailable) {
			t.Skip(err)
		} else {
			require.NoError(t, err)
		}
		key, err := netbed.ClusterKey(t.TempDir())
		require.NoError(t, err)
		more = append(more, keyFile+"="+key)
	}
	fake.RunWith(t, fake.Driver{}, s, more, test)
}
