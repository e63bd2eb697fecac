package cuda

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Settings of the library in a process, by the names of its environment variables without TENT_FAKECUDA_.
//
//	DEVICES   2
//	DELAY_US  0: the longest delay of a piece of work; SEED of the delays, 1
//	DMABUF    1: dma-bufs are exported
//	IMEX      0: the process has no IMEX channel; else its number
//	FABRIC    1: attribute 128, and fabric handles; 0: the device gives none
//	RDMA_VMM  0: attribute 110
//	BYTES     4 GiB of each device
//	APART     "0-1,0-2": pairs without a link, "all"
//	FREE      0: as 1, copies end with the call that queues them, and move nothing; to measure the rest
//	OWN       0: as 1, a process opens its own legacy handles, which no driver does; for two engines in one process
type Settings map[string]string

// Environment is that of a child which is to load a library with settings.
func (s Settings) Environment(library string) []string {
	list := []string{"TENT_LIBCUDA=" + library}
	for name, value := range s {
		list = append(list, "TENT_FAKECUDA_"+name+"="+value)
	}
	return list
}

// Driver is a library to build.
type Driver struct {
	Version int      // 13000 for CUDA 13.0, which 0 is, too
	Absent  []string // symbols that it does not export
}

// Library builds a driver and returns its path.
func Library(t testing.TB, d Driver) string {
	if d.Version == 0 {
		d.Version = 13000
	}
	return Build(t, "cuda", "libcuda.so.1", d.Absent, fmt.Sprintf("-DFAKE_DRIVER=%d", d.Version))
}

// Build makes a library from the sources of tests/fakes/NAME/src, without the symbols that are absent, and returns its
// path. Without a C compiler the test fails: cgo needs one too. An earlier build with the same sources is used again,
// from build/fakes.
func Build(t testing.TB, name, soname string, absent []string, options ...string) string {
	compiler, err := exec.LookPath("gcc")
	require.NoError(t, err, "emulated libraries are built with gcc")
	root := repository(t)
	sources, err := filepath.Glob(filepath.Join(root, "tests/fakes", name, "src/*"))
	require.NoError(t, err)
	require.NotEmpty(t, sources)
	arguments := append([]string{"-shared", "-fPIC", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden",
		"-pthread", "-Wl,-soname," + soname}, options...)
	hash := sha256.New()
	fmt.Fprint(hash, compiler, arguments, absent)
	for _, name := range sources {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		fmt.Fprintln(hash, name)
		_, _ = hash.Write(text)
	}
	folder := filepath.Join(root, "build", "fakes")
	require.NoError(t, os.MkdirAll(folder, 0o755))
	path := filepath.Join(folder, "lib"+name+"-"+hex.EncodeToString(hash.Sum(nil)[:8])+".so")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	work := t.TempDir()
	if len(absent) > 0 {
		names := filepath.Join(work, "exports.map")
		text := "{ local: " + strings.Join(absent, "; ") + "; };\n"
		require.NoError(t, os.WriteFile(names, []byte(text), 0o600))
		arguments = append(arguments, "-Wl,--version-script="+names)
	}
	sources = slices.DeleteFunc(sources, func(name string) bool { return filepath.Ext(name) != ".c" })
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid()) // another process may build it now, too
	arguments = append(append(arguments, sources...), "-o", fresh)
	out, err := exec.Command(compiler, arguments...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Rename(fresh, path))
	return path
}

// repository is the folder of go.mod: a test's folder is below it.
func repository(t testing.TB) string {
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
