package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// asC and asCPlusPlus are the compilers of plug-ins, with the flags under which the header must be silent.
var (
	asC         = []string{"gcc", "-std=c99"}
	asCPlusPlus = []string{"g++", "-x", "c++", "-std=c++11"}
	strictly    = []string{"-Wall", "-Wextra", "-Werror", "-pedantic", "-O2", "-g", "-shared", "-fPIC", "-pthread",
		"-Iinclude"}
)

// built compiles a plug-in and returns its path, in a folder of the test. A file that was made of the same sources is
// used again, from build/fakes. Without a C compiler the test fails: cgo needs one too.
func built(t testing.TB, compiler []string, source string) string {
	t.Helper()
	hash := sha256.New()
	fmt.Fprint(hash, compiler, strictly)
	for _, name := range []string{source, "include/tent_transport.h", "example/inside.c", "example/copy.h",
		"example/list.h",
		"example/fail.h", "example/region.h", "example/memory.c", "include/tent_device.h", "example/disk.c"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		_, _ = hash.Write(text)
	}
	name := "lib" + strings.TrimSuffix(filepath.Base(source), ".c") + ".so"
	kept := filepath.Join("../../build/fakes", hex.EncodeToString(hash.Sum(nil)[:8])+"-"+name)
	if _, err := os.Stat(kept); err != nil {
		require.NoError(t, os.MkdirAll(filepath.Dir(kept), 0o755))
		fresh := fmt.Sprintf("%s.%d", kept, os.Getpid()) // another process may build it now, too
		arguments := append(append(append([]string{}, compiler[1:]...), strictly...), source, "-o", fresh)
		out, err := exec.Command(compiler[0], arguments...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.NoError(t, os.Rename(fresh, kept))
	}
	return placed(t, kept, filepath.Join(t.TempDir(), name))
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

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
