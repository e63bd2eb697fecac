//go:build cgo

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/transporttest"
)

// aligned is memory of a device at addresses that the kernel takes.
func aligned(ordinal int) *transporttest.Device {
	d := onDevice(ordinal)
	d.Alignment = 16
	return d
}

// pagesOf connects two devices and moves pages of a size, in another order, by one slice. It returns the launches of
// the kernel and the batches of the copy engines.
func pagesOf(t *testing.T, gpu *fake.Loaded, kernel bool, bytes, pages uint64) (launches, batches int64) {
	settings := Settings{Copying: Copying{CopyKernel: kernel}}
	return pagesBetween(t, gpu, aligned(0), aligned(fake.Last()), settings, bytes, pages)
}

func pagesBetween(t *testing.T, gpu *fake.Loaded, here, there *transporttest.Device, settings Settings,
	bytes, pages uint64) (launches, batches int64) {
	w := transporttest.NewWorld(t, suiteOf(here, there, settings))
	near, far := w.Open("near"), w.Open("far")
	c := near.Connect(t, far)
	local := near.Register(t, 2*bytes*pages, mem.LocalReadWrite)
	remote := far.Register(t, 2*bytes*pages, mem.GlobalReadWrite)
	const before, moved = 1, 2
	remote.Fill(before, 0, remote.Size)
	list := &transport.Pieces{Bytes: bytes}
	for i := range pages {
		list.LocalAt = append(list.LocalAt, 2*bytes*i)
		list.RemoteAt = append(list.RemoteAt, 2*bytes*(pages-1-i)+bytes)
		local.Fill(moved, 2*bytes*i, bytes)
	}
	was := gpu.Stats()
	s := c.Slice(transport.Write, c.Rail(t), local, 0, c.Import(t, remote), 0, bytes*pages)
	s.Pieces = list
	c.Must(t, s)
	now := gpu.Stats()
	for i := range pages {
		at := 2*bytes*(pages-1-i) + bytes
		require.NoError(t, remote.Check(moved, 2*bytes*i, at, bytes))
		require.NoError(t, remote.Check(before, at-bytes, at-bytes, bytes))
	}
	return now.Launches - was.Launches, now.Batches - was.Batches
}

// A launch has 168 ranges. Pages of odd sizes and long ones go by the copy engines, as all do without the setting.
func TestAKernelCopiesShortPages(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		for _, c := range []struct {
			kernel            bool
			bytes, pages      uint64
			launches, batches int64
		}{
			{true, 4096, 2, 1, 0}, {true, 4096, 168, 1, 0}, {true, 4096, 169, 2, 0}, {true, 48, 400, 3, 0},
			{true, 16<<10 + 16, 7, 1, 0}, {true, 4 << 20, 2, 1, 0}, {true, 4<<20 + 16, 2, 0, 1}, {true, 4104, 8, 0, 1},
			{true, 4096, 1, 0, 0}, {false, 4096, 168, 0, 1},
		} {
			launches, batches := pagesOf(t, gpu, c.kernel, c.bytes, c.pages)
			require.Equal(t, [2]int64{c.launches, c.batches}, [2]int64{launches, batches}, "%+v", c)
		}
	})
}

// The device that copies has opened memory of another process for itself, be it chunks or of cuMemAlloc.
func TestAKernelCopiesPagesOfAnotherProcess(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"OWN": "1"}, func(t *testing.T, gpu *fake.Loaded) {
		chunks := inChunks(1)
		chunks.Alignment = 16
		for i, there := range []*transporttest.Device{aligned(0), aligned(1), chunks} {
			settings := Settings{Copying: Copying{CopyKernel: true}, apart: true}
			launches, batches := pagesBetween(t, gpu, aligned(0), there, settings, 4096, 8)
			require.Equal(t, [2]int64{1, 0}, [2]int64{launches, batches}, "%d", i)
		}
	})
}

// Where the driver takes no kernel, pages go as without the setting, and the link says why.
func TestWithoutAKernelTheCopyEnginesGoOn(t *testing.T) {
	for says, c := range map[string]struct {
		driver   fake.Driver
		settings fake.Settings
	}{
		"(CUDA_ERROR_INVALID_PTX, 218)":           {settings: fake.Settings{"KERNELS": "0"}},
		"cuLaunchKernel: operation not supported": {driver: fake.Driver{Absent: []string{"cuLaunchKernel"}}},
	} {
		t.Run(says, func(t *testing.T) {
			fake.Run(t, c.driver, c.settings, func(t *testing.T, gpu *fake.Loaded) {
				launches, batches := pagesOf(t, gpu, true, 4096, 8)
				require.Equal(t, [2]int64{0, 1}, [2]int64{launches, batches})
				settings := Settings{Copying: Copying{CopyKernel: true}}
				w := transporttest.NewWorld(t, suiteOf(aligned(0), aligned(1), settings))
				near := w.Open("near")
				near.Register(t, 4096, mem.LocalReadWrite)
				require.Contains(t, near.Transport.(*nvlink).unprepared(), says)
			})
		})
	}
}

// A chunk of the VMM is open to the devices that its maker has listed. A segment of PyTorch is open to its own alone: a
// kernel of another device that touches it ends that device for the process, and copy engines refuse one slice.
func TestNoKernelTouchesChunksOfAnotherDevice(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		const bytes, pages = 4096, 8
		was := gpu.Stats().Launches
		chunks := inChunks(1)
		chunks.Alignment = 16
		for _, op := range []transport.Op{transport.Write, transport.Read} {
			for i, ends := range [][2]*transporttest.Device{{aligned(0), chunks}, {chunks, aligned(0)}} {
				w := transporttest.NewWorld(t, suiteOf(ends[0], ends[1], Settings{Copying: Copying{CopyKernel: true}}))
				near, far := w.Open("near"), w.Open("far")
				c := near.Connect(t, far)
				local := near.Register(t, 2*bytes*pages, mem.LocalReadWrite)
				remote := far.Register(t, 2*bytes*pages, mem.GlobalReadWrite)
				s := c.Slice(op, c.Rail(t), local, 0, c.Import(t, remote), 0, bytes*pages)
				s.Pieces = &transport.Pieces{Bytes: bytes}
				for at := range uint64(pages) {
					s.Pieces.LocalAt = append(s.Pieces.LocalAt, 2*bytes*at)
					s.Pieces.RemoteAt = append(s.Pieces.RemoteAt, 2*bytes*at)
				}
				c.One(t, s)
				require.Nil(t, driver.Lost(0), "%v, %d", op, i)
				require.Nil(t, driver.Lost(1), "%v, %d", op, i)
			}
		}
		require.EqualValues(t, 2, gpu.Stats().Launches-was, "those that load it")
	})
}
