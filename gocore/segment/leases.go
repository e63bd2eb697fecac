package segment

import (
	"slices"
	"sort"

	"github.com/tent-engine/tent/gocore/mem"
)

// A lease has one range or several, each a Region with descriptors of its own. Their owner makes and ends all of them
// together, and a description has the first one with all others or not at all.

// Ranges returns the ranges of a lease, in their order. They are nil unless the lease begins and goes on without a gap:
// a peer may describe any ranges. The caller must not change them.
func (d *Description) Ranges(lease mem.RegionID) []Region {
	leases := d.Regions[len(d.outer):]
	first := sort.Search(len(leases), func(i int) bool { return leases[i].Lease >= lease })
	end, at := first, uint64(0)
	for end < len(leases) && leases[end].Lease == lease {
		if leases[end].Start != at || at == 0 && leases[end].ID != lease {
			return nil
		}
		at += leases[end].Size
		end++
	}
	if lease == 0 || end == first {
		return nil
	}
	return leases[first:end:end]
}

// Lease returns a lease as one region, with the bytes of all its ranges. Its descriptors are those of the first range.
func (d *Description) Lease(lease mem.RegionID) (Region, bool) {
	ranges := d.Ranges(lease)
	if ranges == nil {
		return Region{}, false
	}
	whole, last := ranges[0], &ranges[len(ranges)-1]
	whole.Size = last.Start + last.Size
	return whole, true
}

// Offers returns the regions, and the leases as one region each. The caller must not change them. The description of a
// file is not sealed, and has no leases.
func (d *Description) Offers() []Region {
	first := slices.IndexFunc(d.Regions, func(r Region) bool { return r.Lease != 0 })
	if first < 0 {
		return d.Regions
	}
	offers := d.Regions[:first:first]
	for i := first; i < len(d.Regions); i++ {
		if r := &d.Regions[i]; r.ID == r.Lease {
			if whole, is := d.Lease(r.Lease); is {
				offers = append(offers, whole)
			}
		}
	}
	return offers
}
