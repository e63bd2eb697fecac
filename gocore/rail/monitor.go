// Package rail is the policy about one rail: whether it is healthy (Monitor), how fast it is (Meter). It is pure: now is an
// argument, nothing is started, and gocore/dispatch is its only caller.
package rail

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// Settings of a monitor; zero values mean the default in brackets, which are the failover seed's.
type Settings struct {
	Threshold   int           // rail_error_threshold: failures that pause the rail [3]
	Window      time.Duration // rail_error_window_secs: a failure later than this after the last one counts as the first [10s]
	Cooldown    time.Duration // rail_cooldown_secs: length of the first pause [30s]
	CooldownMax time.Duration // no pause is longer [300s]
}

// WithDefaults fills what is zero.
func (s Settings) WithDefaults() Settings {
	if s.Threshold <= 0 {
		s.Threshold = 3
	}
	if s.Window <= 0 {
		s.Window = 10 * time.Second
	}
	if s.Cooldown <= 0 {
		s.Cooldown = 30 * time.Second
	}
	if s.CooldownMax <= 0 {
		s.CooldownMax = 300 * time.Second
	}
	s.CooldownMax = max(s.CooldownMax, s.Cooldown)
	return s
}

// Monitor counts a rail's failures and pauses it.
//
//	healthy --Threshold failures, each within Window of the one before--> paused
//	paused  --Cooldown over, or a success-------------------------------> healthy
//
// Each pause is twice as long as the one before, up to CooldownMax. The memory of that is halved for every Cooldown that
// passes without a pause, and not erased by a success as the seed has it: a rail that flaps would never learn.
type Monitor struct {
	failures int
	last     clock.Time // of the last failure
	resume   clock.Time // end of the pause; 0 when healthy
	paused   clock.Time // when the last pause ended
	memory   time.Duration
}

// Fail records a failure that is the rail's own fault and reports whether it began a pause.
func (m *Monitor) Fail(s *Settings, now clock.Time) bool {
	if m.resume != 0 && now < m.resume {
		return false // a straggler of the pause's own cause
	}
	if m.resume != 0 {
		m.Resume(now)
	}
	if m.failures > 0 && now.Sub(m.last) > s.Window {
		m.failures = 0
	}
	m.failures++
	m.last = now
	if m.failures < s.Threshold {
		return false
	}
	m.memory = m.next(s, now)
	m.resume = now.Add(m.memory)
	return true
}

// next is the length of a pause that begins now.
func (m *Monitor) next(s *Settings, now clock.Time) time.Duration {
	if m.memory == 0 {
		return s.Cooldown
	}
	length := min(2*m.memory, s.CooldownMax)
	for quiet := now.Sub(m.paused); quiet >= s.Cooldown && length > s.Cooldown; quiet -= s.Cooldown {
		length /= 2
	}
	return max(length, s.Cooldown)
}

// Succeed records a success and reports whether it ended a pause.
func (m *Monitor) Succeed(now clock.Time) bool {
	if m.failures == 0 {
		return false // the common case costs a comparison
	}
	recovered := m.resume != 0
	m.Resume(now)
	return recovered
}

// Resume ends a pause.
func (m *Monitor) Resume(now clock.Time) {
	if m.resume != 0 {
		m.paused = min(now, m.resume)
	}
	m.failures, m.resume = 0, 0
}

// Paused reports whether the rail is out at now.
func (m *Monitor) Paused(now clock.Time) bool { return m.resume != 0 && now < m.resume }

// Until is the end of the current pause, 0 if there is none.
func (m *Monitor) Until() clock.Time { return m.resume }

// Failures counts those since the last success or pause.
func (m *Monitor) Failures() int { return m.failures }
