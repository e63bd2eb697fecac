package config

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTableIsSound(t *testing.T) {
	c := newConfig(tcpOnly)
	require.Len(t, c.index, len(c.settings), "a key is listed twice")
	for _, s := range c.settings {
		if s.Default == nil {
			require.Equal(t, Structure, s.Takes.Kind, s.Key)
			continue
		}
		again, err := s.Takes.convert(s.Default)
		require.NoError(t, err, s.Key)
		require.Equal(t, s.Default, again, "%s: its default is not in canonical form", s.Key)
		require.NotEmpty(t, s.Help, s.Key)
		require.True(t, strings.HasSuffix(s.Help, "."), s.Key)
		require.NotEmpty(t, s.Source, s.Key)
	}
	for key := range c.bound {
		require.Contains(t, c.index, key, "a field is bound to a key that does not exist")
	}
}

// Every field of the typed structs must be filled by a key, or it would silently stay zero.
func TestEveryFieldIsBound(t *testing.T) {
	c := newConfig(tcpOnly)
	pointers := map[any]bool{}
	for _, p := range c.bound {
		if p != nil {
			pointers[p] = true
		}
	}
	for _, of := range []any{&c.Engine, &c.TCP, &c.File, c.Rails["tcp"], c.Rails["rdma"]} {
		v := reflect.ValueOf(of).Elem()
		for i := range v.NumField() {
			require.True(t, pointers[v.Field(i).Addr().Interface()], "%s.%s", v.Type(), v.Type().Field(i).Name)
		}
	}
}

func TestDefaultsLoadAsArguments(t *testing.T) {
	document := map[string]any{}
	for _, s := range known(tcpOnly) {
		if s.Default != nil && !strings.HasSuffix(s.Key, "/enable") {
			document[s.Key] = s.Default
		}
	}
	text, err := json.Marshal(document)
	require.NoError(t, err)
	given, err := Load(tcpOnly, text)
	require.NoError(t, err)
	plain, err := Load(tcpOnly)
	require.NoError(t, err)
	require.Equal(t, plain.Engine, given.Engine)
	require.Equal(t, plain.TCP, given.TCP)
	require.Equal(t, plain.Rails, given.Rails)
}

func TestDistanceCountsEdits(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"", "ab", 2}, {"kitten", "sitting", 3}, {"lanes", "lane", 1}, {"ab", "ba", 2}} {
		require.Equal(t, test.want, distance(test.a, test.b), "%q %q", test.a, test.b)
		require.Equal(t, test.want, distance(test.b, test.a), "%q %q", test.b, test.a)
	}
}

// Whatever comes in by TENT_CONF, the answer is settings or an error that is ours.
func FuzzLoadNeverPanics(f *testing.F) {
	f.Add(`{"transports": {"tcp": {"lanes": 2}}}`)
	f.Add(`{"qos": {"version": 1, "defaults": {"max_inflight_bytes": "1 MiB"}}}`)
	f.Add(`{"policy": [{"segment_type": "file", "priority": "high", "intent_type": 3}]}`)
	f.Add(`{"topology/priority_matrix": {"cpu:0": [["a"], []]}, "transports": null}`)
	f.Add(`{"transports/rdma/numa_penalties": [1, 2e3], "": {"": {}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Load(tcpOnly, []byte(text))
		if err == nil {
			require.NotEmpty(t, c.Dump())
		}
	})
}

func TestNamesOfSharedMemory(t *testing.T) {
	for _, name := range []string{"", "/mooncake_rdma_slots", "mooncake_rdma_slots", "/a"} {
		c, err := Load(tcpOnly, map[string]any{"transports/tcp/shared_quota_shm_path": name})
		require.NoError(t, err, name)
		require.Equal(t, name, c.RailOf("tcp").SharedPath)
	}
	for _, name := range []any{"/", "/dev/shm/slots", "//x", "..", "/a/../b", "a\x00b", strings.Repeat("x", 300), 5} {
		_, err := Load(tcpOnly, map[string]any{"transports/tcp/shared_quota_shm_path": name})
		require.ErrorContains(t, err, `transports/tcp/shared_quota_shm_path`, name)
		require.ErrorContains(t, err, `as in "/mooncake_rdma_slots"`, name)
	}
}
