package config

import (
	"fmt"
	"strings"
)

// columns begins a table.
const columns = "| key | takes | default | from | effect | meaning |\n|---|---|---|---|---|---|\n"

// Markdown renders the settings of a build for the documentation. There is one section for the engine and one for each
// branch of "transports", with a row a key. It is the same on every machine: computed defaults are shown in words.
func Markdown(o Options) string {
	var b strings.Builder
	c := newConfig(o)
	section := "-"
	for i := range c.settings {
		s := &c.settings[i]
		if g := group(s.Key); g != section {
			section = g
			title := "engine"
			if g != "" {
				title = g
			}
			b.WriteString("\n## " + title + "\n\n" + columns)
		}
		effect := "yes"
		if c.why(s.Key) != "" {
			effect = "kept"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n",
			s.Key, cell(s.Takes.String()), cell(s.defaultInWords()), s.Source, effect, cell(s.Help))
	}
	return strings.TrimLeft(b.String(), "\n")
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
