// Package compiled makes shared libraries for tests, from sources of this repository.
package compiled

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Library is one to be made. Its paths are below the folder of go.mod, where the compiler runs.
type Library struct {
	Soname   string
	Compiler []string // with its options, beside those of a shared library
	Sources  []string // patterns
	Headers  []string // patterns: the sources include them
	Absent   []string // symbols that it does not export
}

// Fake is a vendor's library that tests/fakes/NAME/src emulates in C.
func Fake(name, soname string, options ...string) *Library {
	compiler := []string{"gcc", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-pthread"}
	folder := "tests/fakes/" + name + "/src/"
	return &Library{Soname: soname, Compiler: append(compiler, options...), Sources: []string{folder + "*.c"},
		Headers: []string{folder + "*"}}
}

// Build compiles the library and returns its path, which ends in its Soname. Without a compiler the test fails: cgo
// needs one too. An earlier build of the same sources is used again, from build/fakes.
func (l *Library) Build(t testing.TB) string {
	t.Helper()
	root := Root(t)
	sources := matches(t, root, l.Sources)
	arguments := append(append([]string{}, l.Compiler...), "-shared", "-fPIC", "-Wl,-soname,"+l.Soname)
	hash := sha256.New()
	fmt.Fprint(hash, arguments, l.Absent)
	for _, name := range append(matches(t, root, l.Headers), sources...) {
		text, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		fmt.Fprintln(hash, name)
		_, _ = hash.Write(text)
	}
	folder := filepath.Join(root, "build/fakes", hex.EncodeToString(hash.Sum(nil)[:8]))
	path := filepath.Join(folder, l.Soname)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	require.NoError(t, os.MkdirAll(folder, 0o755))
	work, err := os.MkdirTemp(folder, "") // another process may build it now, too
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(work)) }()
	if len(l.Absent) > 0 {
		names := filepath.Join(work, "exports.map")
		text := "{ local: " + strings.Join(l.Absent, "; ") + "; };\n"
		require.NoError(t, os.WriteFile(names, []byte(text), 0o600))
		arguments = append(arguments, "-Wl,--version-script="+names)
	}
	fresh := filepath.Join(work, l.Soname)
	command := exec.Command(arguments[0], append(append(arguments[1:], sources...), "-o", fresh)...)
	command.Dir = root
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Rename(fresh, path))
	return path
}

func matches(t testing.TB, root string, patterns []string) (files []string) {
	t.Helper()
	for _, pattern := range patterns {
		found, err := fs.Glob(os.DirFS(root), pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		files = append(files, found...)
	}
	return files
}

// Root is the folder of go.mod: a test's folder is below it. The paths of a build with -trimpath lead nowhere.
func Root(t testing.TB) string {
	t.Helper()
	at, err := os.Getwd()
	require.NoError(t, err)
	for ; at != "/"; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at
		}
	}
	require.Fail(t, "no go.mod above the folder of the test")
	return ""
}
