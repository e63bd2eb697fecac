package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// withVariables loads settings of rails and of upstream's keys from an environment.
func withVariables(values map[string]string, arguments ...any) (*Config, error) {
	o := Options{Transports: WithRails("rdma", "tcp"), Env: func(name string) string { return values[name] }}
	return Load(o, arguments...)
}

func TestVariablesOfUpstreamStandForOneKey(t *testing.T) {
	c, err := withVariables(map[string]string{"MC_GID_INDEX": "3", "MC_TE_FILTERS": " mlx5_0, mlx5_1,",
		"MC_IB_TC": "-1", "MC_STRICT_LOCAL_NUMA": "on", "MC_CUSTOM_TOPO_JSON": "/etc/topology.json",
		"MC_SLICE_SIZE": "131072", "MC_MTU": " "})
	require.NoError(t, err)
	for key, want := range map[string]any{"transports/rdma/device/gid_index": int64(3),
		"topology/rdma_whitelist": []string{"mlx5_0", "mlx5_1"}, "transports/rdma/strict_local_numa": true,
		"topology/custom_json_path": "/etc/topology.json", "transports/rdma/workers/block_size": int64(131072)} {
		e := entry(t, c, key)
		require.Equal(t, want, e.Value, key)
		require.Regexp(t, "^environment MC_", e.Origin, key)
	}
	for _, key := range []string{"transports/rdma/endpoint/traffic_class", "transports/rdma/endpoint/path_mtu"} {
		require.Equal(t, OriginDefault, entry(t, c, key).Origin, key)
	}
}

func TestTheOrderOfVariablesIsUpstreams(t *testing.T) {
	values := map[string]string{"MC_TENT_CONF": `{"transports/rdma/device/gid_index": 1}`}
	gid := func(want int64, arguments ...any) {
		t.Helper()
		c, err := withVariables(values, arguments...)
		require.NoError(t, err)
		require.Equal(t, want, entry(t, c, "transports/rdma/device/gid_index").Value)
	}
	gid(1)
	values["MC_GID_INDEX"] = "2"
	gid(2)
	values["NCCL_IB_GID_INDEX"] = "3"
	gid(3)
	values["TENT_CONF"] = `{"transports/rdma/device/gid_index": 4}`
	gid(4)
	gid(5, `{"transports/rdma/device/gid_index": 5}`)
}

func TestVariablesOfMetricsAreWeak(t *testing.T) {
	values := map[string]string{"TENT_METRICS_HTTP_PORT": "9100", "TENT_METRICS_ENABLED": "yes"}
	for tree, want := range map[string]int64{"": 9100, `{"metrics": {"http_port": 9200}}`: 9200} {
		values["MC_TENT_CONF"] = tree
		c, err := withVariables(values)
		require.NoError(t, err)
		require.Equal(t, want, entry(t, c, "metrics/http_port").Value)
		require.Equal(t, true, entry(t, c, "metrics/enabled").Value)
	}
}

func TestVariablesOfOneNumberAgree(t *testing.T) {
	c, err := withVariables(map[string]string{"MC_NUM_QP_PER_EP": "4", "MC_WORKERS_PER_CTX": "4"})
	require.NoError(t, err)
	require.Equal(t, int64(4), entry(t, c, "transports/rdma/num_lanes").Value)
	_, err = withVariables(map[string]string{"MC_NUM_QP_PER_EP": "2", "MC_WORKERS_PER_CTX": "4"})
	require.ErrorContains(t, err, "environment MC_NUM_QP_PER_EP")
	require.ErrorContains(t, err, "environment MC_WORKERS_PER_CTX")
}

func TestTCPIsForcedUnlessTheVariableIsOff(t *testing.T) {
	for text, forced := range map[string]bool{"1": true, "true": true, "please": true, "0": false, "off": false,
		"": false} {
		c, err := withVariables(map[string]string{"MC_FORCE_TCP": text,
			"MC_TENT_CONF": `{"transports/tcp/enable": false}`})
		require.NoError(t, err)
		require.Equal(t, forced, c.Enabled("tcp"), text)
		require.Equal(t, !forced, c.Enabled("rdma"), text)
	}
}

func TestAWrongVariableIsNamed(t *testing.T) {
	for name, c := range map[string][2]string{
		"MC_IB_SL":                   {"high", "transports/rdma/endpoint/service_level"},
		"MC_MTU":                     {"9000", "transports/rdma/endpoint/path_mtu"},
		"MC_DISABLE_GPU_DIRECT_RDMA": {"perhaps", "transports/rdma/disable_gpu_direct_rdma"},
	} {
		_, err := withVariables(map[string]string{name: c[0]})
		require.ErrorContains(t, err, "environment "+name)
		require.ErrorContains(t, err, c[1])
	}
}

func TestEveryVariableHasAKeyThatThereIs(t *testing.T) {
	c, err := withVariables(nil)
	require.NoError(t, err)
	for _, v := range ofUpstream() {
		require.NotNil(t, entry(t, c, v.key), v.name)
		require.Contains(t, Variables(), v.name)
	}
	require.Subset(t, Variables(), []string{"TENT_CONF", "MC_TENT_CONF", "TENT_FAULTS"})
}
