package rail

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The ends of these tests: ours are 1 and 2; peer 1 has 11 and 12, peer 2 has 21 and 22.
var failed = Pair{Local: 1, Remote: 11, Peer: 1}

func works(local, remote int) Sighting { return Sighting{Pair{local, remote, remote / 10}, true} }
func fails(local, remote int) Sighting { return Sighting{Pair{local, remote, remote / 10}, false} }

// The LNet seed's list of possible failures, and the conclusion of a node from each.
func TestBlameFollowsTheListOfFailuresOfLNet(t *testing.T) {
	for name, c := range map[string]struct {
		seen []Sighting
		want Culprit
	}{
		"nothing else is known":       {nil, Path},
		"its own record says nothing": {[]Sighting{fails(1, 11)}, Path},
		"peer interface not reachable, reached from another of ours": {[]Sighting{works(1, 12), works(2, 11)},
			Path},
		"peer interface not reachable, no other of ours can tell": {[]Sighting{works(1, 12)}, Path},
		"peer interface not reachable from any of ours, its other is": {[]Sighting{works(1, 12), fails(2, 11)},
			RemoteEnd},
		"the same, and only another of ours reaches the other": {[]Sighting{works(2, 12), fails(2, 11)},
			RemoteEnd},
		"some peer interfaces on a net not reachable, others are": {[]Sighting{works(1, 21), fails(1, 22),
			works(2, 12)}, Path},
		"all peer interfaces on a net not reachable, ours alone": {[]Sighting{fails(1, 21), works(2, 12),
			works(2, 22)}, LocalEnd},
		"the same, and only another peer is reached by another of ours": {[]Sighting{fails(1, 21), works(2, 22)},
			LocalEnd},
		"our interface reaches no interface of a peer, another of ours": {[]Sighting{fails(1, 12), works(2, 12)},
			LocalEnd},
		"all interfaces of a peer not reachable": {[]Sighting{fails(2, 12)}, WholePeer},
		"the same, and other peers are well": {[]Sighting{fails(2, 12), works(1, 21),
			works(2, 22)}, WholePeer},
		"no interface of ours reaches anybody: there is nobody to blame": {[]Sighting{fails(1, 21), fails(2, 12),
			fails(2, 22)}, WholePeer},
		"matched rails of one peer, the others are well": {[]Sighting{works(2, 12)}, Path},
		"the same numbers of ends at another peer are other ends": {[]Sighting{{Pair{2, 11, 2}, false},
			works(2, 12)}, Path},
	} {
		require.Equal(t, c.want, Blame(failed, c.seen), name)
	}
}

// The LNet seed's reasons for a time-out, and the ends that lose health by each.
func TestDemeritsFollowTheScenariosOfLNet(t *testing.T) {
	for name, c := range map[string]struct {
		stuck         Stuck
		local, remote bool
	}{
		"scenario 1: message not posted":           {NotPosted, true, false},
		"scenario 2: transmit not completed":       {NotTransmitted, true, true},
		"scenario 3: no acknowledgement by remote": {NotAcknowledged, false, true},
	} {
		local, remote := c.stuck.Demerits()
		require.Equal(t, []bool{c.local, c.remote}, []bool{local, remote}, name)
	}
}

func TestOnlyAShareOfRailsMayBeOutOnSoftSignals(t *testing.T) {
	for _, c := range []struct {
		total int
		share float64
		want  int // that may be out
	}{{1, 0.75, 0}, {2, 0.75, 1}, {3, 0.75, 2}, {4, 0.75, 3}, {8, 0.75, 6}, {4, 0.5, 2}, {4, 0.25, 1}, {4, 0.1, 1},
		{4, 1, 3}, {0, 1, 0}} {
		out := 0
		for out < c.total && MayLeave(out, c.total, c.share) {
			out++
		}
		require.Equal(t, c.want, out, "%+v", c)
	}
}

func TestHealthStaysInItsRangeAndIsComparedInSteps(t *testing.T) {
	var h Health
	require.Equal(t, 1000, h.Value())
	require.False(t, h.Raise(10, 100), "it was whole")
	h.Lower(100)
	require.Equal(t, 900, h.Value())
	require.Equal(t, 1, h.Band(100))
	require.True(t, h.Raise(10, 100), "within one failure of whole")
	require.Equal(t, 0, h.Band(100))
	require.False(t, h.Raise(10, 100))
	for range 100 {
		h.Lower(100)
	}
	require.Zero(t, h.Value())
	require.Equal(t, 1000, h.Band(1), "a range of 0 compares each point")
	require.Zero(t, h.Band(1001), "a range of 1000 leaves health out")
	for i := range 100 {
		require.Equal(t, 10*i, h.Value(), "a success gives back its part")
		h.Raise(10, 100)
	}
	h.Raise(10, 100)
	require.Equal(t, 1000, h.Value())
}
