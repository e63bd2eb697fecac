package scrape

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestAnErrorOfAcceptEndsNoServer: net/http goes on after a net.Error that calls itself temporary, as few errors of
// accept(2) do.
func TestAnErrorOfAcceptEndsNoServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	socket, err := listener.(*net.TCPListener).File()
	require.NoError(t, err)
	defer socket.Close()
	l := limit(listener, nil)
	passes := func(err error) bool {
		e, is := err.(interface{ Temporary() bool })
		return is && e.Temporary()
	}
	require.NoError(t, unix.Shutdown(int(socket.Fd()), unix.SHUT_RDWR)) // accept fails with EINVAL from here on
	_, err = l.Accept()
	require.ErrorIs(t, err, unix.EINVAL)
	require.Implements(t, (*net.Error)(nil), err)
	require.True(t, passes(err))
	require.NoError(t, listener.Close())
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	require.False(t, passes(err))
}
