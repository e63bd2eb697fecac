package intake

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const patience = 10 * time.Second // bounds each wait

func listening(t *testing.T, address string) *Listener {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	require.NoError(t, err)
	n, err := Open(listener)
	require.NoError(t, err)
	t.Cleanup(func() {
		n.Forget()
		_ = n.Close()
	})
	return n
}

func dialed(t *testing.T, n *Listener) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", n.Addr().String(), patience)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// speaking is a connection that has said a word, for which the kernel waits.
func speaking(t *testing.T, n *Listener) net.Conn {
	t.Helper()
	conn := dialed(t, n)
	_, err := conn.Write([]byte{1})
	require.NoError(t, err)
	return conn
}

// armed reports whether a connection that waits would wake the accepting goroutine.
func armed(t *testing.T, n *Listener) bool {
	t.Helper()
	ready := 0
	require.NoError(t, n.raw.Control(func(epoll uintptr) {
		ready, _ = unix.Poll([]unix.PollFd{{Fd: int32(epoll), Events: unix.POLLIN}}, 0)
	}))
	return ready > 0
}

func TestConnectionsThatWaitAreOneBatchAndOneWakeup(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		n := listening(t, address)
		var first []net.Conn
		for range acceptBatch + 1 {
			first = append(first, speaking(t, n))
		}
		for i, conn := range first[:acceptBatch] {
			s, err := n.Next(i == 0)
			require.NoError(t, err)
			require.Equal(t, acceptBatch, n.filled)
			require.Equal(t, conn.LocalAddr().String(), s.RemoteAddr().String())
			require.NoError(t, s.Close())
		}
		require.False(t, armed(t, n), "a connection waits, and wakes nobody before it is asked for")
		s, err := n.Next(false)
		require.NoError(t, err)
		require.NoError(t, s.Close())
		late := make(chan *Conn, 1)
		go func() { // next arms and waits
			s, _ := n.Next(false)
			late <- s
		}()
		speaking(t, n)
		require.NoError(t, (<-late).Close())
	}
}

// Connections that say nothing, and those that are reset again, cost the engine nothing: the kernel keeps them.
func TestAConnectionWithoutAWordIsNotAccepted(t *testing.T) {
	n := listening(t, "127.0.0.1:0")
	for range 8 {
		gone := dialed(t, n)
		require.NoError(t, gone.(*net.TCPConn).SetLinger(0))
		require.NoError(t, gone.Close())
	}
	dialed(t, n)
	said := speaking(t, n)
	s, err := n.Next(false)
	require.NoError(t, err)
	require.Equal(t, said.LocalAddr().String(), s.RemoteAddr().String())
	require.NoError(t, s.Close())
}

func TestAConnectionThatIsClosedUnopenedIsReset(t *testing.T) {
	n := listening(t, "127.0.0.1:0")
	conn := speaking(t, n)
	s, err := n.Next(false)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Open(), net.ErrClosed)
	require.ErrorIs(t, s.Close(), net.ErrClosed)
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// A connection that its peer has ended is not opened, with or without a word.
func TestAConnectionThatHasGoneIsNotOpened(t *testing.T) {
	n := listening(t, "127.0.0.1:0")
	reset := speaking(t, n)
	require.NoError(t, reset.(*net.TCPConn).SetLinger(0))
	require.NoError(t, reset.Close())
	require.NoError(t, dialed(t, n).Close())
	for range 2 {
		s, err := n.Next(false)
		require.NoError(t, err)
		require.ErrorIs(t, s.Open(), net.ErrClosed)
		require.ErrorIs(t, s.Close(), net.ErrClosed)
	}
	speaking(t, n)
	s, err := n.Next(false)
	require.NoError(t, err)
	require.NoError(t, s.Open())
	require.NoError(t, s.Close())
}

// An open connection is as Go's listener would return it: bytes that were written before its end arrive.
func TestAConnectionThatIsOpenEndsInOrder(t *testing.T) {
	n := listening(t, "127.0.0.1:0")
	conn := speaking(t, n)
	s, err := n.Next(false)
	require.NoError(t, err)
	require.NoError(t, s.Open())
	raw, err := s.Conn.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	for name, want := range map[string]struct{ level, option, value int }{
		"no signs of life":  {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0},
		"no delay":          {unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		"no end by a reset": {unix.SOL_SOCKET, unix.SO_LINGER, 0},
	} {
		require.NoError(t, raw.Control(func(fd uintptr) {
			got, err := unix.GetsockoptInt(int(fd), want.level, want.option)
			require.NoError(t, err, name)
			require.Equal(t, want.value, got, name)
		}))
	}
	_, err = s.Read(make([]byte, 1))
	require.NoError(t, err)
	_, err = s.Write([]byte("goodbye"))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	heard, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, "goodbye", string(heard))
}

func TestClosingAnIntakeEndsNextAndForgetsItsBatch(t *testing.T) {
	n := listening(t, "127.0.0.1:0")
	_, second := speaking(t, n), speaking(t, n)
	s, err := n.Next(false)
	require.NoError(t, err)
	require.Equal(t, 2, n.filled)
	require.NoError(t, n.Close())
	require.NoError(t, n.Close())
	n.Forget()
	require.NoError(t, second.SetDeadline(time.Now().Add(patience)))
	_, err = second.Read(make([]byte, 1))
	require.Error(t, err, "nobody else would close it")
	require.NoError(t, s.Close())
	_, err = n.Next(false)
	require.ErrorIs(t, err, net.ErrClosed)

	n = listening(t, "127.0.0.1:0")
	ended := make(chan error)
	go func() {
		_, err := n.Next(false)
		ended <- err
	}()
	require.NoError(t, n.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)
}
