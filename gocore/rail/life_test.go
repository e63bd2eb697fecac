package rail

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/clock"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts print into testdata")

// TestLifeScripts plays the scripts of testdata/life. A line that begins with a tab is the output of the line before
// it; go test -rewrite renews those. The commands:
//
//	born [probation]       a new life
//	settings KEY=VALUE...  threshold, window, cooldown
//	+DURATION EVENT        lets that time pass, then observes an event by its name
//	+DURATION answered     a good answer to a probe; unanswered: none, or a bad one
//	+DURATION delivered N  bytes for slow start as well
//	ended holding          the same, with something out on the rail
//	inherit                the next generation of the same rail
func TestLifeScripts(t *testing.T) {
	scripts, err := filepath.Glob("testdata/life/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, scripts)
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(script), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(script)
			require.NoError(t, err)
			got := newTheatre().play(t, string(text))
			if *rewrite {
				require.NoError(t, os.WriteFile(script, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(text), got, "go test ./gocore/rail -run Life -rewrite renews it")
		})
	}
}

// theatre is the stage of a script.
type theatre struct {
	life     Life
	settings Settings
	now      clock.Time
}

func newTheatre() *theatre { return &theatre{settings: defaults} }

// play returns the script with the present output of each line.
func (p *theatre) play(t *testing.T, script string) string {
	var b strings.Builder
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "\t") {
			continue
		}
		b.WriteString(line)
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		fmt.Fprintf(&b, "\t%s\n", p.command(t, words))
	}
	return b.String()
}

func (p *theatre) command(t *testing.T, words []string) string {
	switch words[0] {
	case "born":
		p.life = Born(len(words) > 1 && words[1] == "probation")
		return p.describe(Change{From: p.life.state, To: p.life.state})
	case "settings":
		for _, word := range words[1:] {
			p.set(t, word)
		}
		return "ok"
	case "inherit":
		old := p.life
		p.life = Born(false)
		opened := p.life.Inherit(&old, &p.settings, p.now)
		return p.describe(Change{From: old.state, To: p.life.state, Opened: opened})
	}
	pause, err := time.ParseDuration(strings.TrimPrefix(words[0], "+"))
	require.NoError(t, err, words)
	p.now = p.now.Add(pause)
	switch words[1] {
	case "answered":
		p.life.Start.Answered()
		return p.describe(p.life.Observe(Proved, &p.settings, p.now))
	case "unanswered":
		return fmt.Sprintf("%d in a row", p.life.Start.Unanswered())
	}
	if len(words) > 2 && words[2] == "holding" {
		p.life.Lose()
	} else if len(words) > 2 {
		bytes, err := strconv.ParseUint(words[2], 10, 64)
		require.NoError(t, err, words)
		p.life.Start.Delivered(bytes)
	}
	return p.describe(p.life.Observe(event(t, words[1]), &p.settings, p.now))
}

func (p *theatre) set(t *testing.T, word string) {
	key, value, _ := strings.Cut(word, "=")
	if key == "threshold" {
		n, err := strconv.Atoi(value)
		require.NoError(t, err)
		p.settings.Threshold = n
		return
	}
	d, err := time.ParseDuration(value)
	require.NoError(t, err)
	switch key {
	case "window":
		p.settings.Window = d
	case "cooldown":
		p.settings.Cooldown = d
	default:
		require.Fail(t, "no such setting", key)
	}
}

func event(t *testing.T, name string) Event {
	for e := Failed; e <= Ended; e++ {
		if e.String() == name {
			return e
		}
	}
	require.Fail(t, "no such event", name)
	return 0
}

// describe prints a change, and the state of breaker and slow start after it.
func (p *theatre) describe(c Change) string {
	text := label(c.From)
	if c.To != c.From {
		text += " -> " + label(c.To)
	}
	if c.Opened {
		text += fmt.Sprintf(", opened for %v", p.life.Breaker.Until().Sub(p.now))
	}
	if n := p.life.Breaker.Failures(); n > 0 {
		text += fmt.Sprintf(", failures %d", n)
	}
	if n := p.life.LostInARow(); n > 0 {
		text += fmt.Sprintf(", lost in a row %d", n)
	}
	if c.Recovered() {
		text += ", recovered"
	}
	if p.life.Start.Ramping() {
		text += fmt.Sprintf(", window %d", p.life.Start.Window(1<<20))
	}
	return text
}

// Each state meets each event, with the breaker closed and open: nothing but the arrows of the diagram may happen.
func TestEveryStateMeetsEveryEvent(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, "%-12s %-8s", "state", "breaker")
	for e := Failed; e <= Ended; e++ {
		fmt.Fprintf(&b, " %12v", e)
	}
	for state := Up; state <= DownFenced; state++ {
		for _, open := range []bool{false, true} {
			if (state == Paused) != open && state.Healthy() || state == Paused && !open {
				continue // cannot be: a rail with an open breaker is paused or worse
			}
			fmt.Fprintf(&b, "\n%-12s %-8s", label(state), map[bool]string{false: "closed", true: "open"}[open])
			for e := Failed; e <= Ended; e++ {
				life := Life{state: state, Breaker: Breaker{open: open, until: clock.Time(time.Hour)}}
				if open {
					life.Breaker.failures = defaults.Threshold
				}
				change := life.Observe(e, &defaults, clock.Time(time.Minute))
				require.Equal(t, state, change.From)
				require.Equal(t, life.state, change.To)
				fmt.Fprintf(&b, " %12s", label(change.To))
			}
		}
	}
	got := strings.ReplaceAll(b.String()+"\n", " \n", "\n")
	const golden = "testdata/transitions.txt"
	if *rewrite {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// label is the name of a state, different for each.
func label(s State) string {
	if s == DownFenced {
		return "down,fenced"
	}
	return s.String()
}
