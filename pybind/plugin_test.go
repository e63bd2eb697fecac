package pybind

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A plug-in reaches Python by the settings of Engine and of tent doctor, and needs nothing else of the binding.
func TestPlugInsAreOpenedAndFound(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.Chmod(folder, 0o755))
	path := filepath.Join(folder, "inside.so")
	out, err := exec.Command("gcc", "-std=c99", "-shared", "-fPIC", "-pthread", "-I../transports/plugin/include",
		"../transports/plugin/example/inside.c", "-o", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Chmod(path, 0o755))
	bad := filepath.Join(folder, "libbad.so")
	require.NoError(t, os.WriteFile(bad, []byte("no library"), 0o600))
	settings, err := json.Marshal(map[string]any{"plugins": []string{folder}})
	require.NoError(t, err)

	id, err := Open("", string(settings), "", "a")
	require.NoError(t, err)
	e, err := get(id)
	require.NoError(t, err)
	require.Equal(t, []string{"inside", "bad"}, e.Transports()[:2])
	_, err = Close(id, 1000, true)
	require.NoError(t, err)
	_, err = Forget(id)
	require.NoError(t, err)

	environment, err := json.Marshal(map[string][]byte{"TENT_CONF": settings})
	require.NoError(t, err)
	text, err := Doctor(string(environment))
	require.NoError(t, err)
	var found struct {
		Transports []struct {
			Name, Reason string
			Found        []string
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &found))
	require.Equal(t, "inside", found.Transports[0].Name)
	require.Equal(t, []string{"plug-in " + path}, found.Transports[0].Found)
	require.Contains(t, found.Transports[1].Reason, "plug-in "+bad+": it is damaged")
}
