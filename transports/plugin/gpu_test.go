package plugin

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/device/devicetest"
	"github.com/tent-engine/tent/gocore/mem"
)

// skin compiles example/gpu.c or its fake library for one vendor.
func skin(t *testing.T, source, vendor string, more ...string) string {
	return built(t, append(append(slices.Clone(asC), "-D"+vendor), more...), source)
}

// HIP has the calls of CUDA's runtime under another name. No test has run on a GPU of AMD.
func TestGPUsOfBothVendorsGoByOnePath(t *testing.T) {
	for vendor, row := range map[string]struct {
		variable string
		kind     mem.Kind
	}{"TENT_HIP": {"TENT_LIBAMDHIP64", mem.Rocm}, "TENT_CUDA": {"TENT_LIBCUDART", mem.Cuda}} {
		t.Run(vendor, func(t *testing.T) {
			t.Setenv(row.variable, skin(t, "testdata/fake_gpu.c", vendor, "-std=gnu11", "-Wno-unused-function"))
			list := Platforms([]string{skin(t, "example/gpu.c", vendor)})
			require.Len(t, list, 1)
			require.Equal(t, row.kind, list[0].Kind())
			devicetest.Run(t, list[0])
			addr, err := list[0].Allocate(1, 4096)
			require.NoError(t, err)
			spans, err := list[0].Locate(addr, 4096)
			require.NoError(t, err)
			require.Equal(t, 1, spans[0].Ordinal, "the device that was asked for, not the thread's")
			require.NoError(t, list[0].Free(addr, 4096))
			devices, err := list[0].Devices()
			require.NoError(t, err)
			require.Equal(t, "0000:f1:00.0", devices[1].PCI)
		})
	}
}

func TestAGPUWithoutItsLibraryIsNamed(t *testing.T) {
	t.Setenv("TENT_LIBAMDHIP64", "/nowhere/libamdhip64.so")
	path := skin(t, "example/gpu.c", "TENT_HIP")
	require.Empty(t, Platforms([]string{path}))
	require.ErrorContains(t, factory(t, path).Check(), "create_plugin returned NULL: its devices cannot work here")
}
