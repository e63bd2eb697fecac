package device_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/device/devicetest"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

func TestFindNamesTheOwnerOfARange(t *testing.T) {
	page := uint64(unix.Getpagesize())
	gpu, npu := devicetest.New(t, mem.Cuda, 2), devicetest.New(t, mem.Npu, 1)
	all := []device.Platform{gpu, npu}
	sides, err := gpu.AllocateSide(4*page, 0, 1, 1)
	require.NoError(t, err)
	at := func(pages uint64) uintptr { return sides + uintptr(pages*page) }
	on, err := npu.Allocate(0, page)
	require.NoError(t, err)
	managed, err := gpu.Allocate(1, page)
	require.NoError(t, err)
	defer func() {
		require.NoError(t, gpu.Free(sides, 12*page))
		require.NoError(t, npu.Free(on, page))
		require.NoError(t, gpu.Free(managed, page))
	}()
	gpu.Manage(managed)
	gpu.Pin(4*4096, 4096)
	for name, c := range map[string]struct {
		addr     uintptr
		size     uint64
		location mem.Location
		says     []string // of the error
	}{
		"one device":                    {at(0), 4 * page, "cuda:0", nil},
		"a part":                        {at(0) + 1, 1, "cuda:0", nil},
		"two allocations of one device": {at(4), 8 * page, "cuda:1", nil},
		"another platform":              {on, page, "npu:0", nil},
		"managed":                       {managed, page, "cuda:1", nil},
		"nobody's":                      {4096, 4096, "*", nil},
		"pinned":                        {4 * 4096, 4096, "*", nil},
		"half pinned":                   {3 * 4096, 8192, "*", nil},
		"two devices": {at(3), 2 * page, "", []string{"cuda:0 has", "cuda:1 has",
			"register the part of each device"}},
		"the host in front": {at(0) - 16, 32, "", []string{"the host has 16 bytes", "cuda:0 has 16 bytes"}},
		"the host behind":   {at(12) - 16, 32, "", []string{"cuda:1 has 16 bytes", "the host has 16 bytes"}},
	} {
		place, err := device.Find(all, c.addr, c.size)
		if c.says != nil {
			require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%s: %v", name, err)
			for _, part := range c.says {
				require.ErrorContains(t, err, part, name)
			}
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, c.location, place.Location(), name)
		require.Equal(t, name == "managed", place.Managed, name)
		require.Equal(t, name == "two allocations of one device" || c.location == "*", place.Allocation == 0, name)
	}
}

func TestABrokenDriverIsNoAnswer(t *testing.T) {
	broken := devicetest.New(t, mem.Cuda, 1)
	broken.Trouble = errs.New(errs.CudaError, "cuda", "error 700")
	_, err := device.Find([]device.Platform{broken}, 4096, 4096)
	var unsure *device.Unsure
	require.True(t, errors.As(err, &unsure))
	require.Equal(t, errs.CudaError, errs.CodeOf(err))
	require.ErrorContains(t, err, "error 700")
	require.ErrorContains(t, err, "fake cuda")
}
