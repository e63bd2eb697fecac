package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A long text that stands where a key or a value belongs is named, and not repeated with all of its bytes. The nearest
// key to it is found in no time.
func TestALongTextIsNotRepeatedInItsError(t *testing.T) {
	long := strings.Repeat("é", 1<<19)
	for _, settings := range []map[string]any{
		{long: 1},
		{"transports": map[string]any{long: 1}},
		{"metrics/listen": long},
		{"metrics/listen": "127.0.0.1:" + long},
		{"plugins": []any{long}},
		{"transports/birds/shared_quota_shm_path": long},
		{"policy": []any{map[string]any{"segment_type": "memory", long: 1}}},
		{"policy": []any{map[string]any{"segment_type": "memory", "transports": []any{long}}}},
	} {
		_, err := Load(Options{Transports: WithRails("birds")}, settings)
		require.Error(t, err)
		require.Less(t, len(err.Error()), 1024)
		require.Equal(t, strings.ToValidUTF8(err.Error(), ""), err.Error())
	}
}
