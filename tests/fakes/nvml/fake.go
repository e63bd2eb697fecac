// Package nvml builds a management library without hardware, for tests: src/fake.c.
package nvml

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Env is the variable of the environment by which a test names the library.
const Env = "TENT_LIBNVIDIA_ML"

//go:embed src/fake.c
var source []byte

// Library builds the library, with further options of the compiler, and returns its path.
func Library(t testing.TB, options ...string) string {
	folder := t.TempDir()
	file, path := filepath.Join(folder, "fake.c"), filepath.Join(folder, "libnvidia-ml.so.1")
	require.NoError(t, os.WriteFile(file, source, 0o600))
	arguments := append([]string{"-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"},
		options...)
	out, err := exec.Command("gcc", append(arguments, file, "-o", path)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}
