// Package leaks counts the resources that a test must give back. Goroutines are counted by go.uber.org/goleak.
package leaks

import (
	"net"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// netpoller makes the Go runtime open the two descriptors of its network poller. It does so at the first use and keeps
// them, so a test that happens to be the first would seem to leak them.
var netpoller = sync.OnceFunc(func() {
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		_ = l.Close()
	}
})

// Descriptors returns the number of the process's open files, one for the look itself among them.
func Descriptors(t testing.TB) int {
	t.Helper()
	netpoller()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}
