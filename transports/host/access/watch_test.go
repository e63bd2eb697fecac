package access

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// An event may come after its process was forgotten. The number of the pidfd is another process's by then, and that
// one is not reported.
func TestALateEventIsOfItsOwnProcessAlone(t *testing.T) {
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0) // never ends
	require.NoError(t, err)
	defer unix.Close(pidfd)
	var w watcher
	defer w.close()
	var told []string
	add := func(name string) unix.EpollEvent {
		require.NoError(t, w.add(pidfd, func() { told = append(told, name) }))
		return unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(pidfd), Pad: w.ended[pidfd].serial}
	}
	late := add("the first")
	w.remove(pidfd)
	w.tell(late)
	own := add("the second")
	w.tell(late)
	require.Empty(t, told)
	for range 2 {
		w.tell(own)
	}
	require.Equal(t, []string{"the second"}, told, "once")
	w.remove(pidfd)
}
