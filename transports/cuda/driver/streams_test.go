//go:build cgo

package driver_test

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/device"
	"github.com/tent-engine/tent/gocore/errs"
	fake "github.com/tent-engine/tent/tests/fakes/cuda"
)

// on makes a device current on the test's thread until the end of do.
func on(t *testing.T, gpu *fake.Loaded, ordinal int, do func()) {
	require.NoError(t, platform.Check())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	require.NoError(t, gpu.Enter(ordinal))
	do()
	require.NoError(t, gpu.Leave())
}

// The default stream of every device has one handle, so a term holds the device, too (device.SplitStream).
func TestTheDefaultStreamOfADeviceThatIsNotCurrent(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		addr, err := platform.Allocate(fake.Last(), 4096)
		require.NoError(t, err)
		gpu.Hold(true)
		on(t, gpu, fake.Last(), func() { require.NoError(t, gpu.Work(addr, 7, 4096, 0)) })
		on(t, gpu, 0, func() {
			busy, err := platform.Gate(uintptr(fake.Last()+1)<<2 | 1)
			require.NoError(t, err)
			own, err := platform.Gate(1)
			require.NoError(t, err)
			open, err := busy.Open()
			require.NoError(t, err)
			require.False(t, open)
			gpu.Hold(false)
			await(t, busy)
			await(t, own)
			busy.Close()
			own.Close()
		})
		for _, wrong := range []uintptr{3, 9<<2 | 1, 1<<2 | 3} {
			_, err := platform.Gate(wrong)
			require.Error(t, err, "%d", wrong)
		}
		require.NoError(t, platform.Free(addr, 4096))
	})
}

// A green context is for one thread at a time, and stays the program's. Other threads look after transfers that wait
// for a stream of it.
func TestStreamsOfGreenContexts(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		addr, err := platform.Allocate(0, 4096)
		require.NoError(t, err)
		on(t, gpu, 0, func() {
			require.NoError(t, gpu.Green(0))
			stream := gpu.Stream()
			require.NoError(t, gpu.Work(addr, 7, 4096, stream))
			elsewhere := func(do func() error) {
				done := make(chan error)
				go func() { done <- do() }()
				require.NoError(t, <-done)
			}
			opens := func(gate device.Gate) (err error) {
				defer gate.Close()
				for open := false; !open && err == nil; {
					open, err = gate.Open()
				}
				return err
			}
			elsewhere(func() error {
				gate, err := platform.Gate(stream)
				if err != nil {
					return err
				}
				return opens(gate)
			})
			gate, err := platform.Gate(1)
			require.NoError(t, err)
			elsewhere(func() error { return opens(gate) })
			for range 2 { // the second one finds the word of the first
				for _, s := range []uintptr{stream, 1} {
					latch, err := platform.Hold(s)
					require.NoError(t, err)
					elsewhere(func() error {
						latch.Release(1)
						latch.Close()
						return nil
					})
				}
			}
			require.NoError(t, gpu.EndStream(stream))
			require.NoError(t, gpu.Ungreen())
		})
		require.NoError(t, platform.Free(addr, 4096))
	})
}

// The legacy default stream waits for streams without NON_BLOCKING. While one of them is captured the driver refuses
// it: the caller hears why, and other streams go on.
func TestTheDefaultStreamBesideACapture(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		on(t, gpu, 0, func() {
			captured, free := gpu.BlockingStream(), gpu.Stream()
			require.NoError(t, gpu.Capture(captured, true))
			for _, stream := range []uintptr{0, 1, 1<<2 | 1, captured} {
				_, err := platform.Gate(stream)
				require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%d: %v", stream, err)
				require.ErrorContains(t, err, "captured into a graph")
				_, err = platform.Hold(stream)
				require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "%d: %v", stream, err)
			}
			for _, stream := range []uintptr{2, free} {
				g, err := platform.Gate(stream)
				require.NoError(t, err)
				await(t, g)
				g.Close()
			}
			require.NoError(t, gpu.Capture(captured, false))
			g, err := platform.Gate(0)
			require.NoError(t, err)
			await(t, g)
			g.Close()
			require.NoError(t, gpu.EndStream(captured))
			require.NoError(t, gpu.EndStream(free))
		})
	})
}

// Gates that come and go use the same events again, those that never opened too.
func TestGatesUseFewEvents(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		on(t, gpu, 0, func() {
			stream := gpu.Stream()
			defer func() { require.NoError(t, gpu.EndStream(stream)) }()
			for range 1000 {
				g, err := platform.Gate(stream)
				require.NoError(t, err)
				g.Close()
			}
			require.EqualValues(t, 1, gpu.Stats().Events)
			var many []device.Gate
			for range 200 {
				g, err := platform.Gate(stream)
				require.NoError(t, err)
				many = append(many, g)
			}
			for _, g := range many {
				await(t, g)
				g.Close()
			}
			require.LessOrEqual(t, gpu.Stats().Events, int64(64))
			gpu.Inject("cuEventRecord", 1, 400, false) // the kept event is of a context that has ended
			g, err := platform.Gate(stream)
			require.NoError(t, err)
			await(t, g)
			g.Close()
		})
	})
}

// A latch holds up the work that enters the stream behind it, and nothing else. Its word serves again only when the
// stream has passed.
func TestALatchHoldsItsStreamUntilItsRelease(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		addr, err := platform.Allocate(0, 4096)
		require.NoError(t, err)
		on(t, gpu, 0, func() {
			stream := gpu.Stream()
			require.NoError(t, gpu.Work(addr, 1, 2048, stream))
			before, err := platform.Gate(stream)
			require.NoError(t, err)
			first, err := platform.Hold(stream)
			require.NoError(t, err)
			require.NoError(t, gpu.Work(addr, 2, 4096, stream))
			behind, err := platform.Gate(stream)
			require.NoError(t, err)
			await(t, before)
			for range 1000 {
				open, err := behind.Open()
				require.NoError(t, err)
				require.False(t, open)
			}
			first.Release(4)
			first.Close()
			await(t, behind)
			got := make([]byte, 4096)
			require.NoError(t, gpu.Peek(got, addr))
			require.Equal(t, bytes.Repeat([]byte{2}, 4096), got)
			second, err := platform.Hold(stream)
			require.NoError(t, err)
			require.Equal(t, first.Word(), second.Word(), "the stream has passed the first")
			third, err := platform.Hold(stream)
			require.NoError(t, err)
			require.NotEqual(t, second.Word(), third.Word())
			third.Release(1)
			third.Close()
			fourth, err := platform.Hold(stream)
			require.NoError(t, err)
			require.NotEqual(t, third.Word(), fourth.Word(), "the stream has not come there yet")
			for _, l := range []device.Latch{second, fourth} {
				l.Release(1)
				l.Close()
			}
			before.Close()
			behind.Close()
			require.NoError(t, gpu.EndStream(stream))
		})
		_, err = platform.Hold(0)
		require.Equal(t, errs.InvalidArgument, errs.CodeOf(err), "no device is current: %v", err)
		require.NoError(t, platform.Free(addr, 4096))
	})
}

// A wait for a latch makes the bytes of NICs visible behind it where the device can. Others refuse such a wait.
func TestALatchFlushesTheBytesOfNICsWhereTheDeviceCan(t *testing.T) {
	for can, flushes := range map[string]int{"0": 0, "1": 1} {
		t.Run(can, func(t *testing.T) {
			fake.Run(t, fake.Driver{}, fake.Settings{"CAN_FLUSH": can}, func(t *testing.T, gpu *fake.Loaded) {
				on(t, gpu, 0, func() {
					stream := gpu.Stream()
					latch, err := platform.Hold(stream)
					require.NoError(t, err)
					require.Equal(t, flushes, gpu.Flushes(0))
					latch.Release(1)
					latch.Close()
					require.NoError(t, gpu.EndStream(stream))
				})
			})
		})
	}
}

// TestADriverWithoutMemoryOperationsSaysSo runs an old driver; gates work there all the same.
func TestADriverWithoutMemoryOperationsSaysSo(t *testing.T) {
	old := fake.Driver{Version: 11040, Absent: []string{"cuStreamWaitValue32_v2"}}
	fake.Run(t, old, nil, func(t *testing.T, gpu *fake.Loaded) {
		on(t, gpu, 0, func() {
			_, err := platform.Hold(0)
			require.ErrorContains(t, err, "cuStreamWaitValue32_v2")
			g, err := platform.Gate(0)
			require.NoError(t, err)
			await(t, g)
			g.Close()
		})
	})
}
