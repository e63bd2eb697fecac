package control

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A SYN that was lost costs a quarter of a second, and not the second after which the kernel repeats it.
func TestALostSYNIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries, canceled atomic.Int32
		ours, theirs := net.Pipe()
		defer theirs.Close()
		begun := time.Now()
		conn, err := reach(t.Context(), "10.0.0.1:1", func(ctx context.Context, _, _ string) (net.Conn, error) {
			if tries.Add(1) == 3 {
				return ours, nil
			}
			<-ctx.Done()
			canceled.Add(1)
			return nil, ctx.Err()
		})
		require.NoError(t, err)
		require.Same(t, ours, conn)
		require.Equal(t, 2*reachAgain, time.Since(begun))
		require.EqualValues(t, 2, canceled.Load(), "the others have ended")
	})
}

// Of several connections that come at once, one is used and the others are closed.
func TestLateConnectionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		var ends [2]net.Conn
		var theirs [2]net.Conn
		for i := range ends {
			ends[i], theirs[i] = net.Pipe()
		}
		conn, err := reach(t.Context(), "10.0.0.1:1", func(ctx context.Context, _, _ string) (net.Conn, error) {
			i := tries.Add(1) - 1
			if i == 0 {
				<-ctx.Done() // it was there at the moment in which the other one came
			}
			return ends[i], nil
		})
		require.NoError(t, err)
		require.Same(t, ends[1], conn)
		_, err = theirs[0].Write([]byte{1})
		require.Error(t, err)
		require.NoError(t, conn.Close())
	})
}

// An answer is one, also a refusal, and a dial has a bounded number of connections.
func TestARefusalIsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		_, err := reach(t.Context(), "10.0.0.1:1", func(context.Context, string, string) (net.Conn, error) {
			tries.Add(1)
			return nil, syscall.ECONNREFUSED
		})
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.EqualValues(t, 1, tries.Load())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = reach(ctx, "10.0.0.1:1", func(ctx context.Context, _, _ string) (net.Conn, error) {
			tries.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualValues(t, 1+reachMost, tries.Load())
	})
}
