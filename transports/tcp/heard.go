package tcp

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

// Heard asks the kernel when the last packet of a rail's peer came. Its clock for that ticks every few milliseconds,
// so the answer may be early by a tick. A lane is held up by the peer when bytes wait while none are on their way:
// its window is closed, because nobody reads there.
func (t *Transport) Heard(r transport.Rail) (at clock.Time, held bool) {
	set := t.setOf(r)
	if set == nil {
		return 0, false
	}
	now := clock.Now()
	set.each(func(l *initiatorLane) {
		info := l.account()
		if info == nil {
			return
		}
		silent := time.Duration(min(info.Last_ack_recv, info.Last_data_recv)) * time.Millisecond
		at = max(at, now.Add(-silent))
		held = held || (info.Unacked == 0 && info.Notsent_bytes > 0)
	})
	return at, held
}

// account returns the kernel's figures of the connection (TCP_INFO); nil once that is closed.
func (c *conn) account() *unix.TCPInfo {
	c.armMu.Lock()
	defer c.armMu.Unlock()
	if c.fd < 0 {
		return nil
	}
	info, err := unix.GetsockoptTCPInfo(c.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return nil
	}
	return info
}
