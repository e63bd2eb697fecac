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

// burstWorld has memory of the first and the last device, and a Burst. The i-th Copies go from the i-th place of the
// first to that of the last.
type burstWorld struct {
	t        *testing.T
	gpu      *fake.Loaded
	from, to uintptr
	copies   [driver.BurstMost]driver.Copies
	burst    driver.Burst
	round    driver.Round
}

const burstEach = 4096

func newBurstWorld(t *testing.T, gpu *fake.Loaded) *burstWorld {
	w := &burstWorld{t: t, gpu: gpu}
	const size = driver.BurstMost * burstEach
	for i, at := range []*uintptr{&w.from, &w.to} {
		var err error
		*at, err = platform.Allocate(i*fake.Last(), size)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, platform.Free(*at, size)) })
	}
	return w
}

// begin lists copies, by a device for each.
func (w *burstWorld) begin(devices ...int) {
	for i, d := range devices {
		offset := uintptr(i * burstEach)
		require.NoError(w.t, w.burst.Begin(&w.copies[i], d, 0))
		w.burst.Add(w.to+offset, w.from+offset, burstEach)
	}
}

func (w *burstWorld) ask(n int) (ended int) {
	for i := range n {
		w.round.Add(&w.copies[i])
	}
	w.round.Ask()
	for i := range n {
		if w.copies[i].Ended() {
			ended++
		}
	}
	return ended
}

// calls returns the number of calls of the driver that do makes.
func (w *burstWorld) calls(do func()) int64 {
	before := w.gpu.Stats().Calls
	do()
	return w.gpu.Stats().Calls - before
}

// A burst visits a device once, and so does a question. Behind a copy that is under way no other of its stream is asked
// about.
func TestABurstVisitsItsDeviceOnce(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		w := newBurstWorld(t, gpu)
		all := make([]int, driver.BurstMost)
		run := func(n int) (posting, asking int64) {
			gpu.Hold(true)
			w.begin(all[:n]...)
			posting = w.calls(w.burst.Post)
			asking = w.calls(func() { require.Zero(t, w.ask(n)) })
			gpu.Hold(false)
			for w.ask(n) < n {
				runtime.Gosched()
			}
			return posting, asking
		}
		run(driver.BurstMost) // makes the events
		posting, asking := run(1)
		again, askingAll := run(driver.BurstMost)
		require.EqualValues(t, posting+2*(driver.BurstMost-1), again, "a copy and an event for each more")
		require.Equal(t, asking, askingAll)
		require.Zero(t, w.calls(w.burst.Post), "nothing is listed")
	})
}

// Copies of a burst fail alone, and those of other devices too. None that has failed is under way.
func TestCopiesOfABurstFailAlone(t *testing.T) {
	fake.Run(t, fake.Driver{}, nil, func(t *testing.T, gpu *fake.Loaded) {
		w := newBurstWorld(t, gpu)
		want := make([]byte, 4*burstEach)
		for i := range want {
			want[i] = byte(i*7 + i/burstEach + 1)
		}
		require.NoError(t, gpu.Poke(w.from, want))
		gpu.Inject("cuMemcpyAsync", 2, 1, false)
		w.begin(0, 0, 1, 0)
		require.Error(t, w.burst.Begin(new(driver.Copies), 9, 0), "there is no such device")
		w.burst.Post()
		require.True(t, w.copies[1].Ended())
		for i := range 4 {
			err := w.copies[i].Finish()
			require.Equal(t, i == 1, err != nil, "copy %d: %v", i, err)
		}
		clear(want[burstEach : 2*burstEach])
		got := make([]byte, len(want))
		require.NoError(t, gpu.Peek(got, w.to))
		require.True(t, bytes.Equal(want, got))
	})
}
