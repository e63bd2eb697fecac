package config

import (
	"fmt"
	"path"
	"reflect"
	"strings"
)

// columns begins a table.
const columns = "| key | takes | default | from | effect | meaning |\n|---|---|---|---|---|---|\n"

// Markdown renders the settings of a build for the documentation. There is one section for the engine, one for the
// rails of all transports, and one for each branch of "transports", with a row a key. It is the same on every machine:
// computed defaults are shown in words.
func Markdown(o Options) string {
	var b strings.Builder
	c := newConfig(o)
	rails, shown := c.railsInWords()
	section := "-"
	for i := range c.settings {
		s := &c.settings[i]
		if shown[s.Key] {
			continue
		}
		if g := group(s.Key); g != section {
			if section == "" {
				b.WriteString(rails)
			}
			section = g
			title := "engine"
			if g != "" {
				title = g
			}
			b.WriteString("\n## " + title + "\n\n" + columns)
		}
		b.WriteString(c.row(s.Key, s))
	}
	return strings.TrimLeft(b.String(), "\n")
}

// railsInWords renders the keys that every transport with rails takes, once for all. It returns the keys that this
// shows: a transport with another default of its own has a row of its own.
func (c *Config) railsInWords() (section string, shown map[string]bool) {
	shown = map[string]bool{}
	var b strings.Builder
	var names []string
	for i := range c.carriers {
		t := &c.carriers[i]
		if c.RailOf(t.Name) == nil {
			continue
		}
		names = append(names, "`"+t.branch()+"`")
		for _, f := range fieldsOf(reflect.TypeFor[Rail](), "transports/"+t.branch()) {
			row := c.row("transports/<name>/"+path.Base(f.Key), &c.settings[c.index[f.Key]])
			if len(names) == 1 {
				b.WriteString(row)
			}
			shown[f.Key] = strings.Contains(b.String(), row)
		}
	}
	if len(names) == 0 {
		return "", shown
	}
	return "\n## transports with rails\n\n`<name>` stands for each of " + strings.Join(names, ", ") + ".\n\n" +
		columns + b.String(), shown
}

// row is the line of a setting under a name.
func (c *Config) row(name string, s *Setting) string {
	effect := "yes"
	if c.why(s.Key) != "" {
		effect = "kept"
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s | %s | %s |\n",
		name, cell(s.Takes.String()), cell(s.defaultInWords()), s.Source, effect, cell(s.Help))
}

func (s *Setting) defaultInWords() string {
	switch {
	case s.Computed != "":
		return s.Computed
	case s.same != "":
		return "that of `" + s.same + "`"
	}
	switch v := s.Default.(type) {
	case nil:
		return ""
	case string, []string:
		return fmt.Sprintf("`%q`", v)
	case []float64:
		return "`" + strings.Join(strings.Fields(fmt.Sprint(v)), ", ") + "`"
	case int64:
		if s.Takes.Unit == "B" {
			return sizeInWords(v)
		}
	}
	return fmt.Sprintf("`%v`", s.Default)
}

// sizeInWords shows a number of bytes in the largest unit that divides it.
func sizeInWords(n int64) string {
	for i := len(sizes) - 1; i >= 0; i-- {
		if unit := int64(sizes[i].factor); n >= unit && n%unit == 0 {
			return fmt.Sprintf("`%d` (%d %s)", n, n/unit, sizes[i].suffix)
		}
	}
	return fmt.Sprintf("`%d`", n)
}

// cell keeps a text inside its column.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
