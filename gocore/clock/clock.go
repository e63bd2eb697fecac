// Package clock gives the time that the engine hands down as a value. Engine, gocore/spin and transports read it;
// policy takes now as an argument, so that a day of flapping rails is a unit test of microseconds.
package clock

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Time is nanoseconds on CLOCK_MONOTONIC: the same clock as Python's time.monotonic_ns and as every process of a host.
type Time int64

// Never is the deadline of a request that has none.
const Never Time = 1<<63 - 1

// start and origin are one moment, on Go's monotonic clock (vDSO, some 25 ns) and on CLOCK_MONOTONIC. The standard
// library reads that clock but does not show it; asking the kernel for it each time would cost a system call.
var start, origin = meet(time.Now, kernel)

// meet reads both clocks close together. A thread that loses its processor between two readings would leave this clock
// milliseconds behind that of other processes for its whole life, so the closest of several tries counts. The moment is
// the end of that try: a deadline that another process has just passed is never still to come here.
func meet(now func() time.Time, kernel func() Time) (start time.Time, origin Time) {
	closest := time.Duration(math.MaxInt64)
	for range 64 {
		before, at, after := kernel(), now(), kernel()
		if apart := after.Sub(before); apart < closest {
			closest, start, origin = apart, at, after
		}
		if closest < undisturbed {
			break
		}
	}
	return start, origin
}

// undisturbed is the distance of two readings that nothing came between.
const undisturbed = time.Microsecond

func kernel() Time {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic("clock: CLOCK_MONOTONIC is missing: " + err.Error()) // part of every Linux
	}
	return Time(t.Nano())
}

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
