package config

import (
	"fmt"
	"slices"
	"strings"
)

// Entry is one effective setting, for Engine.config.
type Entry struct {
	Key    string
	Value  any    // bool, int64, float64, string, []string, []float64 or decoded JSON; a copy where it is a list
	Origin string // "default", "environment TENT_CONF=/path", "argument", "argument /path"
	Active bool   // it has an effect in this process
	Why    string // why it has none, "" if it has
	Takes  string // in words
	Help   string
}

// Dump lists every known setting in the table's order.
func (c *Config) Dump() []Entry {
	entries := make([]Entry, len(c.settings))
	for i, s := range c.settings {
		why := c.why(s.Key)
		entries[i] = Entry{s.Key, copied(c.values[i]), c.origins[i], why == "", why, s.Takes.String(), s.Help}
	}
	return entries
}

// Inactive lists the settings that somebody set and that have no effect, for the log line at start.
func (c *Config) Inactive() []Entry {
	return slices.DeleteFunc(c.Dump(), func(e Entry) bool { return e.Active || e.Origin == OriginDefault })
}

// why returns the reason that a key has no effect, "" if it has one.
func (c *Config) why(key string) string {
	if branch := strings.TrimPrefix(group(key), "transports/"); branch != "" {
		if reason := c.whyInactive(branch); reason != "" {
			return reason
		}
	}
	if _, bound := c.bound[key]; !bound {
		return "nothing in this build reads it"
	}
	return ""
}

func copied(v any) any {
	switch v := v.(type) {
	case []string:
		return slices.Clone(v)
	case []float64:
		return slices.Clone(v)
	}
	return v
}

// Markdown renders the table of settings of a build, one section a transport, for the documentation.
func Markdown(o Options) string {
	var b strings.Builder
	c := newConfig(o)
	section := "-"
	for i, s := range c.settings {
		if g := group(s.Key); g != section {
			section = g
			title := "Engine"
			if branch, found := strings.CutPrefix(g, "transports/"); found {
				title = branch
			}
			fmt.Fprintf(&b, "\n### %s\n\n| key | takes | default | from | effect | meaning |\n|---|---|---|---|---|---|\n", title)
		}
		effect := "yes"
		if c.why(s.Key) != "" {
			effect = "kept"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", s.Key, cell(s.Takes.String()), cell(inCode(c.values[i])), s.Source, effect, cell(s.Help))
	}
	return strings.TrimLeft(b.String(), "\n")
}

func inCode(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return fmt.Sprintf("`%q`", v)
	case []string:
		return fmt.Sprintf("`%q`", v)
	case int64:
		return fmt.Sprintf("`%d`", v)
	}
	return fmt.Sprintf("`%v`", v)
}

// cell keeps a text inside its column.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
