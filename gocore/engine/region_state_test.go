package engine

import (
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

var regionEventNames = [...]string{"published", "closed", "freed", "retired"}

// TestRegionsLiveByTheScript follows testdata/region_lives.txt event by event, and wants each move of the table in it.
func TestRegionsLiveByTheScript(t *testing.T) {
	text, err := os.ReadFile("testdata/region_lives.txt")
	require.NoError(t, err)
	seen := map[regionState]map[regionEvent]bool{}
	for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		lines := strings.Split(block, "\n")
		if strings.HasPrefix(block, "#") {
			continue
		}
		var l regionLife
		for _, line := range lines[1:] {
			words := strings.Fields(line)
			want := words[len(words)-1]
			if len(words) == 2 {
				e := regionEvent(slices.Index(regionEventNames[:], words[0]))
				from := l.state()
				to, moved := l.advance(e)
				require.Equal(t, to, l.state())
				require.Equal(t, moved, from != to, "%s: %s", lines[0], line)
				if moved {
					if seen[from] == nil {
						seen[from] = map[regionEvent]bool{}
					}
					seen[from][e] = true
				}
			}
			require.Equal(t, want, l.state().String(), "%s: %s", lines[0], line)
		}
	}
	for from, moves := range regionMoves {
		for e := range moves {
			require.True(t, seen[from][e], "no script has %v at %s", regionEventNames[e], from)
		}
	}
}

// Freed and retired may race; exactly one of them sees the memory unmapped.
func TestMemoryIsUnmappedOnceWhicheverComesLast(t *testing.T) {
	for range 2000 {
		var l regionLife
		l.advance(eventPublished)
		l.advance(eventClosed)
		var unmaps atomic.Int32
		var wg sync.WaitGroup
		for _, e := range []regionEvent{eventFreed, eventRetired, eventFreed, eventRetired} {
			wg.Go(func() {
				if to, moved := l.advance(e); moved && to == regionUnmapped {
					unmaps.Add(1)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, unmaps.Load())
	}
}
