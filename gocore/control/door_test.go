package control

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/control/intake"
	"github.com/tent-engine/tent/gocore/transport"
)

// TestAnErrorOfAcceptEndsNoServer: accept(2) fails for want of memory, and with errors of the network that waited on
// the connection. gRPC goes on after those that call themselves temporary, as few of them do.
func TestAnErrorOfAcceptEndsNoServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	socket, err := listener.(*net.TCPListener).File()
	require.NoError(t, err)
	defer socket.Close()
	fd := int(socket.Fd()) // which makes it block: the intake comes after that
	n, err := intake.Open(listener)
	require.NoError(t, err)

	var refused []error
	o := Options{Limits: Limits{}.withDefaults(), Refused: func(reason transport.Refusal, _ string, cause error) {
		require.Equal(t, transport.RefusedLimit, reason)
		refused = append(refused, cause)
	}}
	d := door{n, newGuests(&o)}
	require.NoError(t, unix.Shutdown(fd, unix.SHUT_RDWR)) // accept fails with EINVAL from here on
	passes := func(err error) bool {
		e, is := err.(interface{ Temporary() bool })
		return is && e.Temporary()
	}
	_, err = d.Accept()
	require.ErrorIs(t, err, unix.EINVAL)
	require.True(t, passes(err))
	require.Len(t, refused, 1)
	require.ErrorIs(t, refused[0], unix.EINVAL)

	require.NoError(t, unix.Listen(fd, 1)) // it has passed; the kernel may have chosen another port
	at, err := unix.Getsockname(fd)
	require.NoError(t, err)
	peer, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: at.(*unix.SockaddrInet4).Port})
	require.NoError(t, err)
	defer peer.Close()
	_, err = peer.Write([]byte("a word"))
	require.NoError(t, err)
	guest, err := d.Accept()
	require.NoError(t, err)
	require.NoError(t, guest.Close())
	require.NoError(t, n.Close())
	_, err = d.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	require.False(t, passes(err))
	require.Len(t, refused, 1)
}
