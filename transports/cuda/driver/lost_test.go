//go:build cgo

package driver_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/errs"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
)

// An error that stays ends one device. Its neighbour and the host go on.
func TestAStickyErrorEndsOneDevice(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"DEVICES": "2"}, func(t *testing.T, gpu *fake.Loaded) {
		var at [2]uintptr
		for i := range at {
			var err error
			at[i], err = platform.Allocate(i, 4096)
			require.NoError(t, err)
		}
		gpu.Inject("copy", 1, 700, true)
		bad := platform.Copy(at[0], at[0]+2048, 1024)
		require.Equal(t, errs.CudaError, errs.CodeOf(bad), "%v", bad)
		require.ErrorContains(t, bad, "cuda:0")
		require.ErrorContains(t, bad, "CUDA_ERROR_ILLEGAL_ADDRESS, 700")
		require.ErrorContains(t, bad, "until the process ends")
		_, err := platform.Allocate(0, 4096)
		require.Equal(t, bad, err)
		_, err = platform.Locate(at[0], 4096)
		require.Equal(t, errs.CudaError, errs.CodeOf(err))
		require.Error(t, platform.Free(at[0], 4096))

		require.NoError(t, platform.Copy(at[1], at[1]+2048, 1024))
		spans, err := platform.Locate(at[1], 4096)
		require.NoError(t, err)
		require.Len(t, spans, 1)
		host, err := unix.MmapPtr(-1, 0, nil, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		require.NoError(t, err)
		require.NoError(t, platform.Copy(uintptr(host), uintptr(host)+2048, 1024))
		require.NoError(t, unix.MunmapPtr(host, 4096))
		require.Equal(t, errs.AddressNotRegistered, errs.CodeOf(platform.Copy(uintptr(host), uintptr(host)+2048, 1024)))
		require.NoError(t, platform.Free(at[1], 4096))
		require.EqualValues(t, 1, gpu.Stats().Allocations, "the lost device's")
		gpu.Forgive()
		require.NoError(t, platform.Free(at[0], 4096))
	})
}

// A reset by the program ends one device as an error that stays does, also where the program then goes on with it.
func TestAResetOfTheProgramEndsOneDevice(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"DEVICES": "2"}, func(t *testing.T, gpu *fake.Loaded) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var at [2]uintptr
		for i := range at {
			var err error
			at[i], err = platform.Allocate(i, 4096)
			require.NoError(t, err)
		}
		require.NoError(t, gpu.Reset(0))
		bad := platform.Copy(at[0], at[0]+2048, 1024)
		require.Equal(t, errs.CudaError, errs.CodeOf(bad), "%v", bad)
		require.ErrorContains(t, bad, "cuda:0")
		require.ErrorContains(t, bad, "CUDA_ERROR_CONTEXT_IS_DESTROYED, 709")
		require.NoError(t, gpu.Enter(0))
		_, err := platform.Allocate(0, 4096)
		require.Equal(t, bad, err)
		require.NoError(t, gpu.Leave())
		require.NoError(t, platform.Copy(at[1], at[1]+2048, 1024))
		for i := range at {
			require.NoError(t, platform.Free(at[i], 4096))
		}
	})
}
