// Package ports keeps ports for tests that give them up and take them again, while other processes ask for any port.
package ports

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Keep returns a port that is the test's own until its end, also while nobody listens there. The kernel gives it to no
// socket that asks for any port. One that asks for it by its number gets it, on every address.
//
// It is bound to a socket that does not listen, which is in the way of no socket with SO_REUSEADDR, as those of Go are.
func Keep(t testing.TB) int {
	t.Helper()
	var any unix.Sockaddr = &unix.SockaddrInet6{} // of both families
	s, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		require.NoError(t, unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0))
	} else {
		any = &unix.SockaddrInet4{}
		s, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Close(s)) })
	require.NoError(t, unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	require.NoError(t, unix.Bind(s, any))
	bound, err := unix.Getsockname(s)
	require.NoError(t, err)
	switch bound := bound.(type) {
	case *unix.SockaddrInet6:
		return bound.Port
	case *unix.SockaddrInet4:
		return bound.Port
	}
	require.Fail(t, "an address of another family", "%T", bound)
	return 0
}

// Address returns an address of this host at a port that is the test's own. Until the test listens there, connections
// are refused.
func Address(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(Keep(t)))
}
