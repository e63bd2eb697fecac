package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The older spelling of the place of metrics counts alone, and as a whole.
func TestThePlaceOfMetricsHasOneSpelling(t *testing.T) {
	const listen, port, host = "metrics/listen", "metrics/http_port", "metrics/http_host"
	for _, c := range []struct {
		given map[string]any
		idle  map[string]string
	}{
		{map[string]any{}, map[string]string{}},
		{map[string]any{listen: "9400"}, map[string]string{}},
		{map[string]any{port: 9400}, map[string]string{}},
		{map[string]any{port: 9400, host: "10.0.0.5"}, map[string]string{}},
		{map[string]any{host: "127.0.0.1"}, map[string]string{}}, // as without it
		{map[string]any{host: "10.0.0.5"}, map[string]string{host: port + " is 0"}},
		{map[string]any{listen: "9400", port: 9401}, map[string]string{port: listen + " is set"}},
		{map[string]any{listen: "9400", port: 9401, host: "10.0.0.5"},
			map[string]string{port: listen + " is set", host: listen + " is set"}},
	} {
		loaded, err := Load(birdsOnly, c.given)
		require.NoError(t, err)
		idle := map[string]string{}
		for _, e := range loaded.Inactive() {
			require.False(t, e.Active)
			idle[e.Key] = e.Why
		}
		require.Equal(t, c.idle, idle, "%v", c.given)
	}
}
