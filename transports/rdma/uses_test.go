package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUsesOfARegionAreCountedTogether follows the count of two regions beside that of their slices.
func TestUsesOfARegionAreCountedTogether(t *testing.T) {
	var spare uses
	var one, other region
	require.True(t, spare.take(&one, 3))
	require.Equal(t, int64(3), one.users.Load(), "all three at once")
	require.True(t, spare.take(&one, 2))
	require.Equal(t, int64(3), one.users.Load())
	require.True(t, spare.take(&other, 1), "of the next region")
	require.Equal(t, int64(2), one.users.Load(), "what no slice needs is given back")
	spare.put(&one)
	spare.put(&one)
	require.Equal(t, int64(2), one.users.Load(), "not yet")
	spare.put(&other)
	require.Zero(t, one.users.Load())
	spare.release()
	require.Zero(t, other.users.Load())
	spare.release()
	require.Zero(t, other.users.Load(), "once")
}

// TestTheLastUseOfAnEndedRegionUnpinsIt ends a region while its rail has a use in hand, and one of a slice is out.
func TestTheLastUseOfAnEndedRegionUnpinsIt(t *testing.T) {
	var spare uses
	var r region
	r.keys.Store(newKeys(1, 0))
	r.retired = []*memory{nil}
	require.True(t, spare.take(&r, 2))
	require.NotEqual(t, int64(-ending), r.users.Add(-ending))
	spare.release()
	require.False(t, spare.take(&r, 1), "it has ended")
	require.NotNil(t, r.retired, "a slice still uses it")
	spare.put(&r)
	spare.release()
	require.Nil(t, r.retired)
}

// TestMemoryThatASliceUsesStaysPinned although its region has ended: the NIC still reads it.
func TestMemoryThatASliceUsesStaysPinned(t *testing.T) {
	r := newRigOver(t, 1, func(s *Settings) { s.Timeout, s.Retries = 14, 6 })
	a := r.a.Transport.(*Transport)
	own := a.regions.Lookup(r.local.Key)
	r.f.Control(t, "silence fake0 1") // the request waits in the NIC
	s := r.slice(t, r.c.Rail(t), 0, 4096)
	require.Equal(t, 1, r.c.Submit(s))
	require.NoError(t, a.Deregister(t.Context(), r.local.Key))
	require.False(t, own.keys.Load().local[0].ended)
	r.f.Control(t, "silence fake0 0")
	require.Nil(t, r.c.Wait(t, s)[0].Err)
	require.NoError(t, r.remote.Check(moved, 0, 0, 4096))
	await(t, "the end of its pinning", func() bool {
		own.mu.Lock()
		defer own.mu.Unlock()
		return own.keys.Load().local[0].ended
	})
}
