package config

import (
	"slices"
	"strings"
)

// Entry is one effective setting, for Engine.config.
type Entry struct {
	Key    string
	Value  any    // bool, int64, float64, string, []string, []float64 or decoded JSON; a copy where it is a list
	Origin string // "default", "default (how it was computed)", "environment TENT_CONF=/path", "argument /path"
	Active bool   // it has an effect in this process
	Why    string // why it, or a part of it, has none; "" if all of it has
	Takes  string // in words
	Help   string
}

// Dump lists every known setting, with the value in force, in the order of the documents.
func (c *Config) Dump() []Entry {
	entries := make([]Entry, len(c.settings))
	for i, s := range c.settings {
		why := c.why(s.Key)
		entries[i] = Entry{s.Key, copied(c.values[i]), c.origins[i], why == "", why, s.Takes.String(), s.Help}
		if s.Key == policyKey && why == "" {
			entries[i].Why = c.idleInPolicies()
		}
	}
	return entries
}

// Inactive lists the settings that somebody set and that have no effect, or not in all, for the log line at start.
func (c *Config) Inactive() []Entry {
	return slices.DeleteFunc(c.Dump(), func(e Entry) bool { return e.Why == "" || isDefault(e.Origin) })
}

// why returns the reason that a key has no effect, "" if it has one.
func (c *Config) why(key string) string {
	owners := c.owners[key]
	for i, name := range owners {
		reason := c.whyIdle(c.carrierOf(name))
		if reason == "" {
			break // one that runs is enough
		}
		if i == len(owners)-1 {
			return reason
		}
	}
	if same := c.settings[c.index[key]].same; same != "" {
		return c.why(same)
	}
	if _, bound := c.targets[key]; bound {
		return c.whyOverruled(key)
	}
	if branch, found := strings.CutPrefix(group(key), "transports/"); found {
		if t := c.carrierOf(branch); t == nil || !t.settings.IsValid() {
			return "transport " + branch + " is not part of this build"
		}
	}
	return "nothing in this build reads it"
}

// hostKey is the older spelling of the host of metrics.
const hostKey = "metrics/http_host"

// whyOverruled returns the setting that keeps a key from having an effect, "" for none.
func (c *Config) whyOverruled(key string) string {
	older := strings.HasPrefix(key, "metrics/http_") && !isDefault(c.origins[c.index[key]])
	switch {
	case key == policyKey && c.Engine.LegacySelection:
		return "use_legacy_transport_selection is true"
	case older && c.Engine.MetricsListen != "":
		return "metrics/listen is set"
	case older && c.Engine.MetricsPort == 0 && key == hostKey && c.value(key) != c.settings[c.index[key]].Default:
		return "metrics/http_port is 0"
	}
	return ""
}

// copied returns a value that the reader may change. A list without entries is one, as the documentation has it, and
// not null in JSON.
func copied(v any) any {
	switch v := v.(type) {
	case []string:
		return append([]string{}, v...)
	case []float64:
		return append([]float64{}, v...)
	}
	return v
}
