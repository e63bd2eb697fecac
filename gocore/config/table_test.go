package config

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSettingsAreSound(t *testing.T) {
	c := newConfig(birdsOnly)
	for _, s := range c.settings {
		require.NotEmpty(t, s.Help, s.Key)
		require.True(t, strings.HasSuffix(s.Help, "."), s.Key)
		require.NotEmpty(t, s.Source, s.Key)
		for _, other := range s.atMost {
			require.Contains(t, c.index, other, s.Key)
		}
		if s.same != "" {
			require.Contains(t, c.index, s.same, s.Key)
		}
		if s.Default == nil {
			require.True(t, s.Takes.Kind == Structure || s.same != "", s.Key)
			continue
		}
		again, err := s.Takes.convert(s.Default)
		require.NoError(t, err, s.Key)
		require.Equal(t, s.Default, again, "%s: its default is not in canonical form", s.Key)
	}
	for key := range c.targets {
		require.Contains(t, c.index, key, "a field is bound to a key that does not exist")
	}
}

// A key of upstream's that something reads has a struct, and no line any more.
func TestNoLineOfInertIsRead(t *testing.T) {
	c := newConfig(birdsOnly)
	for _, s := range inert() {
		require.NotContains(t, c.targets, s.Key)
	}
}

func TestWrongTagsAreFoundByAnyLoad(t *testing.T) {
	for want, of := range map[string]any{
		`"1-16" is no range`: struct {
			N int `key:"n" takes:"1-16"`
		}{},
		`invalid syntax`: struct {
			N int `key:"n" takes:"1..x"`
		}{},
		`"a prime" says nothing`: struct {
			N int `key:"n" takes:"1..9, a prime"`
		}{},
		`"yes" describes no values`: struct {
			B bool `key:"b" takes:"yes"`
		}{},
	} {
		func() {
			defer func() { require.Contains(t, recover(), want) }()
			newConfig(Options{Transports: []Transport{{Name: "x", Settings: of}}})
		}()
	}
	_, err := parseInert([]string{"key", "int", "1..2"})
	require.ErrorContains(t, err, "3 columns")
}

func TestDefaultsLoadAsArguments(t *testing.T) {
	document := map[string]any{}
	for _, s := range newConfig(birdsOnly).settings {
		if s.Default != nil && !strings.HasSuffix(s.Key, "/enable") {
			document[s.Key] = s.Default
		}
	}
	text, err := json.Marshal(document)
	require.NoError(t, err)
	given, err := Load(birdsOnly, text)
	require.NoError(t, err)
	plain, err := Load(birdsOnly)
	require.NoError(t, err)
	require.Equal(t, plain.Engine, given.Engine)
	require.Equal(t, plain.SettingsOf("birds"), given.SettingsOf("birds"))
}

func TestDistanceCountsEdits(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"abc", "", 3}, {"", "ab", 2}, {"kitten", "sitting", 3}, {"lanes", "lane", 1},
		{"ab", "ba", 1}, {"tcp", "tpc", 1}, {"ca", "abc", 3}, {"abcd", "badc", 2},
	} {
		require.Equal(t, test.want, distance(test.a, test.b), "%q %q", test.a, test.b)
		require.Equal(t, test.want, distance(test.b, test.a), "%q %q", test.b, test.a)
	}
}

// Any text in TENT_CONF makes settings, or an error of ours.
func FuzzLoadNeverPanics(f *testing.F) {
	f.Add(`{"transports": {"birds": {"lanes": 2}}}`)
	f.Add(`{"qos": {"version": 1, "defaults": {"max_inflight_bytes": "1 MiB"}}}`)
	f.Add(`{"policy": [{"segment_type": "file", "priority": "high", "intent_type": 3}]}`)
	f.Add(`{"topology/priority_matrix": {"cpu:0": [["a"], []]}, "transports": null}`)
	f.Add(`{"transports/rdma/numa_penalties": [1, 2e3], "": {"": {}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Load(birdsOnly, []byte(text))
		if err == nil {
			require.NotEmpty(t, c.Dump())
		}
	})
}

func TestNamesOfSharedMemory(t *testing.T) {
	for _, name := range []string{"", "/mooncake_rdma_slots", "mooncake_rdma_slots", "/a"} {
		c, err := Load(birdsOnly, map[string]any{"transports/birds/shared_quota_shm_path": name})
		require.NoError(t, err, name)
		require.Equal(t, name, c.RailOf("birds").SharedPath)
	}
	for _, name := range []any{"/", "/dev/shm/slots", "//x", "..", "/a/../b", "a\x00b", strings.Repeat("x", 300), 5} {
		_, err := Load(birdsOnly, map[string]any{"transports/birds/shared_quota_shm_path": name})
		require.ErrorContains(t, err, `transports/birds/shared_quota_shm_path`, name)
		require.ErrorContains(t, err, `as in "/mooncake_rdma_slots"`, name)
	}
}
