//go:build cgo

package cuda

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
	"github.com/tent-engine/tent/transports/transporttest"
)

// Slices are long where no byte crosses our pinned memory, and those of LOW short where HIGH would wait for them.
func TestTheLongestSliceIsThatOfThePair(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	last := onDevice(fake.Last())
	for name, c := range map[string]struct {
		there    *transporttest.Device
		settings Copying
		info     uint64
		match    transport.Match
	}{
		"two devices": {last, Copying{SliceBytes: 64 * mib}, 64 * mib, transport.Match{SliceLow: 16 * mib}},
		"shorter":     {last, Copying{SliceBytes: 64 * kib}, 64 * kib, transport.Match{SliceLow: 16 * mib}},
		"pinned": {onHost(), Copying{SliceBytes: 64 * mib, HostRegister: true}, 64 * mib,
			transport.Match{SliceMax: 8 * mib, SliceLow: mib}},
		"the host": {onHost(), Copying{SliceBytes: 64 * mib}, 64 * mib, transport.Match{SliceMax: mib}},
	} {
		t.Run(name, func(t *testing.T) {
			fake.Run(t, fake.Driver{}, nil, func(t *testing.T, _ *fake.Loaded) {
				w := transporttest.NewWorld(t, suiteOf(onDevice(0), c.there, Settings{Copying: c.settings}))
				near, far := w.Open("near"), w.Open("far")
				conn := near.Connect(t, far)
				local, remote := near.Register(t, 4096, mem.LocalReadWrite), far.Register(t, 4096, mem.GlobalReadWrite)
				match, err := near.Transport.(*nvlink).Match(conn.Link, local.Key, conn.Import(t, remote).Key)
				require.NoError(t, err)
				require.Equal(t, c.match, match)
				require.Equal(t, [2]uint64{c.info, c.info}, [2]uint64{near.Info.SliceMax, near.Info.SliceBest})
			})
		})
	}
}

// A page of 1 KiB takes the copy engines as long as one of 64. So 64 MiB of them would take 300 ms, for which HIGH and
// a fence would wait.
func TestASliceHasFewPages(t *testing.T) {
	for kernel, most := range map[bool]int{false: 256, true: 1008} {
		c := copier{Copying: Copying{SliceBytes: sliceMax, CopyKernel: kernel}}
		require.Equal(t, most, c.info().PiecesMax)
	}
}

// toTheHost connects memory of a device with memory of the host that is not pinned.
func toTheHost(t *testing.T) (*transporttest.Conn, *transporttest.Operand, *transporttest.Remote) {
	const size = 5 << 20
	w := transporttest.NewWorld(t, suiteOf(onDevice(0), onHost(), Settings{Copying: Copying{SliceBytes: 8 << 20}}))
	near, far := w.Open("near"), w.Open("far")
	c := near.Connect(t, far)
	return c, near.Register(t, size, mem.LocalReadWrite), c.Import(t, far.Register(t, size, mem.GlobalReadWrite))
}

// A region may be pinned when a plan is made, and not any more when its slices come. These cross pinned memory of ours,
// which grows.
func TestALongSliceCrossesPinnedMemoryAllTheSame(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		c, local, to := toTheHost(t)
		for i, bytes := range []uint64{1 << 20, 5 << 20, 3 << 20, 5 << 20, 100} {
			local.Fill(uint64(i+1), 0, bytes)
			c.Must(t, c.Slice(transport.Write, c.Rail(t), local, 0, to, 0, bytes))
			require.NoError(t, to.Check(uint64(i+1), 0, 0, bytes))
		}
		require.LessOrEqual(t, gpu.Stats().Pinned, int64(4), "one for each room, and the page of words")
	})
}

// A stream of the program may wait for a transfer. The driver frees pinned memory behind the work of all streams, so
// the one that is too short for a slice stays until the transport closes.
func TestPinnedMemoryGrowsWhileAStreamWaitsForUs(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		c, local, to := toTheHost(t)
		c.Must(t, c.Slice(transport.Write, c.Rail(t), local, 0, to, 0, 1<<20))
		before := gpu.Stats().Pinned
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		require.NoError(t, gpu.Enter(0))
		stream := gpu.Stream()
		waits, err := driver.Platform{}.Hold(stream)
		require.NoError(t, err)
		for i, bytes := range []uint64{2 << 20, 5 << 20, 3 << 20} {
			s := c.Slice(transport.Write, c.Rail(t), local, 0, to, 0, bytes)
			require.Equal(t, 1, c.Submit(s))
			require.Nil(t, c.Wait(t, s)[0].Err, "slice %d", i)
		}
		require.LessOrEqual(t, gpu.Stats().Pinned, before+2, "the room grows once; and the page of words")
		waits.Release(1)
		waits.Close()
		require.NoError(t, gpu.EndStream(stream))
		require.NoError(t, gpu.Leave())
	})
}
