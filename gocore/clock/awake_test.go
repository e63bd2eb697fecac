package clock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Without a pause the limit holds exactly, and nothing is left of a context that was given back.
func TestALimitHoldsWhileThisProcessRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []time.Duration{0, time.Millisecond, time.Second, 48 * time.Hour} {
			begun := time.Now()
			ctx, cancel := WithTimeout(t.Context(), limit)
			at, bounded := ctx.Deadline()
			require.True(t, bounded)
			require.Equal(t, limit, at.Sub(begun))
			<-ctx.Done()
			require.Equal(t, limit, time.Since(begun))
			require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
			cancel()
			require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
		}
		ctx, cancel := WithTimeout(t.Context(), time.Second)
		require.NoError(t, ctx.Err())
		cancel()
		<-ctx.Done()
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		<-time.After(time.Minute) // no look is left
	})
}

func TestALimitEndsWithItsParentAndEndsItsChildren(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, end := context.WithCancel(t.Context())
		ctx, cancel := WithTimeout(parent, time.Hour)
		defer cancel()
		child, release := context.WithCancel(ctx)
		defer release()
		end()
		<-child.Done()
		require.ErrorIs(t, ctx.Err(), context.Canceled)

		ctx, cancel = WithTimeout(t.Context(), time.Second)
		defer cancel()
		child, release = context.WithTimeout(ctx, time.Hour)
		defer release()
		<-child.Done()
		require.ErrorIs(t, child.Err(), context.DeadlineExceeded, "as a child of context.WithTimeout says it")

		early, drop := context.WithTimeout(t.Context(), time.Minute)
		defer drop()
		ctx, cancel = WithTimeout(early, time.Hour)
		defer cancel()
		at, _ := ctx.Deadline()
		require.Equal(t, time.Minute, time.Until(at))
	})
}

// A pause of this process counts for two looks at the time, and moves the deadline. One of days is not looked after.
func TestTimeInWhichAProcessIsNotLetRunIsNoWaiting(t *testing.T) {
	begun := time.Now()
	w := &watch{left: time.Second, last: begun}
	require.False(t, w.passed(begun.Add(lookEvery)))
	require.Equal(t, 900*time.Millisecond, w.left)
	require.Equal(t, begun.Add(time.Second), w.over())
	require.False(t, w.passed(begun.Add(lookEvery+time.Hour)), "it was stopped for an hour")
	require.Equal(t, 700*time.Millisecond, w.left)
	require.Equal(t, begun.Add(time.Hour+800*time.Millisecond), w.over())
	for range 3 {
		require.False(t, w.passed(w.last.Add(time.Hour)))
	}
	require.True(t, w.passed(w.last.Add(lookEvery)))

	w = &watch{left: 48 * time.Hour, last: begun}
	require.True(t, w.passed(begun.Add(48*time.Hour)))
}
