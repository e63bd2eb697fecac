package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheSettingsOfCAreReadAsAllOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settings.json")
	for text, cause := range map[string]string{
		"{\"security\": {\"data\": \"sign\"},\n\"security\": {}}": path + ": line 2: security is given twice",
		"{\n7}": path + ": line 2 is not JSON",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := Document(path)
		require.ErrorContains(t, err, cause)
	}
	require.NoError(t, os.WriteFile(path, []byte(`{"a": {"b": 9223372036854775807}}`), 0o600))
	tree, err := Document(path)
	require.NoError(t, err)
	require.Equal(t, map[string]any{"a": map[string]any{"b": json.Number("9223372036854775807")}}, tree)

	for text, value := range map[string]any{"": "", "eth0": "eth0", "7": json.Number("7"), `"7"`: "7", "[true]": []any{true},
		"{": "{", "1 2": "1 2"} {
		got, err := Value(text)
		require.NoError(t, err)
		require.Equal(t, value, got, text)
	}
	_, err = Value(`{"data": "sign", "data": "auth"}`)
	require.ErrorContains(t, err, "data is given twice")
}
