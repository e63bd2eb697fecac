//go:build cgo

package nvml

import (
	"bytes"
	"debug/elf"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/device"
	fake "github.com/tent-engine/tent/tests/fakes/nvml"
)

// The linker leaves nothing of NVML undefined: the extension is loaded with RTLD_NOW.
func TestNoFunctionIsLeftToTheLoader(t *testing.T) {
	file, err := elf.Open("/proc/self/exe")
	require.NoError(t, err)
	defer file.Close()
	symbols, err := file.ImportedSymbols()
	require.NoError(t, err)
	require.NotEmpty(t, symbols)
	for _, s := range symbols {
		require.False(t, strings.HasPrefix(s.Name, "nvml"), s.Name)
	}
	names, err := os.ReadFile("names.h")
	require.NoError(t, err)
	require.Greater(t, bytes.Count(names, []byte("FORWARD(nvml")), 400)
}

func TestGPUsAreConnectedAsTheLibrarySays(t *testing.T) {
	domain := &device.Fabric{Cluster: [16]byte(bytes.Repeat([]byte{0xc1}, 16)), Clique: 7}
	const none = "NVML names none (error 13)" // of the older call, which the library does not have
	want := []GPU{
		{"face:1d:00.0", 0, nil, none, []string{"", "SYS", "SYS", "SYS"}},
		{"face:1c:00.0", 0, nil, none, []string{"SYS", "", "PXB", "PXB"}},
		{"face:1b:00.0", 12, domain, "", []string{"SYS", "PXB", "", "NV12"}},
		{"face:1a:00.0", 12, domain, "", []string{"SYS", "PXB", "NV12", ""}},
	}
	t.Setenv(fake.Env, fake.Library(t))
	for range 3 { // it is closed each time
		got, err := Read()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// A driver of before has fewer functions: the call of each fails, and the process lives.
func TestAnOldDriverLacksFunctions(t *testing.T) {
	t.Setenv(fake.Env, fake.Library(t, "-DFAKE_NVML_OLD"))
	got, err := Read()
	require.NoError(t, err)
	require.Len(t, got, 4)
	require.Nil(t, got[3].Fabric)
	require.Equal(t, "NV12", got[3].Ways[2])
}

// A GPU is in a domain when the fabric manager has registered it, and its cluster has a name.
func TestAGPUWithoutADomainHasAReason(t *testing.T) {
	for setting, why := range map[string]string{"STATE=2": "has not registered it (state 2",
		"STATUS=5": "error 5 of NVML", "CLUSTER=0": "ends at this host"} {
		t.Run(setting, func(t *testing.T) {
			name, value, _ := strings.Cut(setting, "=")
			t.Setenv("TENT_FAKENVML_"+name, value)
			t.Setenv(fake.Env, fake.Library(t))
			got, err := Read()
			require.NoError(t, err)
			require.Nil(t, got[3].Fabric)
			require.Contains(t, got[3].Apart, why)
		})
	}
}

// In a container the library counts GPUs of the host that the process may not ask about. One may be lost, too. The
// others are connected all the same.
func TestGPUsThatNobodyMayAskAboutAreLeftOut(t *testing.T) {
	for hidden, want := range map[string][]GPU{
		"03": {{"face:1c:00.0", 0, nil, "NVML names none (error 13)", []string{"", "PXB"}},
			{"face:1b:00.0", 12, &device.Fabric{Cluster: [16]byte(bytes.Repeat([]byte{0xc1}, 16)), Clique: 7}, "",
				[]string{"PXB", ""}}},
		"0123": nil,
	} {
		t.Run(hidden, func(t *testing.T) {
			t.Setenv("TENT_FAKENVML_HIDDEN", hidden)
			t.Setenv(fake.Env, fake.Library(t))
			got, err := Read()
			require.Equal(t, want, got)
			if want == nil {
				require.ErrorContains(t, err, "nvmlDeviceGetHandleByIndex(3): error 4 of NVML")
			} else {
				require.NoError(t, err)
			}
		})
	}
}

func TestWithoutTheLibraryThereIsAReason(t *testing.T) {
	t.Setenv(fake.Env, "/nowhere/libnvidia-ml.so.1")
	_, err := Read()
	require.ErrorContains(t, err, "no NVML: /nowhere/libnvidia-ml.so.1: cannot open shared object file")
}
