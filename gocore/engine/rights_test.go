package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/mem"
)

// forEngine is memory that is for the n-th of many engines.
func forEngine(n int) Memory {
	return Memory{Permission: mem.GlobalReadWrite, Peers: []string{fmt.Sprintf("id:%032x", n)}}
}

// A server shares memory with one engine after the other, for months. Lists that regions have are bounded, and those of
// before take nobody's place.
func TestListsOfPeersThatNoRegionHasMakeRoom(t *testing.T) {
	w := newWorkshop(t, "hand")
	whole := w.region("kv")
	var kept []mem.RegionID
	for n := range 2 * rulesMax {
		id, err := w.Share(whole.ID, Share{Size: 64, Peers: forEngine(n).Peers})
		require.NoError(t, err)
		if n < 2 {
			kept = append(kept, id)
			continue
		}
		require.NoError(t, w.CloseRegion(t.Context(), id))
		require.Empty(t, w.regions.retire.wait(t.Context()))
	}
	require.LessOrEqual(t, len(w.rules.list), rulesMax)
	require.Len(t, w.rules.byText, len(w.rules.list))
	for n, id := range kept {
		l := w.regions.get(id)
		require.Equal(t, 1, l.rule.regions)
		require.True(t, w.rules.rightsOf(fmt.Sprintf("uid:1 id:%032x", n)).sees(l), "its list stays in force")
		again, err := w.rules.of(w.Engine, forEngine(n))
		require.NoError(t, err)
		require.Same(t, l.rule, again)
	}
}

// So many lists are in force that there is no room for another one. The end of a region makes some.
func TestTheListsOfPeersThatRegionsHaveAreBounded(t *testing.T) {
	w := newWorkshop(t, "hand")
	var first *rule
	for n := range rulesMax {
		r, err := w.rules.of(w.Engine, forEngine(n))
		require.NoError(t, err)
		w.rules.enter(r)
		if n == 0 {
			first = r
		}
	}
	_, err := w.rules.of(w.Engine, forEngine(rulesMax))
	require.Equal(t, errs.TooManyRequests, errs.CodeOf(err), "%v", err)
	w.rules.leave(first)
	_, err = w.rules.of(w.Engine, forEngine(rulesMax))
	require.NoError(t, err)
}

// A rule is swept out between its making and the number of its region. It comes back, under its own number: peers find
// the region by that.
func TestARuleThatWasSweptMeanwhileComesBack(t *testing.T) {
	w := newWorkshop(t, "hand")
	made := func(n int) *rule {
		r, err := w.rules.of(w.Engine, forEngine(n))
		require.NoError(t, err)
		return r
	}
	late, other := made(1), made(2)
	w.rules.enter(other)
	w.rules.mu.Lock()
	w.rules.sweepLocked()
	w.rules.mu.Unlock()
	require.Equal(t, []*rule{other}, w.rules.list)
	came := w.rules.arrivals()
	region := &region{rule: late, Region: mem.Region{Permission: mem.GlobalReadWrite}}
	rights := func() rights { return w.rules.rightsOf(fmt.Sprintf("uid:1 id:%032x", 1)) }
	require.False(t, rights().sees(region))
	w.rules.enter(late)
	require.True(t, rights().sees(region))
	require.Equal(t, []*rule{late, other}, w.rules.list, "in the order of their numbers")
	require.Greater(t, w.rules.arrivals(), came, "an offer that is being made is made again")
	w.rules.enter(late)
	require.Len(t, w.rules.list, 2)
}
