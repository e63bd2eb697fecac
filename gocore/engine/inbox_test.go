package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/dispatch"
	"github.com/tent-engine/tent/gocore/plan"
	"github.com/tent-engine/tent/gocore/transport"
)

// A hostile owner announces fences faster than steps can run. The waiting ones stay few, and each has the newest
// epoch of its region.
func TestAFloodOfFencesWaitsInLittleMemory(t *testing.T) {
	var box, taken inbox
	fenced := func(key transport.RemoteKey, epoch transport.Epoch) {
		box.notice(notice{kind: noticeFenced, link: plan.LinkID(1), key: key, epoch: epoch})
	}
	for epoch := range transport.Epoch(10_000) {
		fenced(7, 9_999-epoch)
	}
	for key := range transport.RemoteKey(100_000) {
		fenced(key+100, 3)
	}
	fenced(7, 10_001) // of a region that waits already: never dropped
	box.swap(&taken)
	require.Empty(t, taken.notices)
	require.Len(t, taken.fences, fencesMax)
	require.Equal(t, transport.Epoch(10_001), taken.fences[dispatch.RegionKey{Link: 1, Key: 7}])
	require.Equal(t, transport.Epoch(3), taken.fences[dispatch.RegionKey{Link: 1, Key: 100}])
	require.Empty(t, box.fences)
}
