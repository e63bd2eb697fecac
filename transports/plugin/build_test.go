package plugin

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/tests/fakes/compiled"
)

// asC and asCPlusPlus are the compilers of plug-ins, with the flags under which the header must be silent.
var (
	asC         = []string{"gcc", "-std=c99"}
	asCPlusPlus = []string{"g++", "-x", "c++", "-std=c++11"}
	strictly    = []string{"-Wall", "-Wextra", "-Werror", "-pedantic", "-O2", "-g", "-pthread",
		"-I" + folder + "include"}
)

// folder is that of this package.
const folder = "transports/plugin/"

// built compiles a plug-in and returns its path, in a folder of the test.
func built(t testing.TB, compiler []string, source string) string {
	t.Helper()
	if _, err := exec.LookPath(compiler[0]); err != nil {
		t.Skipf("no %s: the plug-in is compiled by it", compiler[0])
	}
	name := "lib" + strings.TrimSuffix(filepath.Base(source), ".c") + ".so"
	l := &compiled.Library{Soname: name, Compiler: slices.Concat(compiler, strictly),
		Sources: []string{folder + source}, Headers: []string{folder + "include/*.h", folder + "example/*"}}
	return placed(t, l.Build(t), filepath.Join(t.TempDir(), name))
}

// placed copies a library to a place where nobody but us may write, and returns it.
func placed(t testing.TB, from, path string) string {
	t.Helper()
	text, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	require.NoError(t, os.Chmod(path, 0o755))
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o755))
	return path
}

// factory loads one plug-in.
func factory(t testing.TB, path string) Factory {
	t.Helper()
	list := Load([]string{path}, nil)
	require.Len(t, list, 1)
	return list[0]
}
