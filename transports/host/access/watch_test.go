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

// A peer's call that came before the end of the transport may end after it. The number of the epoll is another file's
// by then.
func TestNothingIsWatchedAfterTheEnd(t *testing.T) {
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	require.NoError(t, err)
	defer unix.Close(pidfd)
	var w watcher
	require.NoError(t, w.add(pidfd, func() {}))
	closed := w.epfd
	w.close()
	another, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(another)
	if another != closed {
		require.NoError(t, unix.Dup3(another, closed, unix.O_CLOEXEC))
		defer unix.Close(closed)
	}
	require.NoError(t, unix.EpollCtl(another, unix.EPOLL_CTL_ADD, pidfd, &unix.EpollEvent{Events: unix.EPOLLIN}))
	w.remove(pidfd)
	require.NoError(t, unix.EpollCtl(another, unix.EPOLL_CTL_MOD, pidfd, &unix.EpollEvent{}), "it is there still")
	require.Error(t, w.add(pidfd, func() {}))
}
