// Package clock gives the time that the engine hands down as a value. Engine, gocore/spin and transports read it;
// policy takes now as an argument, so that a day of flapping rails is a unit test of microseconds.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Time is nanoseconds on CLOCK_MONOTONIC: the same clock as Python's time.monotonic_ns and as every process of a host.
type Time int64

// Never is the deadline of a request that has none.
const Never Time = 1<<63 - 1

// start and origin tie Go's monotonic reading (vDSO, some 25 ns) to CLOCK_MONOTONIC. The standard library reads that
// clock but does not show it; asking the kernel for it each time would cost a system call.
var start, origin = func() (time.Time, Time) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic("clock: CLOCK_MONOTONIC is missing: " + err.Error()) // part of every Linux
	}
	return time.Now(), Time(t.Nano())
}()

// Now reads the clock.
func Now() Time { return origin + Time(time.Since(start)) }

// Add returns t+d, or Never where that would overflow.
func (t Time) Add(d time.Duration) Time {
	if t == Never || (d > 0 && t > Never-Time(d)) {
		return Never
	}
	return t + Time(d)
}

// Sub returns the duration from u to t.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }
