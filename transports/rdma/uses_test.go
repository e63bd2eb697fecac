package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
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
	spare.put(new(region)) // the rail turns to another one, with its mutex
	require.NotNil(t, r.retired)
	spare.end()
	require.Nil(t, r.retired)
}

// TestTheLastUseUnpinsBehindTheCompletions: a queue pair is made with the device's mutex, and may wait for the right to
// take completions. So nobody waits for the mutex with that right.
func TestTheLastUseUnpinsBehindTheCompletions(t *testing.T) {
	r := newRigOver(t, 1, func(s *Settings) { s.Timeout, s.Retries = 14, 6 })
	a, d := r.a.Transport.(*Transport), r.first().device
	ends := r.a.Register(t, 4096, mem.LocalReadWrite)
	own := a.regions.Lookup(ends.Key)
	r.f.Control(t, "silence fake0 1")
	first := r.c.Slice(transport.Write, r.c.Rail(t), ends, 0, r.remote, 0, 4096)
	second := r.slice(t, r.c.Rail(t), 8192, 4096)
	require.Equal(t, 2, r.c.Submit(first, second))
	require.NoError(t, a.Deregister(t.Context(), ends.Key))
	d.mu.Lock()
	r.f.Control(t, "silence fake0 0")
	for _, end := range r.c.Wait(t, first, second) {
		require.Nil(t, end.Err)
	}
	await(t, "the right to take completions", func() bool { return d.pollMu.TryLock() })
	d.pollMu.Unlock()
	d.mu.Unlock()
	await(t, "the end of its pinning", func() bool {
		own.mu.Lock()
		defer own.mu.Unlock()
		return own.keys.Load().local[0].ended
	})
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
