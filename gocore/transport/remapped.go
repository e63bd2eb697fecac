package transport

import "github.com/tent-engine/tent/gocore/mem"

// Remapped says which pages of a region were exchanged, see Remapper.
type Remapped struct {
	Offset, Length uint64 // the range with other pages, or none, inside the region

	// DMABuf is that of all of the region now, nil if it has none. The one that Register was given has the old pages,
	// and keeps them alive. The caller of Remap closes this one when it has returned.
	DMABuf *mem.DMABuf
}
