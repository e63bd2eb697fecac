package config

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
)

func TestPoliciesAreReadWhole(t *testing.T) {
	c, err := Load(birdsOnly, `{"policy": [{"name": "all", "segment_type": "memory", "same_machine": false, "local_memory": "cuda",
		"remote_memory": "*", "min_size": 1, "max_size": 1048576, "priority": "low", "intent_type": "MIGRATION",
		"transports": ["pigeons", "rdma"], "devices": ["eth0", "eth1"]},
		{"segment_type": "file", "priority": 1, "devices": ["eth1"], "traffic_class": 3, "qp_pool": "gold"}]}`)
	require.NoError(t, err)
	cuda, other := mem.Cuda, false
	require.Equal(t, []Policy{
		{Name: "all", ID: PolicyID("all"), SameMachine: &other, Local: &cuda, MinSize: 1, MaxSize: 1 << 20, Class: 2,
			Intent:     3,
			Transports: []string{"birds", "rdma"}, Devices: []string{"eth0",
				"eth1"}, DeviceMask: 0b11, label: `policy "all"`},
		{File: true, Class: 1, Intent: -1, Devices: []string{"eth1"}, DeviceMask: 0b10,
			Idle:  []string{"qp_pool", "traffic_class"},
			label: "policy [1]"},
	}, c.Engine.Policies)
	require.Equal(t, []string{"eth0", "eth1"}, c.Devices())
	e := entry(t, c, "policy")
	require.True(t, e.Active)
	require.Equal(t,
		"parts of it have no effect, as settings of a transport divide its queue pairs among classes: "+
			"entry 1: qp_pool, traffic_class",
		e.Why)
	require.Len(t, c.Inactive(), 1, "it is logged once")
	legacy, err := Load(birdsOnly, `{"policy": [{"segment_type": "file"}], "use_legacy_transport_selection": true}`)
	require.NoError(t, err)
	require.False(t, entry(t, legacy, "policy").Active)
	require.Equal(t, uint64(0xaf63dc4c8601ec8c), PolicyID("a"), "64-bit FNV-1a")
	require.Zero(t, PolicyID(""))
}

// Upstream skips a policy that it cannot read, or drops a part of it; a mistake is an error here.
func TestMistakesInPoliciesAreErrors(t *testing.T) {
	for name, c := range map[string][2]string{
		"InvalidIntentPolicyIsSkipped": {`{"segment_type": "memory", "intent_type": "sleep"}`,
			`"sleep" is none of them`},
		"PolicyLinkLayerQoSOutOfRangeIgnored": {`{"segment_type": "memory", "service_level": 16}`,
			`service_level: 16 is out of range`},
		"PolicyQpPoolEmptyOrNonStringIsUnset": {`{"segment_type": "memory", "qp_pool": 5}`,
			`qp_pool: 5 has the wrong type`},
		"unknown transport": {`{"segment_type": "memory", "transports": ["birds", "bees"]}`,
			`entry 0: transports: no transport is called "bees"; known are birds, rdma, io-uring, ub`},
		"a transport twice": {`{"segment_type": "memory", "transports": ["rdma", "birds", "rdma"]}`,
			`entry 0: transports: "rdma" is there twice`},
		"a transport twice, by two names": {`{"segment_type": "memory", "transports": ["pigeons", "birds"]}`,
			`entry 0: transports: "birds" is there twice`},
		"sizes in the wrong order": {`{"segment_type": "memory", "min_size": 2, "max_size": 1}`,
			`max_size 1 is less than min_size 2`},
		"unknown memory": {`{"segment_type": "memory", "local_memory": "gpu"}`,
			`it takes one of cpu, cuda, rocm, npu, tpu, *`},
		"no segment type": {`{"name": "x"}`, `"segment_type" is missing`},
	} {
		_, err := Load(birdsOnly, `{"policy": [`+c[0]+`]}`)
		require.ErrorContains(t, err, c[1], name)
	}
}

func TestTenantsAreShownAsInactive(t *testing.T) {
	c, err := Load(birdsOnly, `{"qos": {"version": 1, "tenants": [{"name": "a"}]}}`)
	require.NoError(t, err)
	require.Equal(t, "nothing in this build reads it", entry(t, c, "qos").Why)
	require.Len(t, c.Inactive(), 1)
}

func TestHIPIsROCm(t *testing.T) {
	c, err := Load(birdsOnly, map[string]any{"policy": []any{
		map[string]any{"name": "amd", "segment_type": "memory", "local_memory": "hip", "remote_memory": "*"}}})
	require.NoError(t, err)
	require.Equal(t, mem.Rocm, *c.Engine.Policies[0].Local)
	require.Nil(t, c.Engine.Policies[0].Remote)
}
