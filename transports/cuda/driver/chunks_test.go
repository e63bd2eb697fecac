//go:build cgo

package driver

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	fakenvml "github.com/tent-engine/tent/tests/fakes/nvml"
)

// Memory of the VMM is zeroed, is as large as it was asked for, and goes back whole. All devices with a way reach it.
func TestChunksAreZeroedAndGoBack(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"IMEX": "1", "DEVICES": "3", "APART": "0-2"},
		func(t *testing.T, gpu *fake.Loaded) {
			const size = 3<<20 + 5
			for _, handles := range []Handles{Descriptors, Descriptors | FabricToo} {
				addr, err := AllocateChunk(0, size, handles)
				require.NoError(t, err)
				got := make([]byte, size)
				require.NoError(t, gpu.Peek(got, addr))
				require.Equal(t, make([]byte, size), got)
				blocks, err := Share(addr, size, 0)
				require.NoError(t, err)
				require.Len(t, blocks, 1)
				require.EqualValues(t, 4<<20, blocks[0].Size)
				CloseBlocks(blocks)
				far, err := Platform{}.Allocate(1, 4096)
				require.NoError(t, err)
				require.NoError(t, gpu.Poke(far, bytes.Repeat([]byte{7}, 4096)))
				require.NoError(t, Platform{}.Copy(far, addr+100, 1000), "the other device writes to itself")
				require.NoError(t, Platform{}.Free(far, 4096))
				require.ErrorContains(t, Platform{}.Free(addr, size-1), "were not allocated here")
				require.NoError(t, Platform{}.Free(addr, size))
				require.ErrorContains(t, Platform{}.Free(addr, size), "were not allocated here")
			}
		})
}

// Memory of allocate is shared by descriptors where NICs reach it all the same, and else by legacy handles.
func TestAllocateMakesMemoryThatIsSharedByDescriptors(t *testing.T) {
	for name, c := range map[string]struct {
		driver   fake.Driver
		settings fake.Settings
		size     uint64
		chunk    bool
	}{
		"large":        {settings: fake.Settings{"RDMA_VMM": "1"}, size: 2 << 20, chunk: true},
		"small":        {settings: fake.Settings{"RDMA_VMM": "1"}, size: 2<<20 - 1},
		"not for NICs": {settings: fake.Settings{"RDMA_VMM": "0"}, size: 2 << 20},
		"an old driver": {driver: fake.Driver{Absent: []string{"cuMemCreate"}},
			settings: fake.Settings{"RDMA_VMM": "1"}, size: 2 << 20},
		"without attribute": {driver: fake.Driver{Absent: []string{"cuDeviceGetAttribute"}}, size: 2 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, c.driver, c.settings, func(t *testing.T, gpu *fake.Loaded) {
				addr, err := Platform{}.Allocate(1, c.size)
				require.NoError(t, err)
				got := make([]byte, c.size)
				require.NoError(t, gpu.Peek(got, addr))
				require.Equal(t, make([]byte, c.size), got)
				blocks, err := Share(addr, c.size, 1)
				require.NoError(t, err)
				require.Equal(t, c.chunk, blocks[0].Chunk())
				CloseBlocks(blocks)
				require.NoError(t, Platform{}.Free(addr, c.size))
			})
		})
	}
}

// A call that fails in the middle gives back all that was made before it, which the end of the test counts.
func TestChunksThatFailLeaveNothing(t *testing.T) {
	for _, call := range []string{"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async",
		"cuMemGetAllocationGranularity"} {
		t.Run(call, func(t *testing.T) {
			fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
				for result, code := range map[int]errs.Code{801: errs.NotHere, 2: errs.OutOfMemory} {
					gpu.Inject(call, 1, result, false)
					_, err := AllocateChunk(0, 4096, Descriptors)
					require.ErrorContains(t, err, call)
					require.Equal(t, code, errs.CodeOf(err))
				}
			})
		})
	}
}

// Each step of the probe has its reason.
func TestADeviceWithoutFabricHandlesHasAReason(t *testing.T) {
	const channels = "TENT_IMEX_CHANNELS="
	library, domain, none := fakenvml.Library(t), fake.Settings{"IMEX": "1"}, fake.Settings{"IMEX": "0"}
	empty, full, locked := t.TempDir(), t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(full, "channel0"), nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(locked, "channel0"), 0o700)) // root may open all files, and no folder
	for name, c := range map[string]struct {
		driver   fake.Driver
		settings fake.Settings
		more     []string
		says     string // "" where it has them
	}{
		"all is there": {settings: fake.Settings{"IMEX": "1"}},
		"no channel":   {settings: none, more: []string{channels + empty}, says: "process has no IMEX channel"},
		"no daemon":    {settings: none, more: []string{channels + full}, says: "IMEX daemon has not joined"},
		"a channel of others": {settings: none, more: []string{channels + locked},
			says: "may not open an IMEX channel"},
		"not supported": {settings: fake.Settings{"IMEX": "1", "FABRIC": "0"}, says: "attribute 128 is 0"},
		"an old driver": {driver: fake.Driver{Absent: []string{"cuMemImportFromShareableHandle"}},
			settings: fake.Settings{"IMEX": "1"}, says: "cuMemImportFromShareableHandle"},
		"no domain":  {fake.Driver{}, domain, []string{"TENT_FAKENVML_STATE=2"}, "state 2"},
		"no library": {fake.Driver{}, domain, []string{fakenvml.Env + "=/nowhere/x.so"}, "/nowhere/x.so"},
	} {
		t.Run(name, func(t *testing.T) {
			environment := append([]string{fakenvml.Env + "=" + library}, c.more...)
			fake.RunWith(t, c.driver, c.settings, environment, func(t *testing.T, _ *fake.Loaded) {
				list, err := Domains()
				if err == nil {
					require.Len(t, list, 2)
					err = list[1].Why
				}
				wiring, _ := Platform{}.Wiring()
				if c.says == "" {
					require.NoError(t, err)
					require.EqualValues(t, 7, list[1].Clique)
					require.Equal(t, []string{"", ""}, wiring.Apart)
					return
				}
				require.ErrorContains(t, err, c.says)
				require.Equal(t, errs.DeviceNotFound, errs.CodeOf(err))
				if wiring.Apart != nil {
					require.Contains(t, wiring.Apart[1], c.says)
				}
			})
		})
	}
}

// Other hosts map memory that was made for them, and no other.
func TestMemoryForOtherHostsWasMadeSo(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"IMEX": "1"}, func(t *testing.T, gpu *fake.Loaded) {
		plain, err := Platform{}.Allocate(0, 4096)
		require.NoError(t, err)
		passed, err := AllocateChunk(0, 4096, Descriptors)
		require.NoError(t, err)
		both, err := AllocateChunk(0, 4096, Descriptors|FabricToo)
		require.NoError(t, err)
		for _, addr := range []uintptr{plain, passed} {
			_, err := ShareByFabric(addr, 4096, 0)
			require.ErrorContains(t, err, "asked for no fabric handle")
			require.Equal(t, errs.NotHere, errs.CodeOf(err))
		}
		blocks, err := ShareByFabric(both, 4096, 0)
		require.NoError(t, err)
		require.True(t, blocks[0].Fabric)
		m, err := Map(blocks, both, [16]byte{})
		require.NoError(t, err)
		require.NoError(t, Platform{}.Free(both, 4096))
		at, err := m.On(1)
		require.NoError(t, err)
		mark := bytes.Repeat([]byte{9}, 4096)
		require.NoError(t, gpu.Poke(at, mark), "the pages stay until the last mapping goes")
		require.NoError(t, m.Close())
		_, err = Map(blocks, both, [16]byte{})
		require.Error(t, err, "a handle of memory that is gone names no other")
		for _, addr := range []uintptr{plain, passed} {
			require.NoError(t, Platform{}.Free(addr, 4096))
		}
	})
}
