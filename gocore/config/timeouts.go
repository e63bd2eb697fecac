package config

import (
	"strings"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
)

// ladder has the time limits that only make sense in this order, from the shortest to the longest. A rail is suspected
// before it is given up, that before its attempts have failed on their transport, and that before the task ends. The
// LNet seed asks for this relation; the caller's own time-out is no part of it.
var ladder = [...]string{"rail_suspect_ms", "rail_condemn_ms", "attempt_timeout_ms", "transfer_stall_timeout"}

// checkTimeouts wants the ladder to rise, and the pauses between rounds to fit into a task.
func (c *Config) checkTimeouts() error {
	if err := c.climb(); err != nil {
		return err
	}
	if err := c.checkOutage(); err != nil {
		return err
	}
	c.inheritSuspicion()
	c.followSensitivity()
	return c.checkRounds()
}

// checkOutage refuses patience with a silent peer that the stall limit would cut short.
func (c *Config) checkOutage() error {
	outage, stall := c.index["peer_outage_timeout"], c.index["transfer_stall_timeout"]
	if c.duration(outage) <= c.duration(stall) {
		return nil
	}
	return errs.New(errs.InvalidArgument, "config", "peer_outage_timeout is %v (%s), which is more than "+
		"transfer_stall_timeout, %v (%s)", c.duration(outage), c.origins[outage], c.duration(stall), c.origins[stall]).
		WithHint("a transfer to a silent peer ends by the stall limit before")
}

// inheritSuspicion gives the rails of a transport the engine's limit where they have none of their own. Theirs may be
// the longer one: a rail is given up when it stays silent for rail_condemn_ms after it was suspected.
func (c *Config) inheritSuspicion() {
	engine := c.index["rail_suspect_ms"]
	for i := range c.settings {
		if strings.HasSuffix(c.settings[i].Key, "/rail_suspect_ms") && isDefault(c.origins[i]) {
			c.values[i], c.origins[i] = c.values[engine], c.origins[engine]
		}
	}
}

// followSensitivity makes one failure of a rail more than the range of health, where that was not set.
func (c *Config) followSensitivity() {
	for i := range c.settings {
		branch, is := strings.CutSuffix(c.settings[i].Key, "/health_value_range")
		if !is || !isDefault(c.origins[i]) {
			continue
		}
		failure := branch + "/rail_health_sensitivity"
		if j := c.index[failure]; !isDefault(c.origins[j]) {
			c.values[i], c.origins[i] = c.values[j].(int64)-1, OriginDefault+" (below "+failure+")"
		}
	}
}

// climb checks the ladder. Limits that nobody has set give way to those that somebody has: each is at most a third of
// the next one.
func (c *Config) climb() error {
	for i := len(ladder) - 2; i >= 0; i-- {
		low, high := c.index[ladder[i]], c.index[ladder[i+1]]
		most := c.duration(high)
		switch {
		case c.duration(low) < most:
		case isDefault(c.origins[low]):
			c.values[low] = max(int64(most/3/time.Millisecond), 1)
			c.origins[low] = OriginDefault + " (below " + ladder[i+1] + ")"
		default:
			return errs.New(errs.InvalidArgument, "config", "%s is %v (%s), which is not less than %s, %v (%s)",
				ladder[i], c.duration(low), c.origins[low], ladder[i+1], most, c.origins[high]).
				WithHint("a limit inside another one must be the shorter")
		}
	}
	return nil
}

func (c *Config) checkRounds() error {
	rounds, interval := c.index["resend_rounds"], c.index["resend_interval_ms"]
	task := c.duration(c.index["transfer_stall_timeout"])
	pauses := time.Duration(0)
	for i := range c.values[rounds].(int64) {
		pauses += c.duration(interval) << min(i, 7)
	}
	if pauses > task && !(isDefault(c.origins[rounds]) && isDefault(c.origins[interval])) {
		return errs.New(errs.InvalidArgument, "config",
			"resend_rounds %d with resend_interval_ms %v pause for %v, longer than transfer_stall_timeout, %v",
			c.values[rounds], c.duration(interval), pauses, task).WithHint("a request would end before its rounds do")
	}
	return nil
}

// duration is the value of a key that is a time.
func (c *Config) duration(i int) time.Duration {
	unit := time.Duration(units[c.settings[i].Takes.Unit])
	if f, ok := c.values[i].(float64); ok {
		return time.Duration(f * float64(unit))
	}
	return time.Duration(c.values[i].(int64)) * unit
}
