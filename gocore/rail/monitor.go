// Package rail is the policy about one rail: whether it fails too often (Monitor), how good it is (Health), how fast and how
// talkative it is (Meter), how it comes back (Return), who is to blame when it fails (Blame), and how many of a peer's rails
// may be out at once (MayLeave). It is pure: now is an argument, nothing is started, and gocore/dispatch is its only caller.
//
// Sources: the rail monitor of the failover seed (thresholds, cooldown, both recovery signals), the health values, the
// failures and the three scenarios of the LNet resiliency seed. Beyond them: memory of failures decays instead of being
// erased, probes bring a rail back before its cooldown ends, and a rail that comes back is trusted little by little.
package rail

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// Settings of a rail's policy; zero values mean the default in brackets. The first four are the failover seed's.
type Settings struct {
	Threshold   int           // rail_error_threshold: failures that pause the rail [3]
	Window      time.Duration // rail_error_window_secs: a failure later than this after the last one counts as the first [10s]
	Cooldown    time.Duration // rail_cooldown_secs: length of the first pause [30s]
	CooldownMax time.Duration // rail_cooldown_max_secs: no pause is longer [300s]
	Sensitivity int           // rail_health_sensitivity: what a failure costs of a health of 1000; 0 means the default [100]
	Recovery    int           // rail_health_recovery: what a success gives back [10]
	ProbeEvery  time.Duration // rail_probe_interval_ms: a rail that is out is asked so often while traffic wants its peer [10ms]
	SoftOut     float64       // rail_soft_out_max: share of a peer's rails that may be out on soft signals alone [0.75]
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
	if s.Sensitivity <= 0 {
		s.Sensitivity = 100
	}
	if s.Recovery <= 0 {
		s.Recovery = 10
	}
	if s.ProbeEvery <= 0 {
		s.ProbeEvery = 10 * time.Millisecond
	}
	if s.SoftOut <= 0 {
		s.SoftOut = 0.75
	}
	return s
}

// Monitor counts a rail's failures and pauses it.
//
//	healthy --Threshold failures, each within Window of the one before--> paused
//	paused  --Cooldown over, a success, or good probes------------------> healthy
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
	return max(min(2*m.remembered(s, now), s.CooldownMax), s.Cooldown)
}

// remembered is the length of the last pause, as far as it is not forgotten.
func (m *Monitor) remembered(s *Settings, now clock.Time) time.Duration {
	length := m.memory
	for quiet := now.Sub(m.paused); quiet >= s.Cooldown && length > s.Cooldown/2; quiet -= s.Cooldown {
		length /= 2
	}
	return length
}

// Trust is the number of good probes in a row that end a pause before its time: one after the first pause, twice as many
// with each that followed soon, at most 32.
func (m *Monitor) Trust(s *Settings, now clock.Time) int {
	need := 1
	for length := s.Cooldown; length < m.remembered(s, now) && need < 32; length *= 2 {
		need *= 2
	}
	return need
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

// Expire ends a pause whose time is over and reports whether it did.
func (m *Monitor) Expire(now clock.Time) bool {
	if m.resume == 0 || now < m.resume {
		return false
	}
	m.Resume(now)
	return true
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
