package engine

import (
	"math/rand"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tent-engine/tent/gocore/mem"
)

func testRegion(addr uintptr, size uint64) *region {
	return &region{Region: mem.Region{Addr: addr, Size: size}}
}

// A look-up that runs beside the registration of an overlapping region sees the table before it or after it. It never
// sees a mix that misses a region which is open all the time.
func TestLookUpBesideARegistrationNeverMissesAnOpenRegion(t *testing.T) {
	var table regionTable
	outer := testRegion(0x10000, 0x10000)
	require.Nil(t, table.add(outer))
	var registrations atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			inner := testRegion(0x12000, 0x1000)
			inner.ID = table.reserve()
			if table.add(inner) == nil {
				table.leave(inner.ID)
				table.left(inner)
			}
			table.giveBack(inner.ID)
			registrations.Add(1)
		}
	}()
	misses := 0
	for registrations.Load() < 20_000 && misses == 0 {
		for range 1000 {
			if table.find(0x18000, 0x100) != outer {
				misses++
			}
		}
	}
	close(stop)
	<-stopped
	require.Zero(t, misses, "look-ups that missed a region which was open all the time")
}

// find agrees with a plain search over all regions, with and without overlaps.
func TestFindReturnsTheSmallestRegionThatHoldsTheRange(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewSource(seed))
	for range 200 {
		var table regionTable
		var all []*region
		for range 1 + random.Intn(12) {
			r := testRegion(uintptr(0x1000+random.Intn(64)*64), uint64(1+random.Intn(512)))
			require.Nil(t, table.add(r))
			all = append(all, r)
		}
		for range 100 {
			addr, length := uintptr(0xf00+random.Intn(80*64)), uint64(1+random.Intn(128))
			var best uint64
			for _, r := range all {
				if addr >= r.Addr && uint64(addr-r.Addr)+length <= r.Size && (best == 0 || r.Size < best) {
					best = r.Size
				}
			}
			got := table.find(addr, length)
			if best == 0 {
				require.Nil(t, got)
				continue
			}
			require.NotNil(t, got)
			require.Equal(t, best, got.Size)
			require.True(t, mem.Contains(got.Size, uint64(addr-got.Addr), length))
		}
	}
}
