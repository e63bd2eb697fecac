package rail

import (
	"time"

	"github.com/tent-engine/tent/gocore/clock"
)

// Settings of a rail's policy; zero values mean the default in brackets. The first four are the failover seed's.
type Settings struct {
	Threshold   int           // rail_error_threshold: failures that pause the rail [3]
	Window      time.Duration // rail_error_window_secs: a failure that comes later than this counts as the first [10s]
	Cooldown    time.Duration // rail_cooldown_secs: length of the first pause [30s]
	CooldownMax time.Duration // rail_cooldown_max_secs: no pause is longer [300s]
	Sensitivity int           // rail_health_sensitivity: cost of a failure, of a health of 1000 [100]
	Step        int           // one more than health_value_range: health is compared in such steps [Sensitivity]
	Recovery    int           // rail_health_recovery: gain of a success [10]
	ProbeEvery  time.Duration // rail_probe_interval_ms: pause between probes of a rail that is out and wanted [10ms]
	SoftOut     float64       // rail_soft_out_max: share of a peer's rails that may be out on soft signals alone [0.75]
}

// WithDefaults fills fields that are zero.
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
	if s.Step <= 0 {
		s.Step = s.Sensitivity
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

// Breaker counts a rail's failures and pauses it: a circuit breaker (Nygard, "Release It!", 2007). The probes and the
// slow start of a rail that comes back are its half-open phase; SlowStart keeps them.
//
//	closed --Threshold failures, each within Window of the one before--> open, for Cooldown
//	closed --one that proves enough (Trip)-----------------------------> open, for Cooldown
//	open   --the pause is over, a success, or good probes--------------> closed
//
// Each pause is twice as long as the one before, up to CooldownMax. The memory of the last one is halved for every
// Cooldown that passes without a pause. A success does not erase it as the seed has it: a rail that flaps would never
// learn.
type Breaker struct {
	failures int        // since the last success or pause
	last     clock.Time // of the last failure
	open     bool
	until    clock.Time // end of the pause while open
	ended    clock.Time // when the last pause ended
	memory   time.Duration
}

// Fail records a failure that is the rail's own fault and reports whether it opened the breaker.
func (b *Breaker) Fail(s *Settings, now clock.Time) bool {
	if b.open && now < b.until {
		return false // a straggler of the pause's own cause
	}
	if b.open {
		b.Close(now)
	}
	if b.failures > 0 && now.Sub(b.last) > s.Window {
		b.failures = 0
	}
	b.failures++
	b.last = now
	if b.failures < s.Threshold {
		return false
	}
	b.trip(s, now)
	return true
}

// Trip opens the breaker at one failure and reports whether it was closed.
func (b *Breaker) Trip(s *Settings, now clock.Time) bool {
	if b.open && now < b.until {
		return false
	}
	if b.open {
		b.Close(now)
	}
	b.failures++
	b.trip(s, now)
	return true
}

func (b *Breaker) trip(s *Settings, now clock.Time) {
	b.memory = b.next(s, now)
	b.open, b.until = true, now.Add(b.memory)
}

// next is the length of a pause that begins now.
func (b *Breaker) next(s *Settings, now clock.Time) time.Duration {
	if b.memory == 0 {
		return s.Cooldown
	}
	return max(min(2*b.remembered(s, now), s.CooldownMax), s.Cooldown)
}

// remembered is the length of the last pause, as far as it is not forgotten.
func (b *Breaker) remembered(s *Settings, now clock.Time) time.Duration {
	length := b.memory
	for quiet := now.Sub(b.ended); quiet >= s.Cooldown && length > s.Cooldown/2; quiet -= s.Cooldown {
		length /= 2
	}
	return length
}

// Trust is the number of good probes in a row that end a pause before its time. It is one after the first pause, twice
// as many with each that followed soon, at most 32.
func (b *Breaker) Trust(s *Settings, now clock.Time) int {
	need := 1
	for length := s.Cooldown; length < b.remembered(s, now) && need < 32; length *= 2 {
		need *= 2
	}
	return need
}

// Close ends a pause, if there is one, and forgets the failures before it.
func (b *Breaker) Close(now clock.Time) {
	if b.open {
		b.ended = min(now, b.until)
	}
	b.failures, b.open = 0, false
}

// Open reports whether the rail is paused.
func (b *Breaker) Open() bool { return b.open }

// Until is the end of the pause of an open breaker.
func (b *Breaker) Until() clock.Time { return b.until }

// Failures counts those since the last success or pause.
func (b *Breaker) Failures() int { return b.failures }
