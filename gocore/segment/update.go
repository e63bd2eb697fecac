package segment

import "github.com/tent-engine/tent/gocore/mem"

// Updated returns the description with changes: the regions of changes replace those with the same id or are new, and
// closed ones go. Everything else is as changes say. Both descriptions are sealed, and stay as they are. The error is
// InvalidArgument.
func (d *Description) Updated(changes *Description, closed []uint64) (*Description, error) {
	if len(closed) > RegionsMax {
		return nil, invalid("%d closed regions, more than %d", len(closed), RegionsMax)
	}
	replaced := make(map[mem.RegionID]bool, len(closed)+len(changes.Regions))
	for _, id := range closed {
		replaced[mem.RegionID(id)] = true
	}
	for i := range changes.Regions {
		replaced[changes.Regions[i].ID] = true
	}
	fresh := *changes
	fresh.Regions = make([]Region, 0, len(d.Regions)+len(changes.Regions))
	for i := range d.Regions {
		if !replaced[d.Regions[i].ID] {
			fresh.Regions = append(fresh.Regions, d.Regions[i])
		}
	}
	fresh.Regions = append(fresh.Regions, changes.Regions...)
	return &fresh, fresh.Seal()
}
