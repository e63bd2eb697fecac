//go:build cgo

package cufile

import (
	"debug/elf"
	"fmt"
	"hash/crc64"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/tests/fakes/compiled"
	"github.com/tent-engine/tent/tests/fakes/cuda"
)

// realLibrary names NVIDIA's own library for tests. `make test-all` takes it from the wheel nvidia-cufile-cu12.
const realLibrary = "TENT_REAL_LIBCUFILE"

// Real carries a test out in a child process with NVIDIA's own libcufile over the emulated driver, which is preloaded.
// The test is skipped where there is no such library.
func Real(t *testing.T, environment []string, test func(t *testing.T)) {
	library := os.Getenv(realLibrary)
	if library == "" {
		t.Skipf("no libcufile of NVIDIA: %s names none, and `make test-all` brings one", realLibrary)
	}
	driver := os.Getenv("TENT_LIBCUDA") // of a child
	if driver == "" {
		driver = driverFor(t, library)
	}
	log := filepath.Join(t.TempDir(), "cufile.log")
	cuda.In(t, append([]string{"TENT_LIBCUDA=" + driver, "TENT_LIBCUFILE=" + library, "LD_PRELOAD=" + driver,
		"CUFILE_LOGFILE_PATH=" + log}, environment...), test)
}

// asked are the names that a library asks dlsym for: texts of it that look like calls of the driver.
var asked = regexp.MustCompile(`\x00cu[A-Z][A-Za-z0-9_]+\x00`)

// driverFor builds the emulated driver with every call that a library asks for. Those that it has not fail.
func driverFor(t *testing.T, library string) string {
	text, err := os.ReadFile(library)
	require.NoError(t, err)
	has, root := exports(t, cuda.Library(t, cuda.Driver{})), compiled.Root(t)
	const around = "tests/fakes/cufile/real/around.c"
	own, err := os.ReadFile(filepath.Join(root, around))
	require.NoError(t, err)
	var names []string
	for at := 0; ; {
		found := asked.FindIndex(text[at:])
		if found == nil {
			break
		}
		name := string(text[at+found[0]+1 : at+found[1]-1])
		at += found[1] - 1 // the 0 byte may begin the next one
		if !strings.HasPrefix(name, "cuFile") && !slices.Contains(has, name) &&
			!strings.Contains(string(own), "API int "+name+"(") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	require.Greater(t, len(names), 100, "the library asks for some 280 calls that the emulated driver has not")
	t.Logf("%d calls of the driver are not supported", len(names))
	var source strings.Builder
	for _, name := range names {
		fmt.Fprintf(&source, "int %s(void);\n__attribute__((visibility(\"default\"))) int %s(void) { return 801; }\n",
			name, name)
	}
	sum := crc64.Checksum([]byte(source.String()), crc64.MakeTable(crc64.ECMA))
	stubs := fmt.Sprintf("build/fakes/stubs-%016x.c", sum)
	require.NoError(t, os.WriteFile(filepath.Join(root, stubs), []byte(source.String()), 0o600))
	l := compiled.Fake("cuda", "libcuda.so.1", "-DFAKE_DRIVER=13000")
	l.Sources = append(l.Sources, stubs, around)
	return l.Build(t)
}

// exports lists the functions that a library exports.
func exports(t *testing.T, path string) (names []string) {
	file, err := elf.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	symbols, err := file.DynamicSymbols()
	require.NoError(t, err)
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			names = append(names, s.Name)
		}
	}
	return names
}
