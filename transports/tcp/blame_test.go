package tcp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/errs"
)

// TestAResetThatAWriterSawFirstBlamesThePath: the kernel gives the error of a reset away once, and the reader sees an
// orderly end. That end would blame the peer, which has closed nothing.
func TestAResetThatAWriterSawFirstBlamesThePath(t *testing.T) {
	near, far := neighbours(t, 4096)
	initiates := func(c *conn) bool { return !isResponder(c) }
	thaw := freeze(near.tr.(*Transport), initiates)
	for _, c := range far.tr.(*Transport).conns.All() {
		c.readMu.Lock()
		c.writeMu.Lock()
		c.closeSocket()
		c.writeMu.Unlock()
		c.readMu.Unlock()
	}
	for _, c := range near.tr.(*Transport).conns.All() {
		require.Eventually(t, func() bool { return c.wasReset() }, 5*time.Second, time.Millisecond)
		errno, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR) // as a writer takes it
		require.NoError(t, err)
		require.Equal(t, unix.ECONNRESET, unix.Errno(errno))
	}
	thaw()
	near.await(t, "RailDown", 5*time.Second, func() bool { return near.downs > 0 })
	require.NotNil(t, near.cause)
	require.Equal(t, errs.SidePath, near.cause.Side, "%v", near.cause)
	require.ErrorIs(t, near.cause, unix.ECONNRESET)
}

// TestAFencedRailWhoseEndIsGoneSaysSo: the core gives a silent rail up before the kernel's news are read.
func TestAFencedRailWhoseEndIsGoneSaysSo(t *testing.T) {
	for _, gone := range []bool{true, false} {
		near, _ := neighbours(t, 4096)
		tr := near.tr.(*Transport)
		l := tr.links.Lookup(near.link)
		r := (*l.rails.Load())[0]
		if gone {
			elsewhere := netip.MustParseAddr("192.0.2.1") // an address of no machine: RFC 5737
			tr.watch.mu.Lock()
			tr.watch.ends[elsewhere] = &end{good: true}
			tr.watch.mu.Unlock()
			moved := make(chan struct{})
			require.True(t, l.runOnLink(func(clock.Time) { r.local = elsewhere; close(moved) }))
			<-moved
		}
		tr.Fence(r.live.Load().id())
		near.await(t, "RailDown", 5*time.Second, func() bool { return near.downs > 0 })
		if !gone {
			require.Nil(t, near.cause, "asked for")
			continue
		}
		require.NotNil(t, near.cause)
		require.Equal(t, errs.SideLocal, near.cause.Side)
		require.ErrorContains(t, near.cause, "192.0.2.1 was removed")
	}
}
