package transporttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/transport"
)

// bells hang as they are.
type bells struct{ transport.Exclusive }

func (bells) Hang(epoll int, w transport.Watch) error {
	return unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, int(w.Fd), &unix.EpollEvent{Events: unix.EPOLLIN, Fd: w.Fd})
}

// A bell that rang before does not keep the sleeper's test waiting for its sleep.
func TestARingOfBeforeEndsRingInSleep(t *testing.T) {
	for _, before := range []bool{false, true} {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		require.NoError(t, err)
		list, rings := []transport.Watch{{Fd: int32(fd), Events: unix.POLLIN}}, 0
		ring := func() {
			rings++
			_, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
			require.NoError(t, err)
		}
		if before {
			ring()
		}
		RingInSleep(t, bells{}, list, time.Minute, ring)
		require.NotZero(t, list[0].Ready)
		require.Equal(t, map[bool]int{false: 1, true: 2}[before], rings)
		require.NoError(t, unix.Close(fd))
	}
}
