package engine

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tent-engine/tent/gocore/mem"
)

// crowd is an engine with regions side by side in one mapping, in a random order.
type crowd struct {
	*workshop
	start uintptr
	order []int // places without a region
}

const crowdBytes = 4096 // of a region

func newCrowd(t *testing.T, most int) *crowd {
	start, err := unix.MmapPtr(-1, 0, nil, uintptr(most)*crowdBytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.MunmapPtr(start, uintptr(most)*crowdBytes)) })
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return &crowd{newWorkshop(t, "hand"), uintptr(start), rand.New(rand.NewPCG(seed, 0)).Perm(most)}
}

// register registers a number of regions, and leaves their places in the order.
func (c *crowd) register(count int) []mem.RegionID {
	ids := make([]mem.RegionID, count)
	for i := range ids {
		var err error
		ids[i], err = c.Register(Memory{Addr: c.start + uintptr(c.order[i])*crowdBytes, Size: crowdBytes,
			Location: "cpu:0", Permission: mem.GlobalReadWrite})
		require.NoError(c.t, err)
	}
	return ids
}

// churn registers and closes a number of regions, and returns the allocations and the bytes of each.
func (c *crowd) churn(count int) (allocations, bytes float64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, id := range c.register(count) {
		require.NoError(c.t, c.CloseRegion(c.t.Context(), id))
	}
	c.regions.retire.wait(c.t.Context())
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(count),
		float64(after.TotalAlloc-before.TotalAlloc) / float64(count)
}

// A registration and a close allocate the same beside 10,000 regions as beside 100. Their time follows, since the
// collector pays for each allocation again; `make bench-scale` measures it.
func TestARegionAllocatesTheSameBesideAnyNumberOfOthers(t *testing.T) {
	const few, many, churned = 100, 10_000, 1000
	c := newCrowd(t, many+churned)
	beside := func(more int) (allocations, bytes float64) {
		c.register(more)
		c.order = c.order[more:]
		c.churn(churned) // tables reach their size
		return c.churn(churned)
	}
	allocations, bytes := beside(few)
	allocationsThen, bytesThen := beside(many - few)
	t.Logf("%.1f allocations of %.0f bytes, then %.1f of %.0f", allocations, bytes, allocationsThen, bytesThen)
	require.Less(t, allocationsThen, 1.05*allocations)
	require.Less(t, bytesThen, 1.05*bytes)
}
