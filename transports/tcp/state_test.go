package tcp

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLanesLiveByTheScript follows testdata/lives.txt event by event.
func TestLanesLiveByTheScript(t *testing.T) {
	text, err := os.ReadFile("testdata/lives.txt")
	require.NoError(t, err)
	events := map[string]event{}
	for e, name := range eventNames {
		events[name] = event(e)
	}
	seen := map[string]map[[2]state]bool{"initiator": {}, "responder": {}}
	for block := range strings.SplitSeq(string(text), "\n\n") {
		lines := strings.Split(strings.TrimSpace(block), "\n")
		end, title, _ := strings.Cut(lines[0], ":")
		if strings.HasPrefix(block, "#") {
			continue
		}
		var l life
		l.init(startOf(end))
		for i, line := range lines[1:] {
			fields := regexp.MustCompile(`\s{2,}`).Split(strings.TrimSpace(line), -1)
			if i > 0 {
				e, known := events[fields[0]]
				require.True(t, known, "%s: %q", title, line)
				from, to := l.advance(e)
				require.Equal(t, to, l.state())
				seen[end][[2]state{from, to}] = true
				fields = fields[1:]
			}
			require.Equal(t, strings.Join(fields, " "), describe(l.state()), "%s:%s, line %q", end, title, line)
		}
	}
	for end, moves := range map[string]moves{"initiator": initiatorMoves, "responder": responderMoves} {
		for from, row := range moves {
			for e, to := range row {
				if to != stateNone && event(e) != eventClosed {
					require.True(t, seen[end][[2]state{state(from), to}], "no script has the %s's %v -> %v", end, state(from), to)
				}
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
				require.False(t, !from.receives() && to.receives() && from != statePaused, "%s: %v on %v", end, from, event(e))
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
