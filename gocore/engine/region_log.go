package engine

import "github.com/tent-engine/tent/gocore/mem"

// regionLogMax bounds the changes that are remembered. A peer that knows an older description gets all regions.
const regionLogMax = 1 << 14

// regionLog names the regions of the latest changes, one for each step of the table's epoch. Its zero value is empty.
type regionLog struct {
	left uint64 // changes before the first one of ids
	ids  []mem.RegionID
}

// add notes the next change.
func (l *regionLog) add(id mem.RegionID) {
	if len(l.ids) == 2*regionLogMax { // seldom, so that a change costs one entry on average
		l.left += regionLogMax
		l.ids = append(l.ids[:0], l.ids[regionLogMax:]...)
	}
	l.ids = append(l.ids, id)
}

// since returns the regions that changed after the first changes, some perhaps several times, and whether the log goes
// back so far.
func (l *regionLog) since(changes uint64) (ids []mem.RegionID, complete bool) {
	if changes < l.left || changes > l.left+uint64(len(l.ids)) {
		return nil, false
	}
	return l.ids[changes-l.left:], true
}
