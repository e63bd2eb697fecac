package driver

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOurDeclarationsAreTheVendors compares numbers, layouts, names and arguments of shim.h with each cuda.h that is
// here. CUDA 12 and 13 differ in cuMemcpyBatchAsync, so a header of one proves nothing about the other.
func TestOurDeclarationsAreTheVendors(t *testing.T) {
	headers := headersHere(t)
	for version, folder := range headers {
		for _, form := range forms {
			t.Run(version+"/"+form, func(t *testing.T) {
				out, err := compared(t, "shim.h", folder, form)
				require.NoError(t, err, "%s/cuda.h: %s", folder, out)
			})
		}
	}
}

// TestOtherDeclarationsThanTheVendorsAreFound changes shim.h in ways that would compile, and fail on a GPU.
func TestOtherDeclarationsThanTheVendorsAreFound(t *testing.T) {
	headers := headersHere(t)
	newest := headers[slices.Max(slices.Collect(maps.Keys(headers)))]
	text, err := os.ReadFile("shim.h")
	require.NoError(t, err)
	for _, c := range []struct{ old, changed, form, says string }{
		{"int type, types, location[2];", "int types, type, location[2];", calls, "offset of CUmemAllocationProp.type"},
		{"TC_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9", "TC_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 10", calls,
			"TC_POINTER_ATTRIBUTE_DEVICE_ORDINAL is not CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL"},
		{"size_t *failed, tc_stream stream", "tc_stream stream", calls, "arguments of cuMemcpyBatchAsync"},
		{"(uint64_t * address, size_t bytes))", "(uint64_t * address, unsigned bytes))", calls,
			"arguments of cuMemAlloc_v2"},
		{"cuEventDestroy_v2", "cuEventDestroy", names, "cuEventDestroy is an old form"},
	} {
		t.Run(c.says, func(t *testing.T) {
			require.Equal(t, 1, strings.Count(string(text), c.old))
			other := filepath.Join(t.TempDir(), "shim.h")
			require.NoError(t, os.WriteFile(other, []byte(strings.Replace(string(text), c.old, c.changed, 1)), 0o600))
			out, err := compared(t, other, newest, c.form)
			require.Error(t, err)
			require.Contains(t, out, "error: static assertion failed: "+c.says+"\n")
		})
	}
}

// TestErrorsThatStayAreTheVendors reads the texts of all errors in each cuda.h.
func TestErrorsThatStayAreTheVendors(t *testing.T) {
	listed := regexp.MustCompile(`(?s)/\*\*([^/]*)\*/\s*(CUDA_ERROR_\w+)\s*=\s*(\d+)`)
	for version, folder := range headersHere(t) {
		text, err := os.ReadFile(filepath.Join(folder, "cuda.h"))
		require.NoError(t, err)
		found := 0
		for _, one := range listed.FindAllStringSubmatch(string(text), -1) {
			words := strings.Join(strings.Fields(strings.ReplaceAll(one[1], "*", " ")), " ")
			if code, _ := strconv.Atoi(one[3]); strings.Contains(words, "terminated and relaunched") && code != 911 {
				found++
				require.True(t, sticky(code), "%s of CUDA %s stays", one[2], version)
			}
		}
		require.Greater(t, found, 9, "CUDA %s", version)
	}
}

// Forms of the comparison, each a flag of the compiler.
const (
	calls = "__CUDA_API_VERSION_INTERNAL" // a header declares all generations of a function
	names = "NAMES"
)

var forms = [...]string{calls, names}

// compared compiles testdata/abi.cc with a shim.h and a vendor's header, and returns the compiler's words.
func compared(t *testing.T, shim, folder, form string) (string, error) {
	compiler, err := exec.LookPath("g++")
	require.NoError(t, err, "declarations are compared by g++, which the examples in C++ need, too")
	facts := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(facts, "facts.h"), []byte(factsOfGo()), 0o600))
	out, err := exec.Command(compiler, "-std=c++17", "-fsyntax-only", "-fno-diagnostics-show-caret",
		"-Wno-deprecated-declarations", "-D"+form, "-I"+filepath.Dir(shim), "-I"+facts, "-isystem", folder,
		"testdata/abi.cc").CombinedOutput()
	return string(out), err
}

// factsOfGo are the numbers of facts.go for the compiler.
func factsOfGo() string {
	codes := fmt.Sprint(slices.Sorted(maps.Keys(stickyCodes)))
	return fmt.Sprintf("#define GO_OUT_OF_MEMORY %d\n#define GO_INVALID_DEVICE %d\n#define GO_NOT_PERMITTED %d\n"+
		"#define GO_STICKY %s\n", outOfMemory, invalidDevice, notPermitted,
		strings.ReplaceAll(strings.Trim(codes, "[]"), " ", ", "))
}

// versionOf finds the version of a header.
var versionOf = regexp.MustCompile(`(?m)^#define CUDA_VERSION (\d+)$`)

// headersHere returns folders with a cuda.h by its version, one for each. Without any the test is skipped.
func headersHere(t *testing.T) map[string]string {
	found := map[string]string{}
	for _, folder := range foldersOfHeaders(t) {
		text, err := os.ReadFile(filepath.Join(folder, "cuda.h"))
		if err != nil {
			continue
		}
		version := versionOf.FindSubmatch(text)
		require.NotNil(t, version, "%s/cuda.h has no CUDA_VERSION", folder)
		if _, known := found[string(version[1])]; !known {
			found[string(version[1])] = folder
		}
	}
	if len(found) == 0 {
		t.Skip("no cuda.h of NVIDIA: CUDA_HOME names no toolkit, and /usr/local/cuda and the environments of Python " +
			"have none; `make check ONLY=cuda` brings two")
	}
	return found
}

// foldersOfHeaders are the places to look at: a toolkit, and the wheels nvidia-cuda-runtime. Those are in build
// (tools/nvidia.py), and in the environments of this repository and of python3.
func foldersOfHeaders(t *testing.T) (list []string) {
	for _, name := range [...]string{"CUDA_HOME", "CUDA_PATH"} {
		if home := os.Getenv(name); home != "" {
			list = append(list, filepath.Join(home, "include"))
		}
	}
	list = append(list, "/usr/local/cuda/include")
	sites := []string{"../../../build/cuda-headers", "../../../.venv*/lib/python3*/site-packages"}
	out, err := exec.Command("python3", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").Output()
	if err == nil {
		sites = append(sites, strings.TrimSpace(string(out)))
	}
	for _, site := range sites {
		wheels, err := filepath.Glob(filepath.Join(site, "nvidia/c*/include"))
		require.NoError(t, err)
		list = append(list, wheels...)
	}
	return list
}
