package plugin

/*
#include "port.h"
*/
import "C"

import (
	"math/bits"

	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/transport"
)

const (
	featuresKnown = C.TENT_VECTORS | C.TENT_CHECKSUMS | C.TENT_SAME_HOST | C.TENT_COPIES | C.TENT_PINS |
		C.TENT_FILES | C.TENT_BOUNCES | C.TENT_PROTECTS
	bytesMost = 1 << 40
)

// takeInfo checks the plug-in's account of itself.
func (p *port) takeInfo(c *C.tent_info) error {
	power := func(n uint64) bool { return bits.OnesCount64(n) == 1 }
	most, best, unit := uint64(c.slice_max), uint64(c.slice_best), uint64(c.alignment)
	has := func(feature C.uint32_t) bool { return c.features&feature != 0 }
	switch {
	case c.features&^featuresKnown != 0:
		return p.senseless("it has features %#x, and this tent knows %#x", uint32(c.features), uint32(featuresKnown))
	case has(C.TENT_FILES) && (p.api.open_file == nil || p.api.import_file == nil || p.api.sync == nil):
		return p.senseless("it moves files, and lacks open_file, import_file or sync")
	case has(C.TENT_COPIES) && p.api.poll == nil:
		return p.senseless("it copies in poll, and has no function poll")
	case !power(unit) || unit > 1<<20:
		return p.senseless("its alignment is %d, which is no power of two up to 1 MiB", unit)
	case most == 0 || most > bytesMost || most%unit != 0 || best == 0 || best > most:
		return p.senseless("its slices have up to %d bytes, best %d, with alignment %d", most, best, unit)
	case c.slices_max == 0 || c.slices_max > 1<<20:
		return p.senseless("it takes %d slices a rail", uint32(c.slices_max))
	case c.version_first > c.version_last:
		return p.senseless("it speaks versions %d to %d", uint16(c.version_first), uint16(c.version_last))
	}
	p.info = transport.Info{Name: p.library.name, Vectors: has(C.TENT_VECTORS), Checksums: has(C.TENT_CHECKSUMS),
		Versions: transport.Versions{First: uint16(c.version_first), Last: uint16(c.version_last)}, Replaces: true,
		SameHost: has(C.TENT_SAME_HOST), Copies: has(C.TENT_COPIES), Pins: has(C.TENT_PINS), SliceMax: most,
		Files: has(C.TENT_FILES), Bounces: has(C.TENT_BOUNCES), Protects: has(C.TENT_PROTECTS),
		SliceBest: best, Alignment: unit, SlicesMax: min(int(c.slices_max), slots)}
	return p.takePairs(c)
}

// takePairs copies the kinds of memory that the plug-in moves. The far ends are files with TENT_FILES, and else memory.
func (p *port) takePairs(c *C.tent_info) error {
	moves := false
	for local := range mem.File {
		for remote := range mem.File + 1 {
			if (remote == mem.File) == p.info.Files && c.pairs[local][remote] != 0 {
				p.info.Pairs[local][remote], moves = true, true
			}
		}
	}
	if !moves {
		return p.senseless("it moves no kind of memory")
	}
	return nil
}
