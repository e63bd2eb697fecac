package ports

import (
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// In a network with eight ports, sockets that ask for any get the seven others. The port can be taken by its number
// again and again, behind connections that linger.
func TestAPortThatIsKeptGoesToNobodyElse(t *testing.T) {
	runtime.LockOSThread() // which ends with the test, in a namespace of its own
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace: %v", err) // root of a container has none either
	}
	up(t)
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range",
		[]byte("40000 40007"), 0))
	own := Address(t)
	for _, any := range []string{"127.0.0.1:0", "127.0.0.2:0", "0.0.0.0:0", "[::]:0", "[::1]:0"} {
		var taken []net.Listener
		for {
			l, err := net.Listen("tcp", any)
			if err != nil {
				require.ErrorIs(t, err, unix.EADDRINUSE, any)
				break
			}
			require.False(t, strings.HasSuffix(l.Addr().String(), own[len("127.0.0.1"):]), any)
			taken = append(taken, l)
		}
		require.Len(t, taken, 7, any)
		for _, l := range taken {
			require.NoError(t, l.Close())
		}
	}
	for range 3 {
		_, err := net.Dial("tcp", own)
		require.ErrorIs(t, err, unix.ECONNREFUSED)
		l, err := net.Listen("tcp", own)
		require.NoError(t, err)
		there, err := net.Dial("tcp", own)
		require.NoError(t, err)
		here, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.NoError(t, here.Close())
		require.NoError(t, there.Close())
	}
}

// up brings the loopback of the thread's namespace up.
func up(t *testing.T) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	require.NoError(t, err)
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	require.NoError(t, unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo))
}
