package engine

import (
	"cmp"
	"slices"

	"github.com/tent-engine/tent/gocore/mem"
)

// home is a region that holds ranges of an address list.
type home struct {
	id   mem.RegionID
	addr uint64
	size uint64
}

// spot is where a range of an address list lies.
type spot struct {
	home   uint32
	offset uint64 // from the region's first byte
	bytes  uint64
}

// row is ranges of one length at one distance in one region, as the blocks of a layer are.
type row struct {
	spot          // of its first range
	stride uint64 // modulo 2^64: a row may run backwards
	first  uint64 // its first range in the list
	n      uint64
}

// addressList is ranges by address, each inside one region. It is immutable once it is a grid's.
type addressList struct {
	homes []home
	spots []spot // nil where there are rows
	rows  []row  // in order, of a list that has few for its length
	n     int

	byAddress bool // homes are the regions in which addresses were found, not those that the ranges were given in

	byID map[mem.RegionID]uint32
}

// rowLeast is the mean length of rows from which on a list keeps them instead of its ranges. Shorter ones save
// little memory, and cost a search each.
const rowLeast = 8

// rowAhead bounds a row that is looked for in a list that has none. A call that names ranges in any order reads as many
// for each.
const rowAhead = 64

// add appends a range that lies in a region.
func (l *addressList) add(in home, offset, bytes uint64) {
	last := len(l.spots) - 1
	var at uint32
	if last >= 0 && l.homes[l.spots[last].home].id == in.id {
		at = l.spots[last].home
	} else if known, ok := l.byID[in.id]; ok {
		at = known
	} else {
		at = uint32(len(l.homes))
		l.homes = append(l.homes, in)
		l.byID[in.id] = at
	}
	l.spots = append(l.spots, spot{at, offset, bytes})
	l.n++
}

func (l *addressList) reset() {
	if l.byID == nil {
		l.byID = make(map[mem.RegionID]uint32)
	}
	clear(l.byID)
	l.homes, l.spots, l.rows, l.n, l.byAddress = l.homes[:0], l.spots[:0], nil, 0, false
}

// compact keeps the rows of a list instead of its ranges, unless there are too many.
func (l *addressList) compact() {
	l.byID = nil
	var rows []row
	for i, s := range l.spots {
		if k := len(rows); k == 0 || !rows[k-1].extend(s) {
			if k > 0 && k >= l.n/rowLeast {
				return
			}
			rows = append(rows, row{spot: s, first: uint64(i), n: 1})
		}
	}
	l.rows, l.spots = slices.Clip(rows), nil
}

// extend takes the next range into the row if it belongs there.
func (r *row) extend(next spot) bool {
	if next.home != r.home || next.bytes != r.bytes {
		return false
	}
	if r.n == 1 {
		r.stride = next.offset - r.offset
	}
	if next.offset != r.offset+r.n*r.stride {
		return false
	}
	r.n++
	return true
}

// at returns range i, which must be below n.
func (l *addressList) at(i uint64) spot {
	r := l.reader()
	r.seek(i)
	return spot{r.row.home, r.row.offsetOf(i), r.row.bytes}
}

func (r *row) holds(i uint64) bool { return i-r.first < r.n } // modulo 2^64

// offsetOf returns where range i of the list begins, which the row holds.
func (r *row) offsetOf(i uint64) uint64 { return r.offset + (i-r.first)*r.stride }

// reader goes through a list row by row.
type reader struct {
	rows  []row
	spots []spot
	row   *row
	next  int // the row behind it
	own   row // where the list has none
}

func (l *addressList) reader() reader { return reader{rows: l.rows, spots: l.spots} }

// seek goes to the row of range i, which must be below n. The row behind the last one is found at once.
func (r *reader) seek(i uint64) {
	if r.next >= len(r.rows) || !r.rows[r.next].holds(i) {
		r.search(i)
		return
	}
	r.row = &r.rows[r.next]
	r.next++
}

// search is seek in a list of any form.
func (r *reader) search(i uint64) {
	if r.spots == nil {
		at, found := slices.BinarySearchFunc(r.rows, i, func(w row, i uint64) int { return cmp.Compare(w.first, i) })
		if !found {
			at--
		}
		r.row, r.next = &r.rows[at], at+1
		return
	}
	r.own = row{spot: r.spots[i], first: i, n: 1}
	for _, next := range r.spots[i+1 : min(i+rowAhead, uint64(len(r.spots)))] {
		if !r.own.extend(next) {
			break
		}
	}
	r.row = &r.own
}
