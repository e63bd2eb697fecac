package tcp

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// machine is a state machine by the names of its states and events.
type machine struct {
	advance func(event string) (known bool)
	state   func() string
}

var machines = map[string]func() machine{
	"initiator": func() machine { return machineOf(stateDialled, &initiatorMoves) },
	"responder": func() machine { return machineOf(stateGreeting, &responderMoves) },
	"link": func() machine {
		l := &link{state: linkTrying}
		return machine{func(name string) bool {
			e := slices.Index(linkEventNames[:], name)
			if e >= 0 {
				l.advance(linkEvent(e))
			}
			return e >= 0
		}, func() string { return l.state.String() }}
	},
}

func machineOf(first state, m *moves) machine {
	l := &life{}
	l.init(first, m)
	return machine{func(name string) bool {
		e := slices.Index(eventNames[:], name)
		if e >= 0 {
			l.advance(event(e))
		}
		return e >= 0
	}, func() string { return describe(l.state()) }}
}

func describe(s state) string {
	text := s.String()
	if s.live() {
		text += " live"
	}
	if s.receives() {
		text += " reads"
	}
	return text
}

// TestLanesAndLinksLiveByTheScript follows testdata/lives.txt event by event. Every move of the tables is in it.
func TestLanesAndLinksLiveByTheScript(t *testing.T) {
	text, err := os.ReadFile("testdata/lives.txt")
	require.NoError(t, err)
	columns := regexp.MustCompile(`\s{2,}`)
	seen := map[[3]string]bool{}
	for block := range strings.SplitSeq(string(text), "\n\n") {
		lines := strings.Split(strings.TrimSpace(block), "\n")
		if strings.HasPrefix(block, "#") {
			continue
		}
		kind, title, _ := strings.Cut(lines[0], ":")
		m := machines[kind]()
		for i, line := range lines[1:] {
			fields := columns.Split(strings.TrimSpace(line), -1)
			if i > 0 {
				before := m.state()
				require.True(t, m.advance(fields[0]), "%s: %q", title, line)
				seen[[3]string{kind, before, fields[0]}] = true
				fields = fields[1:]
			}
			require.Equal(t, strings.Join(fields, " "), m.state(), "%s:%s, line %q", kind, title, line)
		}
	}
	missing := func(kind, before, event string) {
		assert.True(t, seen[[3]string{kind, before, event}], "no script of %s has %q in state %q", kind, event, before)
	}
	for kind, m := range map[string]moves{"initiator": initiatorMoves, "responder": responderMoves} {
		for from, row := range m {
			for e, to := range row {
				if to != stateNone {
					missing(kind, describe(state(from)), event(e).String())
				}
			}
		}
	}
	for from, row := range linkMoves {
		for e, to := range row {
			if to != 0 {
				missing("link", linkState(from).String(), linkEventNames[e])
			}
		}
	}
}

func startOf(end string) (state, *moves) {
	if end == "initiator" {
		return stateDialled, &initiatorMoves
	}
	return stateGreeting, &responderMoves
}

// TestNoLaneComesBackToLife walks every path of both lives.
func TestNoLaneComesBackToLife(t *testing.T) {
	for _, end := range []string{"initiator", "responder"} {
		first, m := startOf(end)
		reached, todo := map[state]bool{first: true}, []state{first}
		for len(todo) > 0 {
			from := todo[0]
			todo = todo[1:]
			for e, to := range m[from] {
				if to == stateNone {
					continue
				}
				require.False(t, !from.live() && to.live(), "%s: %v on %v", end, from, event(e))
				again := !from.receives() && to.receives()
				require.False(t, again && from != statePaused, "%s: %v on %v", end, from, event(e))
				require.False(t, event(e) == eventClosed && (to.live() || to.receives()), "%s: %v is closed", end, from)
				if !reached[to] {
					reached[to] = true
					todo = append(todo, to)
				}
			}
			if from != stateEnded && from != stateInDoubt {
				require.NotEqual(t, stateNone, m[from][eventClosed], "%s: %v cannot be closed", end, from)
			}
		}
		require.True(t, reached[stateEnded], end)
		for s := range stateCount {
			require.Equal(t, reached[s], m[s] != [eventCount]state{} || s == stateEnded, "%s: %v", end, s)
		}
	}
}
