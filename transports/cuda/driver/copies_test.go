//go:build cgo

package driver_test

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	fake "github.com/tent-engine/tent/tests/fakes/cuda"
	"github.com/tent-engine/tent/transports/cuda/driver"
)

// Posting waits for nothing, and each lane has a stream: copies of all lanes are under way at once. A call that fails
// leaves none behind, although the driver may have taken a part of it.
func TestCopiesOfAllLanesAreUnderWayAtOnce(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		const n = 4096
		from, err := platform.Allocate(0, driver.Lanes*n)
		require.NoError(t, err)
		to, err := platform.Allocate(fake.Last(), driver.Lanes*n)
		require.NoError(t, err)
		want := make([]byte, driver.Lanes*n)
		for i := range want {
			want[i] = byte(i*7 + i/n)
		}
		require.NoError(t, gpu.Poke(from, want))
		copies, burst := make([]driver.Copies, driver.Lanes), new(driver.Burst)
		gpu.Hold(true)
		before := gpu.Stats()
		for lane := range copies {
			at := uintptr(lane * n)
			require.NoError(t, burst.Begin(&copies[lane], 0, lane))
			burst.Add(to+at, from+at, n/2)
			burst.Add(to+at+n/2, from+at+n/2, n/2)
		}
		burst.Post()
		require.EqualValues(t, driver.Lanes, gpu.Stats().Streams-2, "one for each, beside those of the allocations")
		gpu.Hold(false)
		for lane := range copies {
			require.NoError(t, copies[lane].Finish())
			require.NoError(t, copies[lane].Finish(), "nothing is under way")
		}
		require.EqualValues(t, driver.Lanes, gpu.Stats().Copies-before.Copies, "ranges of one slice that go on are one")
		got := make([]byte, len(want))
		require.NoError(t, gpu.Peek(got, to))
		require.Equal(t, want, got)

		events := gpu.Stats().Events
		for _, function := range []string{"cuMemcpyAsync", "cuEventRecord"} {
			gpu.Inject(function, 1, 1, false)
			if function == "cuEventRecord" {
				gpu.Inject(function, 1, 1, false) // that of a kept event is tried again with a new one
				gpu.Inject("cuEventCreate", 1, 2, false)
			}
			require.NoError(t, burst.Begin(&copies[0], 0, 0))
			burst.Add(to, from, n)
			burst.Post()
			require.True(t, copies[0].Ended())
			require.Error(t, copies[0].Finish(), function)
			require.NoError(t, gpu.Poke(to, bytes.Repeat([]byte{9}, n)))
			require.NoError(t, gpu.Peek(got[:n], to))
			require.Equal(t, bytes.Repeat([]byte{9}, n), got[:n], "bytes of a call that has failed")
		}
		require.LessOrEqual(t, gpu.Stats().Events, events)
		require.NoError(t, platform.Free(from, driver.Lanes*n))
		require.NoError(t, platform.Free(to, driver.Lanes*n))
	})
}

// A round asks about copies of several devices at once and does not block. A question that fails alone ends nothing
// before its bytes are there.
func TestARoundSeesEndsAndWaitsForNone(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		const n = 4096
		var at [2]uintptr
		copies, burst, round := make([]driver.Copies, 4), new(driver.Burst), new(driver.Round)
		for i := range at {
			var err error
			at[i], err = platform.Allocate(i*fake.Last(), 4*n)
			require.NoError(t, err)
			require.NoError(t, gpu.Poke(at[i], bytes.Repeat([]byte{byte(i + 1)}, 4*n)))
		}
		ask := func() (ended int) {
			for i := range copies {
				round.Add(&copies[i])
			}
			round.Ask()
			for i := range copies {
				if copies[i].Ended() {
					ended++
				}
			}
			return ended
		}
		all := func() {
			for ask() < 4 {
				runtime.Gosched()
			}
		}
		require.Equal(t, 4, ask(), "nothing is under way")
		post := func() {
			for i := range copies {
				offset := uintptr(i * n)
				require.NoError(t, burst.Begin(&copies[i], i%2, i))
				burst.Add(at[1-i%2]+offset, at[i%2]+offset, n)
			}
			burst.Post()
		}
		gpu.Hold(true)
		post()
		for range 100 {
			require.Zero(t, ask())
		}
		gpu.Hold(false)
		all()
		for i := range copies {
			require.NoError(t, copies[i].Finish())
			got := make([]byte, n)
			require.NoError(t, gpu.Peek(got, at[1-i%2]+uintptr(i*n)))
			require.Equal(t, bytes.Repeat([]byte{byte(i%2 + 1)}, n), got)
		}
		gpu.Inject("cuEventQuery", 1, 999, false)
		post()
		all()
		for i := range copies {
			require.NoError(t, copies[i].Finish())
		}
		allocated := testing.AllocsPerRun(100, func() {
			for i := range copies {
				_ = burst.Begin(&copies[i], i%2, i)
				burst.Add(at[1-i%2], at[i%2], n)
			}
			burst.Post()
			all()
		})
		require.Zero(t, allocated, "for each copy")
		for i := range at {
			require.NoError(t, platform.Free(at[i], 4*n))
		}
	})
}

// Nothing of a call that has failed lands later. A part that the driver has taken has ended when the call returns.
func TestNothingOfACopyThatFailedLandsLater(t *testing.T) {
	fake.Run(t, fake.Driver{}, fake.Settings{"DELAY_US": "5000"}, func(t *testing.T, gpu *fake.Loaded) {
		const n = 4096
		at, err := platform.Allocate(0, 2*n)
		require.NoError(t, err)
		copies, burst := new(driver.Copies), new(driver.Burst)
		copied := func() error {
			require.NoError(t, burst.Begin(copies, 0, 0))
			burst.Add(at, at+n, n)
			burst.Post()
			return copies.Finish()
		}
		for range 20 {
			require.NoError(t, copied()) // an event is kept
			gpu.Inject("cuEventRecord", 1, 1, false)
			gpu.Inject("cuEventCreate", 1, 2, false) // another event is tried
			before := gpu.Stats().Copies
			require.Error(t, copied())
			require.EqualValues(t, 1, gpu.Stats().Copies-before)
		}
		require.NoError(t, platform.Free(at, 2*n))
	})
}

// Work of the program in the default stream holds no copy up, however long it takes.
func TestCopiesDoNotWaitForTheDefaultStream(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		const n = 4096
		at, err := platform.Allocate(0, 2*n)
		require.NoError(t, err)
		latch, err := platform.Hold(1<<2 | 1) // that of the first device
		require.NoError(t, err)
		copies, burst, round := new(driver.Copies), new(driver.Burst), new(driver.Round)
		require.NoError(t, burst.Begin(copies, 0, 0))
		burst.Add(at, at+n, n)
		burst.Post()
		for !copies.Ended() {
			round.Add(copies)
			round.Ask()
			runtime.Gosched()
		}
		require.NoError(t, copies.Finish())
		latch.Release(1)
		latch.Close()
		require.NoError(t, platform.Free(at, 2*n))
	})
}

// A stream works in order, and says nothing about another one.
func TestAStreamThatIsLateHidesNoOther(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		const n = 4096
		at, err := platform.Allocate(0, 4*n)
		require.NoError(t, err)
		var copies [2]driver.Copies
		burst, round := new(driver.Burst), new(driver.Round)
		for i := range copies {
			require.NoError(t, burst.Begin(&copies[i], 0, i))
			burst.Add(at+uintptr(2*i*n), at+uintptr((2*i+1)*n), n)
		}
		burst.Post()
		for range 10_000 {
			const notReady = 600
			gpu.Inject("cuEventQuery", 1, notReady, false)
			for i := range copies {
				round.Add(&copies[i])
			}
			round.Ask()
			if copies[1].Ended() {
				break
			}
			runtime.Gosched()
		}
		require.True(t, copies[1].Ended())
		require.False(t, copies[0].Ended(), "the driver has not said so yet")
		for i := range copies {
			require.NoError(t, copies[i].Finish())
		}
		require.NoError(t, platform.Free(at, 4*n))
	})
}
