package tcp

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/clock"
	"github.com/tent-engine/tent/gocore/transport"
)

// Heard asks the kernel about the connections of a rail. Its clock for that ticks every few milliseconds, so the times
// may be early by a tick. The lanes that the peer holds up are made patient meanwhile, see conn.waitForWindow.
func (t *Transport) Heard(r transport.Rail) (signs transport.Signs) {
	set := t.setOf(r)
	if set == nil {
		return signs
	}
	now := clock.Now()
	set.each(func(l *initiatorLane) {
		info := l.account()
		if info == nil {
			return
		}
		ago := func(ms uint32) clock.Time { return now.Add(-time.Duration(ms) * time.Millisecond) }
		acked, received, held := ago(info.Last_ack_recv), ago(info.Last_data_recv), windowClosed(info)
		signs.Heard = max(signs.Heard, acked, received)
		signs.Spoke = max(signs.Spoke, received)
		signs.Moved = max(signs.Moved, received)
		if info.Unacked > 0 && !held {
			signs.Moved = max(signs.Moved, acked)
		}
		signs.Held = signs.Held || held
		signs.Unacked = signs.Unacked || info.Notsent_bytes+info.Unacked > 0
		l.waitForWindow(held)
	})
	return signs
}

// windowClosed reports that bytes wait because the peer's process does not read: its kernel has no room for them.
func windowClosed(info *unix.TCPInfo) bool {
	return info.Notsent_bytes+info.Unacked > 0 && (info.Unacked == 0 || info.Snd_wnd == 0)
}

// windowProbeMost is the longest pause between two zero-window probes (RFC 9293, 3.8.6.1). The kernel's own is minutes:
// a path that goes down while the window is closed would be found late.
const windowProbeMost = time.Second

// waitForWindow makes the kernel keep a connection while its peer takes nothing and acknowledges probes. Otherwise
// TCP_USER_TIMEOUT (RFC 5482) ends it, and a peer that pauses would lose its lanes. The time-out is back as soon as
// bytes move.
func (c *conn) waitForWindow(closed bool) {
	c.armMu.Lock()
	defer c.armMu.Unlock()
	if c.fd < 0 || closed == c.patient {
		return
	}
	limit := int(c.t.settings.UserTimeout.Milliseconds())
	if closed {
		limit = 0 // as many unanswered probes as the kernel's tcp_retries2 says
		_ = unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, int(windowProbeMost.Milliseconds()))
	}
	if unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, limit) == nil {
		c.patient = closed
	}
}

// wasReset reports that the connection was ended by a reset: a peer that closes leaves it half open (RFC 9293, 3.6).
func (c *conn) wasReset() bool {
	info := c.account()
	return info != nil && info.State == unix.BPF_TCP_CLOSE
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
