package config

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tests/py/test_quantities.py reads the same table.
func TestTheTableOfSizesAndTimes(t *testing.T) {
	text, err := os.ReadFile("testdata/quantities.json")
	require.NoError(t, err)
	var table struct {
		Sizes   map[string]uint64        `json:"sizes"`
		NoSizes []string                 `json:"no sizes"`
		Times   map[string]time.Duration `json:"times"`
		NoTimes []string                 `json:"no times"`
	}
	require.NoError(t, json.Unmarshal(text, &table))
	require.NotEmpty(t, table.Sizes)
	require.NotEmpty(t, table.Times)
	for text, want := range table.Sizes {
		n, err := ParseSize(text)
		require.NoError(t, err)
		require.Equal(t, want, n, "%q", text)
	}
	for text, want := range table.Times {
		d, err := ParseDuration(text)
		require.NoError(t, err)
		require.Equal(t, want, d, "%q", text)
	}
	for _, text := range table.NoSizes {
		_, err := ParseSize(text)
		require.ErrorContains(t, err, `is not a size such as 4096, "64KiB"`, "%q", text)
	}
	for _, text := range table.NoTimes {
		_, err := ParseDuration(text)
		require.ErrorContains(t, err, `is not a time with its unit such as "20ms"`, "%q", text)
	}
}

func TestSettingsTakeSizesAndTimesAsTexts(t *testing.T) {
	c, err := Load(birdsOnly, []byte(`{"inline_bytes": "64 KiB", "transfer_stall_timeout": "1.5min",
		"rail_suspect_ms": "7000us", "policy": [{"segment_type": "memory", "min_size": "8MB", "max_size": "1G"}]}`))
	require.NoError(t, err)
	require.Equal(t, uint64(64<<10), c.Engine.InlineBytes)
	require.Equal(t, 90*time.Second, c.Engine.TransferStallTimeout)
	require.Equal(t, 7*time.Millisecond, c.Engine.RailSuspectAfter)
	require.Equal(t, [2]uint64{8e6, 1 << 30}, [2]uint64{c.Engine.Policies[0].MinSize, c.Engine.Policies[0].MaxSize})
	for text, want := range map[string]string{
		`{"inline_bytes": "64 apples"}`:                                `inline_bytes: "64 apples" is not a size`,
		`{"inline_bytes": "2GiB"}`:                                     `is out of range: it takes an integer from 0 to 1073741824 B, or a text like "64KiB"`,
		`{"rail_suspect_ms": "5"}`:                                     `rail_suspect_ms: "5" is not a time with its unit`,
		`{"rail_suspect_ms": "1500us"}`:                                `"1500us" is not a whole number of ms`,
		`{"max_pending_requests": "5s"}`:                               `max_pending_requests: "5s" has the wrong type`,
		`{"policy": [{"segment_type": "memory", "min_size": "2m s"}]}`: `min_size: "2m s" is not a size`,
	} {
		_, err := Load(birdsOnly, []byte(text))
		require.ErrorContains(t, err, want)
	}
}
